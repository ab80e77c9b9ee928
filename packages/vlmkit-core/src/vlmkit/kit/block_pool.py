"""Allocation and prefix sharing of KV cache blocks, for use inside paged engines.

Needs no torch; the core's scheduler does not see blocks. Prefixes are shared by chained hashes, as
in vLLM's automatic prefix caching (Kwon et al., 2023, arXiv:2309.06180). A block's key is a sha256
over these:

* the key of its parent block; the first parent is the scope, so tenants never share,
* its own tokens,
* the digests of the images that overlap it,
* the content of the atomic spans that begin in it, because each token of a span depends on it all.

Unused blocks keep their content until they are reused, least recently used first, and the tail of
a sequence before its head.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from vlmkit.interfaces.cache_events import CacheBlock, CacheListener
from vlmkit.interfaces.engine import Admission
from vlmkit.interfaces.prompt import Span
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.cache_index import media_within
from vlmkit.kit.prefix import num_shareable, whole


@dataclass(slots=True)
class _Table:
    """The block table of an admitted sequence: its blocks in order, and the keys of full ones."""

    blocks: list[int]
    keys: list[bytes] = field(default_factory=list)
    num_committed: int = 0


class BlockPool:
    """Allocates ``num_blocks`` blocks of ``block_tokens`` tokens each.

    Args:
        num_blocks: total number of blocks.
        block_tokens: tokens per block.
        shares_prefixes: whether later sequences can reuse full blocks.

    Attributes:
        listener: receives each block that is shared or reused for other content; None, the default,
            costs nothing.
    """

    def __init__(self, num_blocks: int, block_tokens: int, *, shares_prefixes: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.shares_prefixes = shares_prefixes
        self.listener: CacheListener | None = None
        self._num_users = [0] * num_blocks
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._tables: dict[SequenceView, _Table] = {}
        self._refused: tuple[str, list[bytes]] | None = None  # its admission is retried each step

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no admitted sequence uses."""
        return len(self._free)

    @property
    def num_sequences(self) -> int:
        """Number of admitted sequences."""
        return len(self._tables)

    def blocks(self, sequence: SequenceView) -> list[int]:
        """Return the blocks of an admitted sequence in order; the list must not be modified."""
        return self._tables[sequence].blocks

    def admit(
        self, sequence: SequenceView, usable: Callable[[int], int] | None = None
    ) -> Admission | None:
        """Allocate blocks for all present tokens and one more; None if there are too few.

        See ``vlmkit.interfaces.engine.Cache``.

        Args:
            sequence: a sequence that is not admitted.
            usable: maps a number of cached tokens to the number that may be shared; None shares
                all.
        """
        if sequence in self._tables:
            raise ValueError(f"sequence {sequence.id!r} is admitted already")
        table = _Table([])
        if self._refused is not None and self._refused[0] == sequence.id:
            table.keys = self._refused[1]
        shared = self._find_prefix(sequence, table, usable)
        num_new = self._num_blocks_for(len(sequence) + 1) - len(shared)
        if num_new > len(self._free) - sum(block in self._free for block in shared):
            self._refused = sequence.id, table.keys
            return None
        self._refused = None
        for block in shared:
            self._use(block)
        table.blocks = [*shared, *(self._take() for _ in range(num_new))]
        table.num_committed = len(shared)
        self._tables[sequence] = table
        return Admission(len(shared) * self.block_tokens)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Allocate blocks for the first ``num_tokens``; return False unchanged if full."""
        blocks = self._tables[sequence].blocks
        if num_tokens <= len(blocks) * self.block_tokens:  # true for nearly every token
            return True
        num_new = self._num_blocks_for(num_tokens) - len(blocks)
        if num_new > len(self._free):
            return False
        blocks.extend(self._take() for _ in range(num_new))
        return True

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Share the full blocks of the first ``num_tokens``, which are computed.

        Blocks with tokens that the plan of the prompt withholds are not shared.
        """
        if not self.shares_prefixes:
            return
        table = self._tables[sequence]
        num_full = num_shareable(sequence, num_tokens) // self.block_tokens
        for index in range(table.num_committed, num_full):
            key = self._key(sequence, table, index)
            block = table.blocks[index]
            if key not in self._block_of:  # otherwise another block has the same content
                self._key_of[block] = key
                self._block_of[key] = block
                if self.listener is not None:
                    self.listener.stored(self._cache_block(sequence, table, index))
        table.num_committed = max(table.num_committed, num_full)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Discard tokens from ``num_tokens`` on, and free the blocks that only they use.

        Raises:
            ValueError: one of these tokens was committed.
        """
        table = self._tables[sequence]
        if num_tokens // self.block_tokens < table.num_committed:
            raise ValueError(f"sequence {sequence.id!r} has more committed than {num_tokens}")
        num_kept = self._num_blocks_for(num_tokens)
        for block in reversed(table.blocks[num_kept:]):
            self._drop(block)
        del table.blocks[num_kept:]

    def release(self, sequence: SequenceView) -> None:
        """Free all blocks of an admitted sequence; committed ones stay shared until reused."""
        self._refused = None
        for block in reversed(self._tables.pop(sequence).blocks):
            self._drop(block)

    def is_cached(self, block: int) -> bool:
        """Return whether no sequence uses a block, and later sequences can reuse its content."""
        return block in self._free and block in self._key_of

    def forget(self, block: int) -> None:
        """Discard the content of a cached block; it is reused before others.

        Raises:
            ValueError: the block is not cached.
        """
        if not self.is_cached(block):
            raise ValueError(f"block {block} is not cached")
        self._remove_key(block)
        self._free.move_to_end(block, last=False)

    def check_integrity(self) -> None:
        """Raise AssertionError if the free list, user counts or keys are inconsistent."""
        users = [0] * self.num_blocks
        for table in self._tables.values():
            for block in table.blocks:
                users[block] += 1
        assert users == self._num_users, "user counts differ from the tables"
        assert {b for b, n in enumerate(users) if n == 0} == set(self._free), "free list is wrong"
        assert {b: k for k, b in self._block_of.items()} == self._key_of, "keys are not mutual"

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def _find_prefix(
        self, sequence: SequenceView, table: _Table, usable: Callable[[int], int] | None
    ) -> list[int]:
        """Return the blocks that hold the longest usable prefix of the sequence."""
        found: list[int] = []
        if not self.shares_prefixes:
            return found
        # The cache holds no output rows: positions of requested rows are always computed.
        for index in range(sequence.first_row // self.block_tokens):
            block = self._block_of.get(self._key(sequence, table, index))
            if block is None:
                break
            found.append(block)
        num_tokens = whole(sequence, len(found) * self.block_tokens, self.block_tokens)
        while usable is not None:
            fewer = whole(sequence, usable(num_tokens), self.block_tokens)
            if fewer == num_tokens:
                break
            num_tokens = fewer
        return found[: num_tokens // self.block_tokens]

    def _key(self, sequence: SequenceView, table: _Table, index: int) -> bytes:
        """Return the chained key of full block ``index``; computes missing keys before it."""
        while len(table.keys) <= index:
            number = len(table.keys)
            start = number * self.block_tokens
            stop = start + self.block_tokens
            parent = table.keys[-1] if number else hashlib.sha256(sequence.scope).digest()
            digest = hashlib.sha256(parent)
            digest.update(array("i", sequence.tokens(start, stop)).tobytes())
            for slot in sequence.prompt.media:
                if slot.start < stop and slot.stop > start:
                    digest.update(
                        slot.digest + (slot.start - start).to_bytes(8, "big", signed=True)
                    )
            for span in sequence.plan.spans:
                if start <= span.start < stop:  # keys of later blocks include it by the chain
                    digest.update(_content(sequence, span))
            table.keys.append(digest.digest())
        return table.keys[index]

    def _cache_block(self, sequence: SequenceView, table: _Table, index: int) -> CacheBlock:
        """Return what a listener receives of full block ``index``, whose key is computed."""
        start = index * self.block_tokens
        stop = start + self.block_tokens
        return CacheBlock(
            table.keys[index],
            table.keys[index - 1] if index else b"",
            tuple(sequence.tokens(start, stop)),
            media_within(sequence, start, stop),
            sequence.scope,
        )

    def _use(self, block: int) -> None:
        self._num_users[block] += 1
        self._free.pop(block, None)

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        if block in self._key_of:
            self._remove_key(block)
        self._num_users[block] = 1
        return block

    def _remove_key(self, block: int) -> None:
        key = self._key_of.pop(block)
        del self._block_of[key]
        if self.listener is not None:
            self.listener.removed(key)

    def _drop(self, block: int) -> None:
        self._num_users[block] -= 1
        if self._num_users[block] == 0:
            self._free[block] = None
            if block not in self._key_of:
                self._free.move_to_end(block, last=False)  # holds nothing worth keeping


def _content(sequence: SequenceView, span: Span) -> bytes:
    """Return a digest of a span's content and position."""
    digest = hashlib.sha256(b"".join(end.to_bytes(8, "big") for end in span))
    digest.update(array("i", sequence.tokens(*span)).tobytes())
    for slot in sequence.prompt.media:
        if slot.start < span.stop and slot.stop > span.start:
            digest.update(slot.digest + slot.start.to_bytes(8, "big"))
    return digest.digest()
