"""Cache events: which blocks of prefixes an engine's cache holds, and which it removed.

Values only. An engine that is an :class:`vlmkit.interfaces.engine.EmitsCacheEvents` reports blocks
to a :class:`CacheListener`, and observers receive the changes of each step
(:meth:`vlmkit.interfaces.observer.Observer.blocks`). The blocks hold tokens of clients, so they are
for operators: they must not reach pages, metrics or logs.
"""

from typing import Protocol

import msgspec


class CacheBlock(msgspec.Struct, frozen=True, gc=False):
    """One block of a cached prefix. Its ``repr`` shows no tokens, so that no log contains them.

    Attributes:
        key: identifies the block together with all blocks before it; equal keys mean equal content
            in the same scope. Opaque: two kinds of engines compute different keys.
        parent: the key of the block before it; empty for the first block of a prefix.
        tokens: its token ids.
        media: the digests of the media whose tokens it contains, in order.
        scope: the cache scope of the requests that may reuse it.
    """

    key: bytes
    parent: bytes
    tokens: tuple[int, ...]
    media: tuple[bytes, ...] = ()
    scope: bytes = b""

    def __repr__(self) -> str:
        return f"CacheBlock(key={self.key.hex()!r}, num_tokens={len(self.tokens)})"


class CacheChange(msgspec.Struct, frozen=True):
    """What changed in a cache since the previous change.

    The parts apply in this order: an index is emptied if ``is_cleared``, then the removed blocks
    leave it, then the stored ones enter it. A block may stay while its parent is removed; it can be
    reused again when an equal parent is stored.

    Attributes:
        stored: blocks that later requests can reuse from now on.
        removed: the keys of blocks that they cannot reuse any more.
        is_cleared: whether everything before was removed, too.
    """

    stored: tuple[CacheBlock, ...] = ()
    removed: tuple[bytes, ...] = ()
    is_cleared: bool = False

    def __repr__(self) -> str:
        return (
            f"CacheChange(num_stored={len(self.stored)}, num_removed={len(self.removed)}, "
            f"is_cleared={self.is_cleared})"
        )


class CacheListener(Protocol):
    """Receives the cache events of one engine, in the thread of the engine's methods."""

    def stored(self, block: CacheBlock) -> None:
        """A block is committed, so that later sequences can reuse it; its key was not stored."""
        ...

    def removed(self, key: bytes) -> None:
        """A stored block cannot be reused any more."""
        ...

    def cleared(self) -> None:
        """No stored block can be reused any more."""
        ...
