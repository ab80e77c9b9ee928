"""Which sequences hold which cells of the library's cache, in blocks of tokens.

A block of :class:`vlmkit.kit.block_pool.BlockPool` stands for the cells of as many positions. The
library identifies cells by sequence and position: each admitted sequence has one of its ids, and a
released sequence keeps its id while blocks of it may be shared. Computes nothing.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence as Seq
from typing import Protocol

from vlmkit.interfaces.engine import Admission
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool


class Memory(Protocol):
    """The cache of the library."""

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Let a sequence refer to cells of another one, of positions ``[start, stop)``."""

    def remove(self, seq_id: int, start: int, stop: int = -1) -> None:
        """Remove a sequence from its cells of positions ``[start, stop)``; -1 is the end."""


class CellTable:
    """The ids of sequences, and the blocks of each.

    Args:
        pool: allocates blocks.
        memory: the cells.
        max_sequences: most admitted sequences.
        num_ids: ids of the library, more than ``max_sequences``. The others belong to released
            sequences; the one released first is dropped for another.
    """

    def __init__(self, pool: BlockPool, memory: Memory, max_sequences: int, num_ids: int) -> None:
        self.pool = pool
        self._memory = memory
        self._max_sequences, self._max_kept = max_sequences, num_ids - max_sequences
        self._free = list(range(num_ids))
        self._ids: dict[SequenceView, int] = {}
        self._kept: OrderedDict[int, set[int]] = OrderedDict()  # blocks of released sequences
        self._holders: list[set[int]] = [set() for _ in range(pool.num_blocks)]
        self._places = [0] * pool.num_blocks  # of a block in its sequence
        self._num_computed: dict[int, int] = {}

    def seq_id(self, sequence: SequenceView) -> int:
        """Return the library's id of an admitted sequence."""
        return self._ids[sequence]

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Allocate blocks and share a prefix; None if full."""
        if len(self._ids) == self._max_sequences:
            return None
        if (admission := self.pool.admit(sequence)) is None:
            return None
        num_shared = admission.num_cached // self.pool.block_tokens
        blocks = self.pool.blocks(sequence)
        self._clear(blocks[num_shared:])
        seq_id = self._free.pop()
        for source, start, stop in self._sources(blocks[:num_shared]):
            self._memory.copy(source, seq_id, start, stop)
        self._ids[sequence] = seq_id
        self._num_computed[seq_id] = admission.num_cached
        self._hold(seq_id, blocks, 0)
        return admission

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Allocate blocks for the first ``num_tokens``; False, and no change, if full."""
        blocks = self.pool.blocks(sequence)
        num_before = len(blocks)
        if not self.pool.reserve(sequence, num_tokens):
            return False
        if len(blocks) > num_before:
            self._clear(blocks[num_before:])
            self._hold(self._ids[sequence], blocks, num_before)
        return True

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Remove the cells after the first ``num_tokens``."""
        blocks = list(self.pool.blocks(sequence))
        self.pool.truncate(sequence, num_tokens)
        seq_id = self._ids[sequence]
        for block in blocks[len(self.pool.blocks(sequence)) :]:
            self._holders[block].discard(seq_id)
        self._cut(seq_id, num_tokens)

    def before(self, sequence: SequenceView, start: int, stop: int) -> int:
        """Prepare cells for tokens ``[start, stop)``, also if they were computed; return the id."""
        seq_id = self._ids[sequence]
        self._cut(seq_id, start)
        self._num_computed[seq_id] = stop
        return seq_id

    def release(self, sequence: SequenceView) -> None:
        """Free the blocks of a sequence; keep its id for those that may be shared."""
        blocks = list(self.pool.blocks(sequence))
        self.pool.release(sequence)
        seq_id = self._ids.pop(sequence)
        del self._num_computed[seq_id]
        kept = {b for b in blocks if self.pool.is_cached(b) and self._holders[b] == {seq_id}}
        others = [block for block in blocks if block not in kept]
        for block in others:
            self._holders[block].discard(seq_id)
        end = max((place + 1 for place, block in enumerate(blocks) if block in kept), default=0)
        self._memory.remove(seq_id, end * self.pool.block_tokens)
        self._remove(seq_id, [block for block in others if self._places[block] < end])
        if kept:
            self._kept[seq_id] = kept
        else:
            self._free.append(seq_id)
        while len(self._kept) > self._max_kept:
            self._drop_oldest()

    # Helpers

    def _hold(self, seq_id: int, blocks: Seq[int], first: int) -> None:
        for place in range(first, len(blocks)):
            self._holders[blocks[place]].add(seq_id)
            self._places[blocks[place]] = place

    def _cut(self, seq_id: int, num_tokens: int) -> None:
        if self._num_computed[seq_id] > num_tokens:
            self._memory.remove(seq_id, num_tokens)
            self._num_computed[seq_id] = num_tokens

    def _sources(self, blocks: Seq[int]) -> Iterator[tuple[int, int, int]]:
        """Yield who holds blocks, and the positions, merged where one sequence holds several."""
        size, start, source = self.pool.block_tokens, 0, -1
        for place, block in enumerate(blocks):
            if source in self._holders[block]:
                continue
            if place:
                yield source, start * size, place * size
            source, start = min(self._holders[block]), place
        if blocks:
            yield source, start * size, len(blocks) * size

    def _clear(self, blocks: Iterable[int]) -> None:
        """Remove the former content of blocks that are used anew."""
        by_id: dict[int, list[int]] = {}
        for block in blocks:
            for seq_id in self._holders[block]:
                by_id.setdefault(seq_id, []).append(block)
        for seq_id, held in by_id.items():
            self._remove(seq_id, held)
            kept = self._kept[seq_id]
            kept.difference_update(held)
            for block in held:
                self._holders[block].discard(seq_id)
            if not kept:
                del self._kept[seq_id]
                self._free.append(seq_id)

    def _remove(self, seq_id: int, blocks: Iterable[int]) -> None:
        """Remove a sequence from the cells of blocks, with one call for each range."""
        size, ranges = self.pool.block_tokens, list[list[int]]()
        for place in sorted(self._places[block] for block in blocks):
            if ranges and ranges[-1][1] == place:
                ranges[-1][1] += 1
            else:
                ranges.append([place, place + 1])
        for start, stop in ranges:
            self._memory.remove(seq_id, start * size, stop * size)

    def _drop_oldest(self) -> None:
        seq_id, blocks = self._kept.popitem(last=False)
        self._memory.remove(seq_id, 0)
        for block in blocks:
            self._holders[block].discard(seq_id)
            if not self._holders[block]:  # otherwise an admitted sequence uses it
                self.pool.forget(block)
        self._free.append(seq_id)
