"""The settings of the mock's encoder and engine."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import Count, Positive, Sequences, SequenceTokens

Seconds = Annotated[float, Meta(ge=0.0, le=3600.0)]


class MockEncoderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The behaviour of the encoder.

    Attributes:
        latency_s: the time of each call.
        fail_size: ``[height, width]`` of images on which it fails.
    """

    latency_s: Seconds = 0.0
    fail_size: tuple[int, int] | None = None


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call."""

    name: str
    arguments: dict[str, Any] = {}


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The script of one answer.

    Attributes:
        text: the text of the answer; by default, a description of the prompt.
        reasoning: the reasoning before it, between marks; None for no reasoning.
        calls: tool calls after the text, each between marks.
        tokens: the exact number of tokens, reasoning included: the answer is cut, or its text
            repeated from the start.
        prefill_latency_s: the time of the step that computes the first token.
        latency_s: the time of a step that computes any other token.
        fail_at_token: the token, counted from 0, at which this answer alone fails.
        crash_at_token: the token at which the engine fails permanently, for all requests.
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
    """The script of the answer to texts that contain another text.

    Attributes:
        to: the text to find in the last text of a user or a tool.
    """

    to: str


class MockEngineSettings(Script, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The size of the engine; a directive overrides the fields of :class:`Script`.

    Attributes:
        replies: scripts for client texts without a directive; the first match applies.
        capacity_tokens: the capacity of the cache in tokens, at most 4,194,304.
        max_sequence_tokens: the most tokens of a sequence, prompt and answer together.
        max_sequences: the most sequences admitted at the same time.
        max_chunk_tokens: the most tokens of one sequence in a step.
        max_draft_tokens: the most draft tokens of one sequence in a step.
        block_tokens: the number of tokens in a block of the cache.
        shares_prefixes: whether requests reuse cached prefixes.
        mixes_prefill_and_decode: whether a step may contain both.
        overlaps_steps: whether a step of decodes may start before the last one is read.
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
    overlaps_steps: bool = False
    images_are_atomic: bool = False
