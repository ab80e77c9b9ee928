"""Messages between a runner and the process that answers its requests: frames of the wire codec.

The caller's process numbers its requests and calls. Everything that the other process sends about
one of them carries its number. It sends exactly one end for each request: an entry with its usage,
or :class:`Refused`.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from vlmkit.errors import VlmkitError, WireError
from vlmkit.interfaces.cache_events import CacheBlock, CacheChange
from vlmkit.interfaces.observer import StepFacts
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.types.completion import Chunk, Timings, Usage
from vlmkit.types.delta import Delta
from vlmkit.types.demand import Demand
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.runner_stats import RunnerStats
from vlmkit.types.sample import Sample
from vlmkit.wire.buffers import NotSerializable
from vlmkit.wire.codec import Codec
from vlmkit.wire.conversions import describe
from vlmkit.wire.frames import (
    MAGIC,
    PROTOCOL_VERSION,
    Buffer,
    FrameLimits,
    FrameSplitter,
    check_limits,
    frame_parts,
)
from vlmkit.wire.type_names import TYPES

MAX_HEAD_BYTES = 256 * 2**20  # the table of a large vocabulary takes a few MB


class _Plain(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """A message of plain values, which msgspec encodes and decodes itself."""


# From the caller's process.


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a request; with ``asks_admission``, report its demand and wait."""

    number: int
    request: Request
    asks_admission: bool


class Proceed(_Plain, frozen=True, tag="runner.proceed"):
    """The caller's decision about the demand of a request."""

    number: int
    is_admitted: bool


class Abort(_Plain, frozen=True, tag="runner.abort"):
    """Stop a request or a call, at any stage; harmless after its end."""

    number: int


class Flow(_Plain, frozen=True, tag="runner.flow"):
    """Pause or resume the chunks of a request, whose reader is behind or has caught up."""

    number: int
    is_paused: bool


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Return the tokens of a request's prompt."""

    number: int
    request: Request


@dataclass(frozen=True, slots=True)
class Detokenize:
    """Return the text of tokens."""

    number: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse new requests, and report whether the present ones ended in time."""

    number: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Close:
    """Abort all requests, send their ends, and exit."""


# From the process that answers.


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of building the model has begun."""

    name: str


@dataclass(frozen=True, slots=True)
class Started:
    """The model is built.

    Attributes:
        facts: the facts of its runner.
        token_bytes: the bytes of all tokens, concatenated.
        token_ends: where each token ends in them.
    """

    facts: RunnerFacts
    token_bytes: bytes
    token_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Demanded:
    """The prompt of a request is built, and it waits for the caller's decision."""

    number: int
    demand: Demand


@dataclass(frozen=True, slots=True)
class Accepted:
    """The scheduler accepted a request."""

    number: int
    num_choices: int
    prompt_token_ids: tuple[int, ...]
    usage: Usage
    timings: Timings


class TokenEntry(_Plain, frozen=True, tag="runner.tokens"):
    """A chunk of text and tokens alone, as nearly all are.

    Attributes:
        number: the request.
        index: the index of the choice.
        deltas: see :class:`vlmkit.types.completion.Chunk`.
        samples: the same.
        reasoning_tokens: reasoning tokens so far.
    """

    number: int
    index: int
    deltas: tuple[Delta, ...]
    samples: tuple[Sample, ...]
    reasoning_tokens: int


class Entry(msgspec.Struct, frozen=True, gc=False):
    """The first, the last, or any other chunks of one request.

    Attributes:
        number: the request.
        chunks: its new chunks.
        usage: the tokens that it used so far.
        timings: the durations of its stages so far.
    """

    number: int
    chunks: tuple[Chunk, ...]
    usage: Usage
    timings: Timings


class News(msgspec.Struct, frozen=True, gc=False):
    """News of several requests, in one frame."""

    entries: tuple[Accepted | TokenEntry | Entry, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """A request or a call ended with an error."""

    number: int
    error: VlmkitError
    usage: Usage | None = None
    timings: Timings | None = None


@dataclass(frozen=True, slots=True)
class Malformed:
    """A request or a call holds a value that its type does not allow, and is not answered."""

    number: int


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The tokens of a prompt."""

    number: int
    tokens: PromptTokens


@dataclass(frozen=True, slots=True)
class Detokenized:
    """The text of tokens."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Drained:
    """Whether all requests ended in time."""

    number: int
    is_empty: bool


@dataclass(frozen=True, slots=True)
class State:
    """The state of the answering runner, sent when it has changed."""

    stats: RunnerStats
    is_full: bool


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that the engine computed, if the caller has observers of them."""

    steps: tuple[StepFacts, ...]


@dataclass(frozen=True, slots=True)
class Blocks:
    """A change of the engine's cache, if the caller has observers of cache events."""

    change: CacheChange


@dataclass(frozen=True, slots=True)
class Lost:
    """One of several processes of a connection has ended with its requests; never sent.

    Attributes:
        numbers: its open requests and calls.
        error: the error of each.
    """

    numbers: tuple[int, ...]
    error: VlmkitError


MESSAGES: dict[str, type[Any]] = {
    **TYPES,
    "runner.submit": Submit,
    "runner.proceed": Proceed,
    "runner.abort": Abort,
    "runner.flow": Flow,
    "runner.tokenize": Tokenize,
    "runner.detokenize": Detokenize,
    "runner.drain": Drain,
    "runner.close": Close,
    "runner.stage": Stage,
    "runner.started": Started,
    "runner.demanded": Demanded,
    "runner.accepted": Accepted,
    "runner.tokens": TokenEntry,
    "runner.entry": Entry,
    "runner.news": News,
    "runner.refused": Refused,
    "runner.malformed": Malformed,
    "runner.tokenized": Tokenized,
    "runner.detokenized": Detokenized,
    "runner.drained": Drained,
    "runner.state": State,
    "runner.steps": Steps,
    "runner.step": StepFacts,
    "runner.blocks": Blocks,
    "runner.cache_change": CacheChange,
    "runner.cache_block": CacheBlock,
}
CODEC = Codec(MESSAGES)
"""The codec of both ends."""


class _Numbered(msgspec.Struct, array_like=True):
    """The start of a request or a call."""

    name: Literal["runner.submit", "runner.tokenize", "runner.detokenize"]
    number: int


def malformed_number(head: Buffer) -> int | None:
    """Return the number of a request or a call that cannot be decoded; None for another message."""
    try:
        return msgspec.msgpack.decode(head, type=_Numbered).number
    except (msgspec.DecodeError, RecursionError):
        return None


def protocol(messages: Mapping[str, type[Any]] = MESSAGES) -> str:
    """Return what both ends must have in common: the version of frames, and a digest of types.

    The digest covers the names and the fields of all types that a message may hold.
    """
    digest = hashlib.sha256()
    for name, kind in sorted(messages.items()):
        digest.update(f"{name}({','.join(describe(name, kind).fields)})\n".encode())
    return f"{MAGIC.decode()}{PROTOCOL_VERSION}-{digest.hexdigest()[:16]}"


def message_parts(message: object, max_bytes: int, codec: Codec = CODEC) -> list[Buffer]:
    """Return the bytes of a message in parts.

    Raises:
        NotSerializable: it holds a value that cannot be sent, or has more bytes than allowed.
    """
    frame = codec.encode(message)
    try:
        check_limits(frame, frame_limits(max_bytes))
        return frame_parts(frame)
    except WireError as error:
        raise NotSerializable(f"over {max_bytes} bytes") from error


def frame_limits(max_bytes: int) -> FrameLimits:
    """Return the limits of messages that have at most so many bytes, apart from a small head."""
    head_bytes = min(max_bytes, MAX_HEAD_BYTES)
    return FrameLimits(max_head_bytes=head_bytes, max_buffer_bytes=max_bytes)


class MessageReader:
    """Reads messages from bytes, as they arrive.

    Args:
        max_bytes: the most bytes that a message may have.
        codec: knows the types of messages.
    """

    def __init__(self, max_bytes: int, codec: Codec = CODEC) -> None:
        self._splitter = FrameSplitter(frame_limits(max_bytes))
        self._codec = codec

    @property
    def is_within_frame(self) -> bool:
        """Whether only a part of a message has arrived."""
        return self._splitter.is_within_frame

    def feed(self, content: Buffer) -> Iterator[Any]:
        """Add bytes, and yield the messages that are complete now.

        Raises:
            WireError: a message is malformed, or over the limit.
        """
        yield from map(self._codec.decode, self._splitter.feed(content))
