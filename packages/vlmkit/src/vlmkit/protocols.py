"""What each of the five components must do. No implementation and no heavy import.

Axes: ``seq`` tokens of one sequence; ``rows`` sequences that get logits in a step; ``vocab`` token
ids; ``hidden`` the width of an embedding. Ranges are half-open. Arrays cross these borders by
DLPack, so that an encoder in one library can feed an engine in another.

Methods run in the pipeline's loop thread, and ``close`` after its end in the thread that closes,
with two exceptions: a tokenizer is called from several worker threads at once, and a vision encoder
from a thread of its own, at the same time as the engine.
"""

from collections.abc import Mapping, Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from vlmkit.message import Message
from vlmkit.prompt import Array, ImageSlot, Prompt, Span
from vlmkit.sequence import Sequence
from vlmkit.step import Step, WorkItem


class TokenStream(Protocol):
    """Turns tokens into text one at a time, never showing half a character."""

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; may be empty."""
        ...

    def flush(self) -> str:
        """Return the text that was held back; the stream is over."""
        ...


class Tokenizer(Protocol):
    """One model's text side: conversations to tokens, tokens to text.

    Text that a user typed can never become a control token or an image slot: it is encoded with
    special-token parsing off, and images are placed by structure, not by searching for a string.
    """

    @property
    def vocab_size(self) -> int:
        """How many token ids can be decoded."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    @property
    def banned_ids(self) -> frozenset[int]:
        """Tokens that must never be sampled, such as image placeholders."""
        ...

    def prompt(
        self, messages: Seq[Message], *, tools: Seq[Mapping[str, Any]] | None = None
    ) -> Prompt:
        """Render the chat template, expand images to placeholders, preprocess their pixels.

        Raises:
            RequestError: the template refuses these roles, or the model takes no images.
            ImageError: the processor refuses an image.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Return the token ids of plain text; no string in it becomes a special token."""
        ...

    def decode(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens, without special tokens."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one token stands for; may be part of a character."""
        ...

    def stream(self) -> TokenStream:
        """Return a fresh incremental detokenizer."""
        ...


@dataclass(frozen=True, slots=True)
class ImageFeatures:
    """What an encoder knows about one image.

    Attributes:
        num_tokens: rows of ``embeddings``; equals the slot's ``num_features``.
        embeddings: ``[num_tokens, hidden]`` float, projected to the width of the engine.
        extra: further arrays by name (deepstack rows, say); opaque to the core, understood by
            engines of the same model family.
        num_bytes: memory that the arrays take, for the feature cache.
    """

    num_tokens: int
    embeddings: Array
    extra: Mapping[str, Array] = field(default_factory=dict)
    num_bytes: int = 0


class VisionEncoder(Protocol):
    """Turns preprocessed images into embeddings."""

    @property
    def identity(self) -> str:
        """Says what computes the features: weights, precision, code; for caches that outlive it."""
        ...

    def encode(self, slots: Seq[ImageSlot]) -> list[ImageFeatures]:
        """Return the features of each image, in order; batched where that is faster.

        ``encode`` runs in a thread of its own, at the same time as the engine's methods, and never
        twice at once. What it shares with the engine, such as weights, must stand that.
        """
        ...

    def close(self) -> None:
        """Free all memory; no call follows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What an engine can do. A capability is off unless it is claimed.

    Attributes:
        vocab_size: columns of the logits.
        max_sequence_tokens: longest sequence, prompt and answer together.
        max_sequences: most sequences admitted at once.
        capacity_tokens: tokens that the cache holds, over all sequences.
        max_chunk_tokens: most tokens of one sequence in one work item.
        mixes_prefill_and_decode: one step may hold both.
        prefix_block_tokens: a cached prefix is shared in multiples of this; 0 shares nothing.
        is_batch_invariant: what else is in a step never changes a row of logits, bit for bit.
    """

    vocab_size: int
    max_sequence_tokens: int
    max_sequences: int
    capacity_tokens: int
    max_chunk_tokens: int
    mixes_prefill_and_decode: bool = False
    prefix_block_tokens: int = 0
    is_batch_invariant: bool = False


class Cache(Protocol):
    """The part of an engine that a scheduler talks to: whose tokens have room."""

    @property
    def limits(self) -> EngineLimits:
        """What this engine can do; constant."""
        ...

    def admit(self, sequence: Sequence) -> int | None:
        """Make room for all present tokens of a sequence and one more.

        Returns:
            How many of its first tokens are in the cache already, always fewer than it has and
            never inside an atomic span; or None when there is no room now.
        """
        ...

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens`` of an admitted sequence; False if full."""
        ...

    def truncate(self, sequence: Sequence, num_tokens: int) -> int:
        """Forget everything after the first ``num_tokens`` of an admitted sequence.

        Returns:
            How many tokens are kept: ``num_tokens``, or fewer where a shared block must not be
            written again.
        """
        ...

    def release(self, sequence: Sequence) -> None:
        """Give up an admitted sequence's room and state; it may be admitted again later."""
        ...


class Engine(Cache, Protocol):
    """The language model: owns weights and cache memory, and never decides who runs.

    Image tokens get their embeddings from ``sequence.features[i]``, which is present for every
    image whose slot a work item touches. Merging them is the engine's own business, as are
    positions, so that the core knows no model family.
    """

    def atomic_spans(self, prompt: Prompt) -> tuple[Span, ...]:
        """Return the token ranges that must be computed in one work item; ordered, disjoint.

        Raises:
            RequestError: this engine cannot run such a prompt.
        """
        ...

    def forward(self, items: Seq[WorkItem]) -> Array:
        """Compute the items and return logits ``[rows, vocab]`` float, unnormalised.

        There is one row for each item with ``wants_logits``, in order. Room was reserved. Until
        the next step the same items may be given again, alone or together, with the same result:
        that is how a member that makes its batch fail is found.
        """
        ...

    def close(self) -> None:
        """Free all memory; no call follows."""
        ...


class Scheduler(Protocol):
    """Decides which tokens run next. Pure: no clock, no I/O, no tokenizer, no arrays.

    It keeps the books of its sequences: ``num_computed_tokens`` at admission, commit and
    preemption, ``num_cached_tokens`` at the first admission, and empty ``features`` after a
    preemption. It leaves a sequence alone that ``is_held``, or whose ``leader`` still prefills.

    Images are encoded beside the loop. A step may name an image and hold the item that needs it:
    the item runs at once if the features are kept, and is otherwise left out of the commit. While
    ``sequence.encoding`` names an image, a step has better use for the room of what touches it.
    """

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence.

        Raises:
            QueueFull: the queue is at its bound.
        """
        ...

    def plan(self, cache: Cache) -> Step:
        """Choose the next step; an empty one when nothing can run."""
        ...

    def commit(self, step: Step) -> None:
        """Note that a step was computed. New tokens are appended after this, by the loop.

        Its items are those that ran: one that failed or waits for an image is not among them.
        """
        ...

    def remove(self, sequence: Sequence, cache: Cache) -> None:
        """Forget a sequence that ended for whatever reason, and release its room."""
        ...

    @property
    def max_waiting(self) -> int:
        """Sequences that the queue takes."""
        ...

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
        ...

    @property
    def num_running(self) -> int:
        """Sequences with room in the cache."""
        ...


class Logprob(NamedTuple):
    """A token and its log-probability."""

    token_id: int
    logprob: float


class Sample(NamedTuple):
    """One chosen token.

    ``logprob`` and ``top`` describe the model's own distribution (before penalties, temperature
    and filters), and are filled only where the request asks for log-probabilities.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[Logprob, ...] = ()


class Sampler(Protocol):
    """Chooses the next token of every sequence in a step."""

    def sample(self, logits: Array, sequences: Seq[Sequence]) -> list[Sample]:
        """Return one token for each row, following each sequence's own parameters.

        The choice is a function of the row, the sequence's tokens, parameters and seed: what
        else is in the batch never changes it. Logits that hold no finite value raise EngineError.

        Args:
            logits: ``[rows, vocab]`` float, unnormalised; may live on any device.
            sequences: ``[rows]``, whose ``output_ids`` end before the token to choose.
        """
        ...
