"""Changes of a cache as encoded batches of bounded size."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from vlmkit.interfaces.cache_events import CacheBlock, CacheChange
from vlmkit_events.settings import KvEventsSettings
from vlmkit_events.wire import (
    AllBlocksCleared,
    AllBlocksClearedArray,
    Batch,
    BlockRemoved,
    BlockRemovedArray,
    BlockStored,
    BlockStoredArray,
    Hash,
    int_hash,
)

MAX_BLOCKS = 1024  # of one batch
MAX_TOKENS = 65_536  # of one batch, unless a single block has more
SCOPE = "vlmkit-scope:"  # tells a scope from the digests of images, which are 64 hex digits alone


class BatchEncoder:
    """Encodes changes.

    Args:
        settings: the encoding.
        rank: the number of the replica whose cache changes.
    """

    def __init__(self, settings: KvEventsSettings, rank: int) -> None:
        is_array = settings.encoding == "array"
        self._stored: Any = BlockStoredArray if is_array else BlockStored
        self._removed: Any = BlockRemovedArray if is_array else BlockRemoved
        self._cleared: Any = AllBlocksClearedArray if is_array else AllBlocksCleared
        self._publishes_scopes = settings.publishes_scopes
        self._has_ints = settings.block_hashes == "int"
        self._rank = rank
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, change: CacheChange, at_s: float) -> Iterator[bytes]:
        """Yield the batches of a change, whose events give the same when applied in order."""
        events: list[Any] = [self._cleared()] if change.is_cleared else []
        for start in range(0, len(change.removed), MAX_BLOCKS):
            keys = change.removed[start : start + MAX_BLOCKS]
            events.append(self._removed(block_hashes=[self._hash(key) for key in keys]))
            yield self._packed(events, at_s)
            events = []
        num_blocks = num_tokens = 0
        for chain in _chains(_parents_first(change.stored)):
            num_blocks += len(chain)
            num_tokens += sum(len(block.tokens) for block in chain)
            if events and (num_blocks > MAX_BLOCKS or num_tokens > MAX_TOKENS):
                yield self._packed(events, at_s)
                events, num_blocks = [], len(chain)
                num_tokens = sum(len(block.tokens) for block in chain)
            events.append(self._stored_of(chain))
        if events:
            yield self._packed(events, at_s)

    def _packed(self, events: list[Any], at_s: float) -> bytes:
        return self._encoder.encode(Batch(at_s, events, self._rank))

    def _hash(self, key: bytes) -> Hash:
        return int_hash(key) if self._has_ints else key

    def _stored_of(self, chain: list[CacheBlock]) -> Any:
        first = chain[0]
        return self._stored(
            block_hashes=[self._hash(block.key) for block in chain],
            parent_block_hash=self._hash(first.parent) if first.parent else None,
            token_ids=[token for block in chain for token in block.tokens],
            block_size=len(first.tokens),
            extra_keys=[self._extra_keys(block) for block in chain],
        )

    def _extra_keys(self, block: CacheBlock) -> tuple[str, ...] | None:
        """Return the digests of a block's media, and its scope if it is the first of a prompt."""
        keys = [digest.hex() for digest in block.media]
        if self._publishes_scopes and block.scope and not block.parent:
            keys.append(SCOPE + block.scope.hex())
        return tuple(keys) or None


def _parents_first(blocks: Iterable[CacheBlock]) -> Iterator[CacheBlock]:
    """Yield blocks so that each follows its parent, if that is one of them."""
    found = {block.key: block for block in blocks}
    children: dict[bytes, list[CacheBlock]] = {}
    roots = []
    for block in found.values():
        if block.parent in found:
            children.setdefault(block.parent, []).append(block)
        else:
            roots.append(block)
    waiting = roots[::-1]
    while waiting:
        block = waiting.pop()
        yield block
        waiting += children.get(block.key, ())[::-1]


def _chains(blocks: Iterable[CacheBlock]) -> Iterator[list[CacheBlock]]:
    """Yield runs of equally large blocks, each the parent of the next, as a batch may hold them."""
    chain: list[CacheBlock] = []
    num_tokens = 0
    for block in blocks:
        num_tokens += len(block.tokens)
        is_next = chain and block.parent == chain[-1].key
        fits = len(chain) < MAX_BLOCKS and num_tokens <= MAX_TOKENS
        if not (is_next and fits and len(block.tokens) == len(chain[0].tokens)):
            if chain:
                yield chain
            chain, num_tokens = [], len(block.tokens)
        chain.append(block)
    if chain:
        yield chain
