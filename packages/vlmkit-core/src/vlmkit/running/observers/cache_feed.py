"""The cache events of one engine, collected into one change for each step.

It keeps a copy of the engine's index of shared blocks, so that an observer that lost changes
receives the whole index again. It exists only if an observer receives cache events.
"""

import threading
from collections.abc import Iterable
from typing import Protocol

from vlmkit.interfaces.cache_events import CacheBlock, CacheChange


class ChangeReceiver(Protocol):
    """An observer's queue of changes."""

    def enqueue_change(self, change: CacheChange) -> None:
        """Queue a change, or request the whole index if there is no room."""
        ...


class CacheFeed:
    """Collects events and sends the change of each step to receivers: a :class:`.CacheListener`.

    The loop's thread calls everything but :meth:`snapshot`.

    Args:
        receivers: get each change.

    Attributes:
        lock: held while a change is sent; a receiver that holds it misses no change.
    """

    def __init__(self, receivers: Iterable[ChangeReceiver]) -> None:
        self._receivers = tuple(receivers)
        self._index: dict[bytes, CacheBlock] = {}
        self._stored: dict[bytes, CacheBlock] = {}
        self._removed: dict[bytes, None] = {}
        self._is_cleared = False
        self.lock = threading.Lock()

    def stored(self, block: CacheBlock) -> None:
        """Note a stored block; one that was removed in the same step has not changed."""
        if block.key in self._removed:
            del self._removed[block.key]
        else:
            self._stored[block.key] = block

    def removed(self, key: bytes) -> None:
        """Note a removed block; one that was stored in the same step is never reported."""
        if self._stored.pop(key, None) is None:
            self._removed[key] = None

    def cleared(self) -> None:
        """Note that no block is stored any more."""
        self._stored.clear()
        self._removed.clear()
        self._is_cleared = True

    def apply(self, change: CacheChange) -> None:
        """Note a change as a whole, and send it."""
        if change.is_cleared:
            self.cleared()
        for key in change.removed:
            self.removed(key)
        for block in change.stored:
            self.stored(block)
        self.flush()

    def flush(self) -> None:
        """Send what changed since the last call, if anything did."""
        if not (self._stored or self._removed or self._is_cleared):
            return
        change = CacheChange(tuple(self._stored.values()), tuple(self._removed), self._is_cleared)
        with self.lock:
            if change.is_cleared:
                self._index.clear()
            for key in change.removed:
                self._index.pop(key, None)
            self._index.update(self._stored)
            for receiver in self._receivers:
                receiver.enqueue_change(change)
        self._stored.clear()
        self._removed.clear()
        self._is_cleared = False

    def snapshot(self) -> CacheChange:
        """Return the whole index as a cleared change; the caller holds the lock."""
        return CacheChange(tuple(self._index.values()), is_cleared=True)
