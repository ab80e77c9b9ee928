"""What an engine must do: keep sequences' tokens and compute the next. No implementation.

Its methods run in the loop's thread, but for two: ``read`` runs in several worker threads at once,
and ``close`` after the loop's end in the thread that closes.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What an engine can do. A capability is off unless it is claimed.

    Attributes:
        vocab_size: columns of the logits.
        max_sequence_tokens: longest sequence, prompt and answer together. All but its last token
            are computed.
        max_sequences: most sequences admitted at once.
        capacity_tokens: tokens that the cache holds, over all sequences.
        max_chunk_tokens: most tokens of one sequence in one work item.
        mixes_prefill_and_decode: one step may hold chunks of prompts beside tokens of answers, in
            less time than one after the other. Without that gain answers would wait for chunks in
            vain: do not claim it, and a step is of answers, or one chunk.
        prefix_block_tokens: a cached prefix is shared in multiples of this; 0 shares nothing.
        is_batch_invariant: what else is in a step never changes a row of logits, bit for bit.
        max_item_rows: most rows of logits of one work item.
        max_draft_tokens: most drafts of one work item; each wants a row.
        hidden_size: columns of hidden states, of which every token may have a row; 0 gives none.
        precision: what it computes with, such as ``bfloat16``, for people to read; empty where it
            does not say.
    """

    vocab_size: int
    max_sequence_tokens: int
    max_sequences: int
    capacity_tokens: int
    max_chunk_tokens: int
    mixes_prefill_and_decode: bool = False
    prefix_block_tokens: int = 0
    is_batch_invariant: bool = False
    max_item_rows: int = 1
    max_draft_tokens: int = 0
    hidden_size: int = 0
    precision: str = ""


class Admission(NamedTuple):
    """A sequence has room.

    Attributes:
        num_cached: how many of its first tokens are in the cache already, never more than come
            before the sequence's ``first_row`` and never inside an atomic span.
    """

    num_cached: int


class Cache(Protocol):
    """The part of an engine that a scheduler talks to: whose tokens have room."""

    @property
    def limits(self) -> EngineLimits:
        """What this engine can do; constant."""
        ...

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Make room for all present tokens of a sequence and one more; None if there is none.

        Who is refused changes nothing and is not kept: it may be given up while it waits.
        """
        ...

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens`` of an admitted sequence; False if full.

        Then nothing changed; nor where there is room for as many already.
        """
        ...

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Take the first ``num_tokens`` of an admitted sequence as computed and its own.

        They may be shared from now on; what was computed and is not committed is nobody else's. Is
        called when another ``prefix_block_tokens`` of them are whole; never, where that is 0.
        """
        ...

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Forget what was computed of an admitted sequence after its first ``num_tokens``.

        These are drafts that were not accepted: never fewer are kept than were committed, and never
        more go than the last step computed.
        """
        ...

    def release(self, sequence: SequenceView) -> None:
        """Give up an admitted sequence's room and state; it may be admitted again later.

        What was committed may be found by others as long as nobody needs its room. Nothing is kept
        of the sequence itself, of its prompt and of its features.
        """
        ...


class Engine(Cache, Protocol):
    """The language model: owns weights and cache memory, and never decides who runs.

    The tokens of images and other media get their embeddings from ``sequence.features[i]``, which
    is present for every slot that a work item touches. Merging them is the engine's own business,
    as are positions, so that the core knows no model family.
    """

    def read(self, prompt: Prompt) -> PromptPlan:
        """Look at a prompt before its turn comes: what may not be cut, and what is worth keeping.

        Raises:
            RequestError: this engine cannot run such a prompt.
        """
        ...

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items and return the rows that they want, in their order.

        Room was reserved. Until the next step the same items may be given again, alone or together,
        with the same result: that is how a member that makes its batch fail is found.
        """
        ...

    def close(self) -> None:
        """Free all memory; no call follows."""
        ...


@runtime_checkable
class CountsRoom(Protocol):
    """What an engine may say besides: how much room its cache has."""

    @property
    def num_free_tokens(self) -> int:
        """Tokens that no admitted sequence has room for; asked for from any thread, at any time."""
        ...


@runtime_checkable
class VisionSelfCheck(Protocol):
    """What an engine may have besides: a trial with media, when the whole model was loaded.

    Only then is there a tokenizer that prepares media, and an encoder of them.
    """

    @property
    def trial_name(self) -> str | None:
        """Says what is tried, such as device and precision; None where nothing is to be tried.

        A model is tried once under a name, until its files, its settings or the packages change.
        """
        ...

    def try_media(self, prompts: Seq[Prompt], encoder: MediaEncoder) -> None:
        """Answer prompts with one medium each, and hold that against what is known to be right.

        It is done where nobody else uses engine or encoder yet, and leaves nothing in the cache.

        Raises:
            CheckpointError: the answers are wrong.
            VlmkitError: there is none.
        """
        ...
