"""What watchers of a worker learn: its load and, if its operator allows, its prefix cache.

Both are collected by observers of the pipeline. The load also reaches gateways, with the statistics
of their sessions. A watcher that reads too slowly gets the whole cache again.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from vlmkit.interfaces.cache_events import CacheBlock as Block, CacheChange as Change
from vlmkit.interfaces.observer import Observer
from vlmkit.interfaces.runner import Runner
from vlmkit.running.fleet.waiting_tokens import waiting_tokens
from vlmkit_grpc.protocol.worker_pb2 import CacheBlock, CacheChange, Load, WatchReply

LOOK_S = 0.05  # between two looks at the load
MAX_BLOCKS = 100  # of one reply
MAX_CHANGES = 1000  # that wait for a watcher; then it gets the whole cache


class CacheObserver(Observer):
    """Keeps the index of the prefix cache, and passes its changes to watchers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[bytes, Block] = {}
        self._watchers: set[CacheWatcher] = set()

    def blocks(self, change: Change, at_s: float) -> None:  # noqa: ARG002
        """Apply a change, and pass it on."""
        with self._lock:
            if change.is_cleared:
                self._blocks.clear()
            for key in change.removed:
                self._blocks.pop(key, None)
            self._blocks |= {block.key: block for block in change.stored}
            for watcher in self._watchers:
                watcher.add(change)

    def join(self, watcher: "CacheWatcher") -> None:
        """Give a watcher every change from now on."""
        with self._lock:
            self._watchers.add(watcher)

    def leave(self, watcher: "CacheWatcher") -> None:
        """Give a watcher no more changes."""
        with self._lock:
            self._watchers.discard(watcher)

    def take(self, watcher: "CacheWatcher") -> list[Change]:
        """Return the changes that wait for a watcher; the whole index if it has lost some."""
        with self._lock:
            changes, watcher.changes = watcher.changes, []
            if watcher.needs_index:
                watcher.needs_index = False
                return [Change(tuple(self._blocks.values()), is_cleared=True)]
        return changes


class CacheWatcher:
    """The changes that wait for one watcher.

    Attributes:
        changes: in their order.
        needs_index: whether the whole index must be sent in their place.
    """

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.needs_index = True

    def add(self, change: Change) -> None:
        """Add a change; the observer's lock is held."""
        if self.needs_index:
            return
        self.changes.append(change)
        if len(self.changes) > MAX_CHANGES:
            self.changes, self.needs_index = [], True


async def replies(
    runner: Runner,
    cache: CacheObserver | None,
    is_draining: Callable[[], bool],
    is_over: Callable[[], bool],
) -> AsyncIterator[WatchReply]:
    """Yield the load and the changes of the cache until the worker ends.

    Args:
        runner: the runner of the worker.
        cache: collects the changes; None if they are not sent.
        is_draining: returns whether the worker drains.
        is_over: returns whether the worker ends.
    """
    watcher, last, number = CacheWatcher(), None, 0
    if cache is not None:
        cache.join(watcher)
    try:
        while True:
            is_last = is_over()
            load = load_of(runner, is_draining=is_draining())
            changes = [] if cache is None else cache.take(watcher)
            parts = [part for change in changes for part in _parts(change)]
            if load != last and not parts:
                number += 1
                yield WatchReply(number=number, load=load)
            for part in parts:
                number += 1
                yield WatchReply(number=number, load=load, cache=part)
            if is_last:
                return
            last = load
            await asyncio.sleep(LOOK_S)
    finally:
        if cache is not None:
            cache.leave(watcher)


def load_of(runner: Runner, *, is_draining: bool) -> Load:
    """Return the load of a worker."""
    stats = runner.stats()
    load = Load(
        waiting_tokens=waiting_tokens(stats),
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        is_full=runner.is_full,
        is_draining=is_draining,
    )
    if stats.num_free_tokens is not None:
        load.num_free_tokens = stats.num_free_tokens
    return load


def _parts(change: Change) -> Iterator[CacheChange]:
    """Yield a change in parts, each small enough for a message."""
    stored, removed = list(change.stored), list(change.removed)
    part = CacheChange(is_cleared=change.is_cleared)
    while True:
        part.removed.extend(removed[: 10 * MAX_BLOCKS])
        del removed[: 10 * MAX_BLOCKS]
        if not removed:
            part.stored.extend(map(_block, stored[:MAX_BLOCKS]))
            del stored[:MAX_BLOCKS]
        yield part
        if not stored and not removed:
            return
        part = CacheChange()


def _block(block: Block) -> CacheBlock:
    return CacheBlock(
        key=block.key,
        parent=block.parent,
        token_ids=block.tokens,
        media=block.media,
        scope=block.scope,
    )
