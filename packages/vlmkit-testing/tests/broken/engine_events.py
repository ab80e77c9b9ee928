"""Engines that emit wrong cache events, or none."""

from typing import Any

from honest.engine import AttentionEngine
from msgspec.structs import replace

from broken.broken import Broken
from vlmkit.interfaces.cache_events import CacheBlock, CacheListener
from vlmkit.interfaces.engine import Admission
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool


class Changed:
    """Passes events on to a listener, some of them changed."""

    def __init__(self, listener: CacheListener) -> None:
        self.listener = listener

    def stored(self, block: CacheBlock) -> None:
        self.listener.stored(block)

    def removed(self, key: bytes) -> None:
        self.listener.removed(key)

    def cleared(self) -> None:
        self.listener.cleared()


class EmitsChanged(AttentionEngine):
    Events: type[Changed] = Changed

    def set_cache_listener(self, listener: CacheListener) -> None:
        self.pool.listener = self.Events(listener)


class NeverReportsRemovedBlocks(EmitsChanged):
    class Events(Changed):
        keys: set[bytes]

        def stored(self, block: CacheBlock) -> None:
            self.keys = getattr(self, "keys", set())
            if block.key not in self.keys:
                self.keys.add(block.key)
                self.listener.stored(block)

        def removed(self, key: bytes) -> None:
            pass


class ReportsNothing(AttentionEngine):
    def set_cache_listener(self, listener: CacheListener) -> None:
        pass


class ReportsOnlyTheFirstBlock(EmitsChanged):
    class Events(Changed):
        def stored(self, block: CacheBlock) -> None:
            if not block.parent:
                self.listener.stored(block)

        def removed(self, key: bytes) -> None:
            pass


class ReportsBlocksTwice(EmitsChanged):
    class Events(Changed):
        def stored(self, block: CacheBlock) -> None:
            for _ in range(2):
                self.listener.stored(block)


class ReportsBlocksAtAdmission(AttentionEngine):
    listener: Any = None

    def set_cache_listener(self, listener: CacheListener) -> None:
        self.listener = listener

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        if admission is not None and self.listener is not None:
            table = self.pool._tables[sequence]
            for index in range(table.num_committed, len(sequence) // self.pool.block_tokens):
                self.pool._key(sequence, table, index)
                self.listener.stored(self.pool._cache_block(sequence, table, index))
        return admission


class OmitsImagesOfBlocks(EmitsChanged):
    class Events(Changed):
        def stored(self, block: CacheBlock) -> None:
            self.listener.stored(replace(block, media=()))


class OmitsParents(EmitsChanged):
    class Events(Changed):
        def stored(self, block: CacheBlock) -> None:
            self.listener.stored(replace(block, parent=b""))


class OmitsScopes(EmitsChanged):
    class Events(Changed):
        def stored(self, block: CacheBlock) -> None:
            self.listener.stored(replace(block, scope=b""))


class KeysBlocksByTokens(EmitsChanged):
    """Uses keys in which scopes and images have no part."""

    class Events(Changed):
        def stored(self, block: CacheBlock) -> None:
            key, parent = self.key(block), getattr(self, "last", b"") if block.parent else b""
            self.last = key
            self.listener.stored(replace(block, key=key, parent=parent))

        def key(self, block: CacheBlock) -> bytes:
            return (getattr(self, "last", b"") if block.parent else b"") + bytes(block.tokens)


class ReportsBlocksOfEachSequence(AttentionEngine):
    class Pool(BlockPool):
        def commit(self, sequence: SequenceView, num_tokens: int) -> None:
            table = self._tables[sequence]
            first, listener, self.listener = table.num_committed, self.listener, None
            super().commit(sequence, num_tokens)
            self.listener = listener
            if listener is not None:
                for index in range(first, table.num_committed):
                    listener.stored(self._cache_block(sequence, table, index))


EVENTS = (
    Broken(
        ReportsBlocksOfEachSequence,
        "A block is reported once, also if two sequences compute it.",
        "a_prefix_that_two_sequences_compute_is_reported_once",
    ),
    Broken(
        NeverReportsRemovedBlocks,
        "A listener receives the keys of evicted blocks.",
        "cache_events_report_evicted_blocks",
    ),
    Broken(
        ReportsNothing,
        "A listener receives each block that later sequences can reuse.",
        "cache_events_describe_what_admit_finds",
    ),
    Broken(
        ReportsOnlyTheFirstBlock,
        "A listener receives all blocks of a prefix.",
        "cache_events_describe_what_admit_finds",
    ),
    Broken(
        ReportsBlocksTwice,
        "A stored block is reported once.",
        "reported_blocks_are_those_of_the_sequence",
    ),
    Broken(
        ReportsBlocksAtAdmission,
        "A block is reported when its tokens are committed, not before.",
        "only_committed_blocks_are_reported",
    ),
    Broken(
        OmitsImagesOfBlocks,
        "A block has the digests of its media.",
        "reported_blocks_are_those_of_the_sequence",
    ),
    Broken(
        OmitsParents,
        "A block has the key of the block before it.",
        "reported_blocks_are_those_of_the_sequence",
    ),
    Broken(
        OmitsScopes,
        "A block has the scope of its sequence.",
        "reported_blocks_are_those_of_the_sequence",
    ),
    Broken(
        KeysBlocksByTokens,
        "Blocks of different scopes have different keys.",
        "equal_tokens_of_other_scopes_or_pictures_have_other_keys",
    ),
)
