"""The interface of engines, which cache sequences and compute their tokens; no implementation.

Methods run in the engine loop's thread, with two exceptions: ``read`` runs in several worker
threads at once, and ``close`` in the closing thread after the loop's end.
"""

from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from vlmkit.interfaces.cache_events import CacheListener
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Array, Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The limits and capabilities of an engine. A capability is off unless the engine claims it.

    Attributes:
        vocab_size: columns of the logits.
        max_sequence_tokens: length of the longest sequence, prompt and answer together. All but its
            last token are computed.
        max_sequences: maximum number of sequences admitted at once.
        capacity_tokens: tokens that the cache holds, over all sequences.
        max_chunk_tokens: maximum number of tokens of one sequence in one work item.
        mixes_prefill_and_decode: whether one step may mix prompt chunks with tokens of answers. An
            engine should claim it only if a mixed step is faster than separate ones; otherwise
            answers wait for chunks for no gain. Without it, a step holds either tokens of answers
            or one chunk.
        prefix_block_tokens: cached prefixes are shared in multiples of this; 0 disables sharing.
        event_block_tokens: tokens of a block in cache events; 0 if it is ``prefix_block_tokens``.
        is_batch_invariant: whether a row of logits is independent of the rest of the step, bit for
            bit.
        max_item_rows: maximum number of logit rows of one work item.
        max_draft_tokens: maximum number of drafts of one work item; each needs a row.
        overlaps_steps: whether the loop may overlap steps by the methods of :class:`OverlapsSteps`.
            An engine should claim it only if a device computes while the host works.
        hidden_size: columns of the hidden states, which any token may request; 0 if the engine
            returns none.
        precision: the precision of the computation, such as ``bfloat16``, for display; empty if
            unknown.
    """

    vocab_size: int
    max_sequence_tokens: int
    max_sequences: int
    capacity_tokens: int
    max_chunk_tokens: int
    mixes_prefill_and_decode: bool = False
    prefix_block_tokens: int = 0
    event_block_tokens: int = 0
    is_batch_invariant: bool = False
    max_item_rows: int = 1
    max_draft_tokens: int = 0
    overlaps_steps: bool = False
    hidden_size: int = 0
    precision: str = ""


class Admission(NamedTuple):
    """The result of admitting a sequence to the cache.

    Attributes:
        num_cached: number of its first tokens that the cache holds already. They end before the
            sequence's ``first_row``, and never inside an atomic span.
    """

    num_cached: int


class Cache(Protocol):
    """The part of an engine that a scheduler uses: the allocation of cache memory."""

    @property
    def limits(self) -> EngineLimits:
        """The limits and capabilities of this engine; constant."""
        ...

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Allocate room for all present tokens of a sequence and one more; None if full.

        A refused sequence changes nothing, and the engine must not keep it: it may be aborted while
        it waits.
        """
        ...

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Allocate room for the first ``num_tokens`` of an admitted sequence; False if full.

        If full, nothing changes. If the room is allocated already, the call has no effect.
        """
        ...

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Mark the first ``num_tokens`` of an admitted sequence as computed and final.

        Other sequences may share them from now on, but never computed tokens that are not
        committed. The scheduler calls it whenever another ``prefix_block_tokens`` tokens are
        complete; never if that is 0.
        """
        ...

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Discard the computed tokens of an admitted sequence after its first ``num_tokens``.

        These are rejected drafts: committed tokens are never discarded, nor more tokens than the
        last step computed.
        """
        ...

    def release(self, sequence: SequenceView) -> None:
        """Free the room and state of an admitted sequence; it may be admitted again later.

        It may follow any call directly, also a step that failed or whose rows are not read yet.

        Committed tokens may stay in the cache for other sequences until their room is needed. The
        engine must not keep the sequence itself, its prompt or its features.
        """
        ...


class Engine(Cache, Protocol):
    """The language model: owns weights and cache memory, and never decides which sequence runs.

    The tokens of images and other media get their embeddings from ``sequence.features[i]``, which
    is present for every slot that a work item touches, and must not be modified. The engine merges
    the embeddings and assigns positions, so the core has no code for a model family.
    """

    def read(self, prompt: Prompt) -> PromptPlan:
        """Analyse a prompt before it is scheduled: its atomic spans, and state worth keeping.

        Raises:
            RequestError: this engine cannot run such a prompt.
        """
        ...

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items and return the rows that they request, in their order.

        Room is already reserved. Before the next step the same items may be passed again, alone,
        together or without their drafts, and must give the same result. The loop does so to isolate
        a sequence that makes its batch fail.
        """
        ...

    def close(self) -> None:
        """Free all memory; no other call follows."""
        ...


@runtime_checkable
class OverlapsSteps(Protocol):
    """An optional part of an engine: it starts a step before the host has read the last one.

    A device then computes the next tokens while the host reads, decodes and delivers the last ones.
    The loop uses it only if :attr:`EngineLimits.overlaps_steps` is true.
    """

    def forward_next(self, items: Seq[WorkItem], token_ids: Array) -> StepOutput:
        """Start to compute one token of each item, which the sequences do not hold yet.

        The call follows the ``forward`` or ``forward_next`` whose rows these tokens were sampled
        from, and must not wait for the device. Room is already reserved. The result equals that of
        ``forward`` once the sequences hold the tokens.

        A sequence may be released at once, since its token may end it. The loop may also discard
        the result. It then calls ``truncate`` with ``start`` of the item, and passes the items of
        the last step or of this one to ``forward``.

        Args:
            items: one token and one row of logits each. Their ``token_ids`` must not be read.
            token_ids: ``[items]`` integers of the vocabulary, on the engine's device.
        """
        ...

    def start_read(self, array: Array) -> "Callable[[], NDArray[Any]]":
        """Start to copy an array from the engine's device to the host.

        Returns:
            A function that waits for this copy, not for later steps, and returns it. It may be
            called after later steps and other reads have started, and after the sequences ended.
        """
        ...


@runtime_checkable
class CountsRoom(Protocol):
    """An optional property of an engine: the free room of its cache."""

    @property
    def num_free_tokens(self) -> int:
        """Tokens of the cache that are not allocated; read from any thread, at any time.

        Tokens that sequences share count once, unless each sequence has a copy. Tokens that no
        admitted sequence has are free, also if later sequences can share them.
        """
        ...


@runtime_checkable
class CountsSteps(Protocol):
    """An optional method of an engine: counters of its own."""

    def counters(self) -> Mapping[str, int]:
        """Return counters for ``RunnerStats.counters``.

        Called from any thread, also after ``close``. They never fall, and their names are constant.
        """
        ...


NUM_REPLAYED = "num_replayed_steps"
NUM_RECOMPUTED = "num_recomputed_steps"
"""The counters of an engine that repeats steps as recorded graphs of a device.

Steps that a graph computed, and those of them that were computed again without it, since their
result could not be used.
"""


@runtime_checkable
class EmitsCacheEvents(Protocol):
    """An optional part of an engine: events of the prefixes that its cache shares."""

    def set_cache_listener(self, listener: CacheListener) -> None:
        """Report every block that is shared or removed from now on to a listener.

        Called at most once, before any sequence is admitted, and only if an observer receives cache
        events. Without the call an engine makes no blocks. A block is stored when later sequences
        can reuse it, so never before its tokens are committed.
        """
        ...


@runtime_checkable
class VisionSelfCheck(Protocol):
    """An optional part of an engine: a self-check with media after the whole model is loaded.

    It runs last because it needs a tokenizer that prepares media, and an encoder of them.
    """

    @property
    def trial_name(self) -> str | None:
        """Names what the self-check covers, such as device and precision; None to skip it.

        A passed check is recorded under this name. It is repeated when the model's files, its
        settings or the installed packages change.
        """
        ...

    def try_media(self, prompts: Seq[Prompt], encoder: MediaEncoder) -> None:
        """Answer prompts with one medium each, and compare the answers with known correct ones.

        It runs before anything else uses engine or encoder, and must leave nothing in the cache.

        Raises:
            CheckpointError: the answers are wrong.
            VlmkitError: the prompts cannot be answered.
        """
        ...
