"""Notices work that takes far longer than any did before, and in the end gives it up.

Whoever works notes when the present piece of work was begun, and nothing else: this looks at that
note now and then, in a thread of its own, so that work pays nothing for being watched. What it says
in the log holds sizes, ids and the lines of code where the work stands; never what a client sent.
It cannot stop anything: Python has no way to end a thread, nor has a device.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence as Seq
from dataclasses import dataclass

from vlmkit.errors import EngineError

log = logging.getLogger(__name__)

SLOW_TIMES, STUCK_TIMES = 10.0, 30.0  # as long as the longest seen, where that is more
LOOKS = 8  # for each bound of time
MAX_LOOK_S = 10.0
MAX_SHOWN = 16
MAX_FRAMES = 12


@dataclass(frozen=True)
class WatchedWork:
    """Something that is done again and again in one thread.

    Attributes:
        name: what one piece of it is called.
        since: returns when the present piece was begun, by ``perf_counter``; 0 without one.
        described: says how large it is and whom it is for.
        thread: returns the thread's identifier.
        count: notes that one was slow.
    """

    name: str
    since: Callable[[], float]
    described: Callable[[], str]
    thread: Callable[[], int | None]
    count: Callable[[], None]


class Watchdog:
    """Looks at some work until it is stopped.

    Args:
        works: what is looked at.
        give_up: called with the reason, once, when one of them is stuck.
        slow_s: how long a piece may take before it is told, unless longer ones were seen.
        stuck_s: how long before it is stuck; never when None.
    """

    def __init__(
        self,
        works: Seq[WatchedWork],
        give_up: Callable[[BaseException], None],
        slow_s: float,
        stuck_s: float | None,
    ) -> None:
        self._seen = [_Seen(work, slow_s, stuck_s) for work in works]
        self._give_up = give_up
        self._look_s = min(MAX_LOOK_S, min(slow_s, stuck_s or slow_s) / LOOKS)
        self._is_stopped = threading.Event()
        thread = threading.Thread(target=self._run, name="vlmkit-watchdog", daemon=True)
        thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._is_stopped.set()

    def _run(self) -> None:
        while not self._is_stopped.wait(self._look_s):
            for seen in self._seen:
                if (error := seen.look(time.perf_counter())) is not None:
                    self._give_up(error)
                    return


class _Seen:
    """What was seen of some work."""

    def __init__(self, work: WatchedWork, slow_s: float, stuck_s: float | None) -> None:
        self._work = work
        self._slow_s = slow_s
        self._stuck_s = stuck_s
        self._longest_s = self._age_s = self._since = 0.0
        self._is_told = False

    def look(self, now: float) -> EngineError | None:
        """Tell of the present piece if it is slow; return an error if it is stuck."""
        since = self._work.since()
        if since != self._since:  # the last one has ended
            self._longest_s = max(self._longest_s, self._age_s)
            self._since, self._age_s, self._is_told = since, 0.0, False
        if not since:
            return None
        self._age_s = age_s = now - since
        if self._stuck_s is not None and age_s > max(self._stuck_s, STUCK_TIMES * self._longest_s):
            self._say(logging.CRITICAL, "is given up")
            return EngineError(f"{self._work.name} did not end within {age_s:.0f} s")
        if age_s > max(self._slow_s, SLOW_TIMES * self._longest_s) and not self._is_told:
            self._is_told = True
            self._work.count()
            self._say(logging.WARNING, "goes on")
        return None

    def _say(self, level: int, how: str) -> None:
        try:
            what = self._work.described()
        except RuntimeError:  # it changed meanwhile
            what = "of unknown size"
        log.log(
            level,
            "%s %s after %.1f s (longest before: %.1f s): %s; it stands at\n%s",
            *(self._work.name, how, self._age_s, self._longest_s, what),
            where(self._work.thread()),
        )


def where(thread: int | None) -> str:
    """Return the lines of code at which a thread is, the innermost last; no values of variables."""
    frame = sys._current_frames().get(thread or 0)  # noqa: SLF001 - there is no other way
    if frame is None:
        return "  no Python code"
    frames = traceback.walk_stack(frame)
    stack = traceback.StackSummary.extract(frames, limit=MAX_FRAMES, lookup_lines=False)
    return "\n".join(f"  {each.filename}:{each.lineno} {each.name}" for each in reversed(stack))


def shown(ids: Iterable[str]) -> str:
    """Return some ids as a text of bounded length."""
    some = sorted(ids)
    more = f" and {len(some) - MAX_SHOWN} more" if len(some) > MAX_SHOWN else ""
    return f"{', '.join(some[:MAX_SHOWN]) or 'none'}{more}"
