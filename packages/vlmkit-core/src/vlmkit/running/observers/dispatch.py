"""Tells observers what happens, so that none of them can harm a request.

Who tells only leaves a note: each observer reads its notes in a thread of its own. One that raises
is switched off and told of in the log, once; one that has too many notes unread loses new ones,
which are counted, but no end of a request whose beginning it heard of: what it keeps of one it lets
go of then. Nothing is noted that no observer listens to.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from vlmkit.interfaces.observer import Observer
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames

log = logging.getLogger(__name__)

MAX_UNREAD = 50_000  # notes of one observer; a second or two of a busy server's tokens
GATHER_S = 0.02  # notes are read together: a wake-up for each would take the loop's time
CLOSE_S = 5.0  # for the last notes, until a slow observer is left behind

Event = Literal["accepted", "first_token", "tokens", "finished", "failed", "step"]
EVENTS: tuple[Event, ...] = ("accepted", "first_token", "tokens", "finished", "failed", "step")
ENDS = frozenset[Event]({"finished", "failed"})


class ObserverDispatch:
    """All observers of one pipeline. Told in one thread at a time.

    Args:
        observers: each by its name.
        component_names: who made them.
    """

    def __init__(
        self, observers: Mapping[str, Observer], component_names: ComponentNames = UNKNOWN
    ) -> None:
        self._listeners = {
            name: _Listener(name, o, component_names.of("observer", name))
            for name, o in observers.items()
        }
        self._by_event = {
            event: [listener for listener in self._listeners.values() if listener.hears(event)]
            for event in EVENTS
        }

    def hears(self, event: Event) -> bool:
        """Tell whether anybody listens to an event."""
        return bool(self._by_event[event])

    def tell(self, event: Event, *facts: object) -> None:
        """Note an event for everybody who listens to it; the facts must not change any more."""
        for listener in self._by_event[event]:
            listener.note(event, facts)

    def stats(self) -> dict[str, dict[str, float]]:
        """Return the numbers of each observer, by its name."""
        return {name: listener.stats() for name, listener in self._listeners.items()}

    def close(self) -> None:
        """Let every observer read its last notes and close it; nothing may be told any more."""
        for listener in self._listeners.values():
            listener.stop()
        deadline = time.monotonic() + CLOSE_S
        for listener in self._listeners.values():
            listener.join(deadline)


class _Listener:
    """One observer, its notes and its thread."""

    def __init__(self, name: str, observer: Observer, who: str) -> None:
        self._who = who
        self._observer = observer
        self._notes: deque[tuple[Event, tuple[object, ...], float]] = deque()
        self._begun: set[object] = set()  # requests whose end must be told
        self._minds_ends = all(map(self.hears, ("accepted", *ENDS)))
        self._num_lost = 0
        self._is_off = False
        self._bell = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"vlmkit-{name}", daemon=True)
        self._thread.start()

    def hears(self, event: Event) -> bool:
        """Tell whether the observer wrote a method for an event."""
        return getattr(type(self._observer), event, None) is not getattr(Observer, event)

    def note(self, event: Event, facts: tuple[object, ...]) -> None:
        if self._is_off:
            return
        is_owed = event in ENDS and facts[0] in self._begun
        if len(self._notes) >= MAX_UNREAD and not is_owed:
            if not self._num_lost:
                log.warning("%s is too slow, and loses events", self._who)
            self._num_lost += 1
            return
        if is_owed:
            self._begun.remove(facts[0])
        elif event == "accepted" and self._minds_ends:
            self._begun.add(facts[0])
        self._notes.append((event, facts, time.time()))
        if not self._bell.is_set():
            self._bell.set()

    def stats(self) -> dict[str, float]:
        numbers: Mapping[str, float] = {}
        try:
            numbers = self._observer.stats()
        except Exception:
            log.exception("%s cannot say its numbers", self._who)
        return {**numbers, "num_events_lost": self._num_lost}

    def stop(self) -> None:
        self._end.set()
        self._bell.set()

    def join(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning("%s is left behind with %d events", self._who, len(self._notes))

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                self._bell.wait()
                self._end.wait(GATHER_S)
                self._bell.clear()
                self._read()
            self._read()
        except BaseException:  # a panic of a Rust library is no Exception
            self._is_off = True
            self._notes.clear()
            self._begun.clear()
            log.exception("%s failed and is switched off", self._who)
        try:
            self._observer.close()
        except Exception:
            log.exception("%s could not be closed", self._who)

    def _read(self) -> None:
        while self._notes:
            event, facts, at_s = self._notes.popleft()
            method: Any = getattr(self._observer, event)
            method(*facts, at_s)
