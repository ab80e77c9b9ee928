"""Which sequences hold which cells of the library's cache, in blocks of tokens.

A block of :class:`vlmkit.kit.block_pool.BlockPool` stands for the cells of as many positions. The
library identifies cells by sequence and position: each admitted sequence has one of its ids. Only
admitted sequences have cells, because each computation reads all cells in use, also those of other
sequences. Blocks of released sequences, which may be shared, are saved in ordinary memory.
Computes nothing.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence as Seq
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from vlmkit.errors import EngineError
from vlmkit.interfaces.cache_events import CacheListener
from vlmkit.interfaces.engine import Admission
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool
from vlmkit_llama.layout import TEXT, PromptImages

log = logging.getLogger(__name__)

PIECE_TOKENS = 256
"""The most tokens that are saved together: cells that are free beside those of blocks."""


class Memory(Protocol):
    """The cache of the library."""

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Let a sequence refer to cells of another one, of positions ``[start, stop)``."""

    def remove(self, seq_id: int, start: int, stop: int = -1) -> None:
        """Remove a sequence from its cells of positions ``[start, stop)``; -1 is the end."""

    def save(self, seq_id: int) -> bytearray:
        """Return what the cells of a sequence hold; MemoryError if there is too little memory."""

    def load(self, seq_id: int, saved: bytearray) -> None:
        """Give a sequence without cells those that were saved; EngineError if it cannot."""


class CellTable:
    """The ids of sequences, and the blocks of each.

    Args:
        pool: allocates blocks. The cache has cells for them, and ``PIECE_TOKENS`` more.
        memory: the cells.
        max_sequences: most admitted sequences; the library has one id more.
    """

    def __init__(self, pool: BlockPool, memory: Memory, max_sequences: int) -> None:
        self.pool = pool
        self._memory = memory
        self._spare = max_sequences  # an id for cells on their way
        self._free = list(range(max_sequences))
        self._ids: dict[SequenceView, int] = {}
        self._holders: list[set[int]] = [set() for _ in range(pool.num_blocks)]
        self._num_computed: dict[int, int] = {}
        self._saved = _SavedBlocks(pool)

    @property
    def num_free_tokens(self) -> int:
        """Tokens that no admitted sequence has room for."""
        return self.pool.num_free_blocks * self.pool.block_tokens

    def listen(self, listener: CacheListener) -> None:
        """Report shared and removed blocks to a listener."""
        self.pool.listener = listener

    def seq_id(self, sequence: SequenceView) -> int:
        """Return the library's id of an admitted sequence."""
        return self._ids[sequence]

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Allocate blocks and share a prefix; None if full.

        A saved prefix that cannot be restored is forgotten, and computed again.
        """
        if not self._free or (admission := self.pool.admit(sequence)) is None:
            return None
        num_shared = admission.num_cached // self.pool.block_tokens
        blocks = self.pool.blocks(sequence)
        self._saved.drop(blocks[num_shared:])
        seq_id = self._free[-1]
        try:
            self._share(seq_id, blocks[:num_shared])
        except EngineError as error:  # it would end the engine
            log.warning("a saved prefix could not be restored, and is computed again: %s", error)
            self._undo(sequence, seq_id, blocks[:num_shared])
            return self.admit(sequence)
        self._ids[sequence] = self._free.pop()
        self._num_computed[seq_id] = admission.num_cached
        for block in blocks:
            self._holders[block].add(seq_id)
        return admission

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Allocate blocks for the first ``num_tokens``; False, and no change, if full."""
        blocks = self.pool.blocks(sequence)
        num_before = len(blocks)
        if not self.pool.reserve(sequence, num_tokens):
            return False
        if len(blocks) > num_before:
            self._saved.drop(blocks[num_before:])
            for block in blocks[num_before:]:
                self._holders[block].add(self._ids[sequence])
        return True

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Let other sequences start from the first ``num_tokens``."""
        self.pool.commit(sequence, num_tokens)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Remove the cells after the first ``num_tokens``, which end outside images."""
        blocks = list(self.pool.blocks(sequence))
        self.pool.truncate(sequence, num_tokens)
        seq_id = self._ids[sequence]
        for block in blocks[len(self.pool.blocks(sequence)) :]:
            self._holders[block].discard(seq_id)
        self._cut(sequence, num_tokens)

    def before(self, sequence: SequenceView, start: int, stop: int) -> tuple[int, int]:
        """Prepare cells for tokens ``[start, stop)``, also if they were computed.

        Returns:
            The id, and the first token to compute: an image may have to be computed again.
        """
        start = self._cut(sequence, start)
        seq_id = self._ids[sequence]
        self._num_computed[seq_id] = stop
        return seq_id, start

    def release(self, sequence: SequenceView) -> None:
        """Free the cells of a sequence; save those of blocks that may be shared."""
        blocks = list(self.pool.blocks(sequence))
        self.pool.release(sequence)
        seq_id = self._ids.pop(sequence)
        del self._num_computed[seq_id]
        for block in blocks:
            self._holders[block].discard(seq_id)
        self._save(seq_id, blocks)
        self._memory.remove(seq_id, 0)
        self._free.append(seq_id)

    # Helpers

    def _cut(self, sequence: SequenceView, num_tokens: int) -> int:
        """Remove the cells after the first ``num_tokens``; return how many tokens are left."""
        seq_id = self._ids[sequence]
        if self._num_computed[seq_id] <= num_tokens:
            return num_tokens
        images: PromptImages = sequence.plan.state or TEXT
        left = images.begin(num_tokens)
        self._memory.remove(seq_id, images.position(left))
        self._num_computed[seq_id] = left
        return left

    def _share(self, seq_id: int, blocks: Seq[int]) -> None:
        """Give a sequence the cells of its first blocks: by reference, or as they were saved."""
        size = self.pool.block_tokens
        start = 0
        for source, shared in groupby(blocks, self._source):
            stop = start + len(list(shared)) * size
            if isinstance(source, _Piece):
                self._memory.load(self._spare, source.saved)
                self._memory.copy(self._spare, seq_id, start, stop)
                self._memory.remove(self._spare, 0)
            else:
                self._memory.copy(source, seq_id, start, stop)
            start = stop

    def _undo(self, sequence: SequenceView, seq_id: int, shared: Seq[int]) -> None:
        """Release a sequence that got no cells, and forget what was saved of its prefix."""
        self.pool.release(sequence)
        for each in (seq_id, self._spare):
            self._memory.remove(each, 0)
        unused = [block for block in shared if self.pool.is_cached(block)]
        for block in reversed(unused):
            self.pool.forget(block)
        self._saved.drop(unused)

    def _source(self, block: int) -> "int | _Piece":
        """Return which sequence has the cells of a block, or the piece that they were saved in."""
        return min(self._holders[block]) if self._holders[block] else self._saved.piece(block)

    def _save(self, seq_id: int, blocks: Seq[int]) -> None:
        """Save the blocks of a released sequence that can be shared and are not saved yet."""
        size = self.pool.block_tokens
        wanted = [
            place
            for place, block in enumerate(blocks)
            if self.pool.is_cached(block) and block not in self._saved
        ]
        for start, stop in _runs(wanted, PIECE_TOKENS // size):
            self._memory.copy(seq_id, self._spare, start * size, stop * size)
            try:
                self._saved.add(self._memory.save(self._spare), blocks[start:stop])
            except MemoryError:
                for block in reversed(blocks[start:stop]):
                    self.pool.forget(block)
            self._memory.remove(self._spare, 0)


@dataclass(eq=False)
class _Piece:
    """Blocks that were saved together.

    Attributes:
        saved: what their cells hold.
        num_blocks: how many they were.
        blocks: those that are not reused for other content.
    """

    saved: bytearray
    num_blocks: int
    blocks: set[int]


class _SavedBlocks:
    """Saved blocks, in at most as much memory as the cells of a pool.

    Args:
        pool: of the blocks.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._piece_of: dict[int, _Piece] = {}
        self._pieces: OrderedDict[_Piece, None] = OrderedDict()  # the oldest first
        self._num_blocks = 0

    def __contains__(self, block: int) -> bool:
        return block in self._piece_of

    def piece(self, block: int) -> _Piece:
        """Return the piece of a saved block."""
        return self._piece_of[block]

    def add(self, saved: bytearray, blocks: Iterable[int]) -> None:
        """Keep blocks that are not saved; drop the oldest pieces if there are too many."""
        piece = _Piece(saved, 0, set(blocks))
        piece.num_blocks = len(piece.blocks)
        self._piece_of.update(dict.fromkeys(piece.blocks, piece))
        self._pieces[piece] = None
        self._num_blocks += piece.num_blocks
        while self._num_blocks > self._pool.num_blocks:
            self._drop_oldest()

    def drop(self, blocks: Iterable[int]) -> None:
        """Drop what was saved of blocks that get other content."""
        for block in blocks:
            if (piece := self._piece_of.pop(block, None)) is not None:
                piece.blocks.discard(block)
                if not piece.blocks:
                    self._remove(piece)

    def _drop_oldest(self) -> None:
        piece = next(iter(self._pieces))
        for block in piece.blocks:
            del self._piece_of[block]
            if self._pool.is_cached(block):  # otherwise an admitted sequence uses it
                self._pool.forget(block)
        self._remove(piece)

    def _remove(self, piece: _Piece) -> None:
        del self._pieces[piece]
        self._num_blocks -= piece.num_blocks


def _runs(places: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of consecutive numbers, each of at most ``most``."""
    start = stop = -1
    for place in places:
        if place != stop or stop - start == most:
            if stop > start:
                yield start, stop
            start = place
        stop = place + 1
    if stop > start:
        yield start, stop
