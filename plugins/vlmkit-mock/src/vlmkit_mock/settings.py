"""What a config can set for the mock's encoder and engine. Read before anything is built."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import Count, Positive, Sequences, SequenceTokens

Seconds = Annotated[float, Meta(ge=0.0, le=3600.0)]


class MockEncoderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the encoder behaves.

    Attributes:
        latency_s: time that each call takes.
        fail_size: ``[height, width]`` of the pictures that it fails on.
    """

    latency_s: Seconds = 0.0
    fail_size: tuple[int, int] | None = None


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that is called, and with what."""

    name: str
    arguments: dict[str, Any] = {}


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one answer goes.

    Attributes:
        text: the answer; by default the engine says what it was shown.
        reasoning: what is thought before, between marks; None thinks nothing.
        calls: the tools that the answer calls, behind its text, each between marks.
        tokens: exactly how many tokens the answer has, reasoning included: it is cut, or its text
            repeated from the start.
        prefill_latency_s: time that the step takes that computes the first token.
        latency_s: time that the step takes that computes any other token.
        fail_at_token: the token, counted from 0, at which this answer fails and no other.
        crash_at_token: the token at which the engine breaks for everyone, for good.
    """

    text: str | None = None
    reasoning: str | None = None
    calls: tuple[ScriptedCall, ...] = ()
    tokens: Count | None = None
    prefill_latency_s: Seconds = 0.0
    latency_s: Seconds = 0.0
    fail_at_token: Count | None = None
    crash_at_token: Count | None = None


class Reply(Script, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the answer goes to what holds a text.

    Attributes:
        to: the text, as part of what a user or a tool said last.
    """

    to: str


class MockEngineSettings(Script, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How large the engine is; the fields of :class:`Script` are what a directive overrides.

    Attributes:
        replies: answers to what clients say of themselves; the first that fits is given.
        capacity_tokens: tokens that the cache holds, 4,194,304 at most.
        max_sequence_tokens: longest sequence, prompt and answer together.
        max_sequences: most sequences admitted at once.
        max_chunk_tokens: most tokens of one sequence in a step.
        max_draft_tokens: most drafts of one sequence in a step.
        block_tokens: tokens in one block of the cache.
        shares_prefixes: whether a cached prefix is used again.
        mixes_prefill_and_decode: whether one step may hold both.
        images_are_atomic: whether an image must be computed in one chunk.
    """

    replies: tuple[Reply, ...] = ()
    capacity_tokens: Annotated[int, Meta(ge=1, le=2**22)] = 2**17
    max_sequence_tokens: SequenceTokens = 2**15
    max_sequences: Sequences = 256
    max_chunk_tokens: Positive = 2**12
    max_draft_tokens: Count = 8
    block_tokens: Positive = 16
    shares_prefixes: bool = True
    mixes_prefill_and_decode: bool = True
    images_are_atomic: bool = False
