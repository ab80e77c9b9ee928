"""The mock engine's state of admitted sequences, its cache cells, and the protocol's rules.

Computes no logits and assigns no blocks.
"""

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from vlmkit.errors import EngineError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.prompt import Span
from vlmkit.interfaces.step import WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool
from vlmkit_mock.answer import Answer
from vlmkit_mock.progress import Progress


@dataclass(slots=True)
class SequenceState:
    """One admitted sequence: its answer, its reserved space, and the fingerprints of its tokens."""

    answer: Answer
    spans: tuple[Span, ...]
    num_reserved_tokens: int
    num_committed_tokens: int = 0
    fingerprints: list[int] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)

    def progress_at(self, sequence: SequenceView, stop: int, drafts: Seq[int]) -> Progress:
        """Return the progress of an answer at a row: after its own tokens and some drafts."""
        start = sequence.num_prompt_tokens
        num_own = stop - start - len(drafts)
        if self.progress.num_tokens > num_own:
            self.progress = Progress()
        own = sequence.tokens(start + self.progress.num_tokens, start + num_own)
        self.progress.advance(self.answer, own)
        return self.progress.advanced(self.answer, drafts) if drafts else self.progress


class Cells:
    """The values in a paged cache.

    Args:
        pool: assigns the blocks of sequences.
        num_cells: the number of cells of all blocks.
    """

    def __init__(self, pool: BlockPool, num_cells: int) -> None:
        self._pool = pool
        self._cells = [0] * num_cells

    def __len__(self) -> int:
        return len(self._cells)

    def write(self, sequence: SequenceView, start: int, values: Seq[int]) -> None:
        """Write the values of tokens from ``start`` on."""
        blocks, size = self._pool.blocks(sequence), self._pool.block_tokens
        for position, value in enumerate(values, start):
            self._cells[blocks[position // size] * size + position % size] = value

    def expect(self, sequence: SequenceView, position: int, value: int) -> None:
        """Check the value of a token.

        Raises:
            EngineError: the cell of the token has another value.
        """
        blocks, size = self._pool.blocks(sequence), self._pool.block_tokens
        if self._cells[blocks[position // size] * size + position % size] != value:
            raise EngineError(
                f"sequence {sequence.id!r}: the cache holds something else at token {position}"
            )

    def clear(self) -> None:
        """Discard all values."""
        self._cells.clear()


def check_step(
    items: Seq[WorkItem],
    state_of: Callable[[SequenceView], SequenceState],
    limits: EngineLimits,
    *,
    are_known: bool = True,
) -> None:
    """Check the items of a step against the rules of the engine protocol.

    Args:
        items: the items.
        state_of: returns the state of an admitted sequence.
        limits: of the engine.
        are_known: whether the sequences hold the tokens; otherwise each lacks its item's only one.

    Raises:
        EngineError: an item violates a rule.
    """
    if len({item.sequence for item in items}) < len(items):
        raise EngineError("a sequence has two items in one step")
    for item in items:
        num_known = len(item.sequence) + (not are_known)
        if problem := _problem(item, state_of(item.sequence), limits, num_known):
            raise EngineError(f"sequence {item.sequence.id!r}: {problem}")
    mixes = limits.mixes_prefill_and_decode
    if not mixes and len(set(map(_reads_prompt, items))) > 1:
        raise EngineError("a step mixes prefill and decode")


def _problem(
    item: WorkItem, state: SequenceState, limits: EngineLimits, num_known: int
) -> str | None:
    """Return the rule that an item violates; None if it violates none."""
    longest = limits.max_chunk_tokens
    if not 1 <= item.num_tokens <= longest:
        return f"a chunk of {item.num_tokens} tokens is not in [1, {longest}]"
    if not 0 <= item.start <= len(state.fingerprints):
        return f"token {item.start} runs, but only {len(state.fingerprints)} are computed"
    if item.start < item.sequence.num_prompt_tokens:
        for span in state.spans:
            if span.start < item.start < span.stop or span.start < item.stop < span.stop:
                return f"a chunk cuts the atomic span [{span.start}, {span.stop})"
    problem = _rows_problem(item, state.num_reserved_tokens, limits, num_known)
    return problem or _features_problem(item)


def _rows_problem(
    item: WorkItem, num_reserved: int, limits: EngineLimits, num_known: int
) -> str | None:
    """Return the problem with an item's rows, drafts or space; None if there is none."""
    stop, num_drafts = item.stop, len(item.drafts)
    num_own = stop - num_drafts
    if num_own > num_known:
        return f"it has no token {stop - 1}"
    is_hidden = item.output == "hidden"
    most_rows = item.num_tokens if is_hidden else limits.max_item_rows
    if not 0 <= item.num_rows <= min(item.num_tokens, most_rows):
        return f"{item.num_rows} rows of {item.num_tokens} tokens are not to be had"
    if num_drafts > limits.max_draft_tokens:
        return f"{num_drafts} drafts are over {limits.max_draft_tokens}"
    if num_drafts and num_own != num_known:
        return "drafts do not follow the newest token"
    if stop > num_reserved:
        return f"token {stop - 1} runs, but room is for {num_reserved}"
    return None


def _features_problem(item: WorkItem) -> str | None:
    """Return the problem with the features of an item's images; None if there is none."""
    for index, slot in enumerate(item.sequence.prompt.media):
        if slot.start >= item.stop or slot.stop <= item.start:
            continue
        features = item.sequence.features.get(index)
        if features is None:
            return f"image {index} has no features"
        if not features.num_tokens == features.embeddings.shape[0] == slot.num_features:
            return f"image {index} has features for {features.num_tokens} tokens"
        seen = features.extra.get("digest")
        if seen is None or bytes(np.from_dlpack(seen)) != bytes(
            np.from_dlpack(slot.inputs["digest"])
        ):
            return f"image {index} has the features of another picture"
    return None


def _reads_prompt(item: WorkItem) -> bool:
    """Tell whether an item is a chunk of a prefill, not the newest token of an answer."""
    is_answer = item.start >= item.sequence.num_prompt_tokens
    return not is_answer or item.num_tokens - len(item.drafts) > 1


def fingerprints_of(
    sequence: SequenceView, token_ids: Seq[int], start: int = 0, before: int = 0
) -> list[int]:
    """Return a number for each token that depends on it, its image and all tokens before it.

    The hash of a tuple of integers is the same in every process.
    """
    evidence, stop = token_ids, start + len(token_ids)
    if start < sequence.num_prompt_tokens and sequence.prompt.media:
        evidence = list(token_ids)
        for slot in sequence.prompt.media:
            seen = int.from_bytes(slot.digest[:8], "big")
            for position in range(max(start, slot.start), min(stop, slot.stop)):
                evidence[position - start] += seen
    fingerprints = []
    for value in evidence:
        before = hash((before, value))
        fingerprints.append(before)
    return fingerprints
