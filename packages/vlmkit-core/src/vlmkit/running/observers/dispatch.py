"""Dispatch of events to observers, so that no observer can delay or break a request.

Each observer has a queue and a thread, and the caller only appends to queues. An observer that
raises is disabled, and the log reports it once. A slow observer drops (and counts) events, but
always receives the end of a request that it saw start, so it can free what it keeps of it. After
lost cache events it receives the whole index of blocks. Events that no observer handles are not
queued.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, get_args

from vlmkit.interfaces.cache_events import CacheChange
from vlmkit.interfaces.observer import Observer
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.running.observers.cache_feed import CacheFeed

log = logging.getLogger(__name__)

MAX_QUEUED_EVENTS = 50_000  # of one observer; a second or two of a busy server's tokens
MAX_QUEUED_BLOCKS = 200_000  # of one observer, in its queued changes: about 100 MB
BATCH_S = 0.02  # events are delivered in batches: a wake-up for each would slow the loop
CLOSE_S = 5.0  # for the last events; then a slow observer is abandoned

Event = Literal["accepted", "first_token", "tokens", "finished", "failed", "step", "blocks"]
EVENTS: tuple[Event, ...] = get_args(Event)
END_EVENTS = frozenset[Event]({"finished", "failed"})


class ObserverDispatch:
    """Sends the events of one pipeline to its observers.

    Only one thread at a time may call it.

    Args:
        observers: the observers, by name.
        component_names: the names of their providers.

    Attributes:
        cache_feed: collects the engine's cache events; None if no observer handles them.
    """

    def __init__(
        self, observers: Mapping[str, Observer], component_names: ComponentNames = UNKNOWN
    ) -> None:
        self._threads = {
            name: _ObserverThread(name, o, component_names.of("observer", name))
            for name, o in observers.items()
        }
        self._by_event = {
            event: [thread for thread in self._threads.values() if thread.handles(event)]
            for event in EVENTS
        }
        receivers = self._by_event["blocks"]
        self.cache_feed = CacheFeed(receivers) if receivers else None

    def handles(self, event: Event) -> bool:
        """Return whether any observer handles an event."""
        return bool(self._by_event[event])

    def notify(self, event: Event, *facts: object, at_s: float | None = None) -> None:
        """Queue an event for all observers that handle it; the facts must not change any more.

        Args:
            event: its name.
            facts: what the observers get.
            at_s: when it happened, in seconds since the epoch; now if None.
        """
        for thread in self._by_event[event]:
            thread.enqueue(event, facts, at_s)

    def start_cache_events(self) -> None:
        """Send the observers of cache events their first change; the engine emits them now."""
        if self.cache_feed is not None:
            for thread in self._by_event["blocks"]:
                thread.request_index(self.cache_feed)

    def stats(self) -> dict[str, dict[str, float]]:
        """Return the statistics of each observer, by its name."""
        return {name: thread.stats() for name, thread in self._threads.items()}

    def close(self) -> None:
        """Deliver the queued events, then close every observer; no event may follow."""
        for thread in self._threads.values():
            thread.stop()
        deadline = time.monotonic() + CLOSE_S
        for thread in self._threads.values():
            thread.join(deadline)


class _ObserverThread:
    """One observer with its event queue and its thread."""

    def __init__(self, name: str, observer: Observer, name_in_log: str) -> None:
        self._name = name_in_log
        self._observer = observer
        self._events: deque[tuple[Event, tuple[object, ...], float]] = deque()
        self._open_requests: set[object] = set()  # requests whose end must be delivered
        self._tracks_requests = all(map(self.handles, ("accepted", *END_EVENTS)))
        self._num_dropped = 0
        self._cache_feed: CacheFeed | None = None
        self._needs_index = False  # the whole index is sent once the queue is empty
        self._num_blocks_queued = 0  # over all time; written with the feed's lock held
        self._num_blocks_delivered = 0  # over all time; written by the observer's thread
        self._is_disabled = False
        self._has_events = threading.Event()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"vlmkit-{name}", daemon=True)
        self._thread.start()

    def handles(self, event: Event) -> bool:
        """Return whether the observer overrides the method of an event."""
        return getattr(type(self._observer), event, None) is not getattr(Observer, event)

    def enqueue(self, event: Event, facts: tuple[object, ...], at_s: float | None) -> None:
        if self._is_disabled:
            return
        must_deliver = event in END_EVENTS and facts[0] in self._open_requests
        if len(self._events) >= MAX_QUEUED_EVENTS and not must_deliver:
            self._drop()
            return
        if must_deliver:
            self._open_requests.remove(facts[0])
        elif event == "accepted" and self._tracks_requests:
            self._open_requests.add(facts[0])
        self._append(event, facts, at_s)

    def request_index(self, cache_feed: CacheFeed) -> None:
        """Send the observer the whole index of cache blocks, and then every change."""
        self._cache_feed, self._needs_index = cache_feed, True
        self._has_events.set()

    def enqueue_change(self, change: CacheChange) -> None:
        """Queue a change of cache blocks; called with the feed's lock held."""
        if self._is_disabled or self._needs_index:  # the index will contain this change
            return
        num_waiting = self._num_blocks_queued - self._num_blocks_delivered
        num_blocks = _num_blocks(change)
        has_room = len(self._events) < MAX_QUEUED_EVENTS
        if not has_room or (num_waiting and num_waiting + num_blocks > MAX_QUEUED_BLOCKS):
            self._drop()
            self._needs_index = True
            return
        self._num_blocks_queued += num_blocks
        self._append("blocks", (change,))

    def _drop(self) -> None:
        if not self._num_dropped:
            log.warning("%s is too slow and drops events", self._name)
        self._num_dropped += 1

    def _append(self, event: Event, facts: tuple[object, ...], at_s: float | None = None) -> None:
        self._events.append((event, facts, time.time() if at_s is None else at_s))
        if not self._has_events.is_set():
            self._has_events.set()

    def stats(self) -> dict[str, float]:
        numbers: Mapping[str, float] = {}
        try:
            numbers = self._observer.stats()
        except Exception:
            log.exception("the statistics of %s failed", self._name)
        return {**numbers, "num_events_lost": self._num_dropped}

    def stop(self) -> None:
        self._is_stopping.set()
        self._has_events.set()

    def join(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning(
                "%s did not close in time; %d events are lost", self._name, len(self._events)
            )

    def _run(self) -> None:
        try:
            while not self._is_stopping.is_set():
                self._has_events.wait()
                self._is_stopping.wait(BATCH_S)
                self._has_events.clear()
                self._deliver()
            self._deliver()
        except BaseException:  # a panic of a Rust library is no Exception
            self._is_disabled = True
            self._events.clear()
            self._open_requests.clear()
            log.exception("%s failed and is switched off", self._name)
        try:
            self._observer.close()
        except Exception:
            log.exception("%s could not be closed", self._name)

    def _deliver(self) -> None:
        while True:
            while self._events:
                event, facts, at_s = self._events.popleft()
                method: Any = getattr(self._observer, event)
                method(*facts, at_s)
                if event == "blocks":
                    self._num_blocks_delivered += sum(map(_num_blocks, facts))
            if not self._needs_index or self._cache_feed is None:
                return
            self._queue_index(self._cache_feed)

    def _queue_index(self, cache_feed: CacheFeed) -> None:
        """Queue the whole index, unless an older change is still to be delivered."""
        with cache_feed.lock:
            if self._events:
                return
            self._needs_index = False
            index = cache_feed.snapshot()
            self._num_blocks_queued += _num_blocks(index)
            self._append("blocks", (index,))


def _num_blocks(change: Any) -> int:
    return len(change.stored) + len(change.removed)
