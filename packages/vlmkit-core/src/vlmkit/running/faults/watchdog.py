"""The watchdog: reports work that runs far longer than before, and gives up work that hangs.

A monitored thread only records when its current piece of work began. The watchdog polls that time
in a thread of its own, so the work itself pays nothing. Its log lines hold sizes, ids and a stack
of code lines, and nothing that a client sent.

The watchdog cannot stop the work: neither Python nor a device can end a thread.
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

# Multiples of the longest duration so far; they count where they are longer than the settings.
SLOW_FACTOR, STUCK_FACTOR = 10.0, 30.0
CHECKS_PER_LIMIT = 8  # polls within the shortest limit
MAX_INTERVAL_S = 10.0
MAX_LISTED = 16
MAX_FRAMES = 12


@dataclass(frozen=True)
class MonitoredTask:
    """A kind of work that one thread does again and again.

    Attributes:
        name: what messages call one piece of the work.
        since: returns when the current piece began, by ``perf_counter``; 0 if there is none.
        describe: returns the size of the current piece, and the requests that it belongs to.
        thread: returns the identifier of the thread.
        count_slow: counts one slow piece.
    """

    name: str
    since: Callable[[], float]
    describe: Callable[[], str]
    thread: Callable[[], int | None]
    count_slow: Callable[[], None]


class Watchdog:
    """Monitors some tasks until it is stopped.

    Args:
        tasks: the tasks to monitor.
        give_up: called once, with the reason, when a piece of work is stuck.
        slow_s: duration after which a piece is reported as slow. Ten times the longest piece so
            far counts instead if that is more.
        stuck_s: duration after which a piece is stuck; no piece ever is when None. Thirty times
            the longest piece so far counts instead if that is more.
    """

    def __init__(
        self,
        tasks: Seq[MonitoredTask],
        give_up: Callable[[BaseException], None],
        slow_s: float,
        stuck_s: float | None,
    ) -> None:
        self._monitors = [_Monitor(task, slow_s, stuck_s) for task in tasks]
        self._give_up = give_up
        self._interval_s = min(MAX_INTERVAL_S, min(slow_s, stuck_s or slow_s) / CHECKS_PER_LIMIT)
        self._is_stopped = threading.Event()
        thread = threading.Thread(target=self._run, name="vlmkit-watchdog", daemon=True)
        thread.start()

    def stop(self) -> None:
        """Stop monitoring."""
        self._is_stopped.set()

    def _run(self) -> None:
        while not self._is_stopped.wait(self._interval_s):
            for monitor in self._monitors:
                if (error := monitor.check(time.perf_counter())) is not None:
                    self._give_up(error)
                    return


class _Monitor:
    """The durations of one task so far."""

    def __init__(self, task: MonitoredTask, slow_s: float, stuck_s: float | None) -> None:
        self._task = task
        self._slow_s = slow_s
        self._stuck_s = stuck_s
        self._longest_s = self._age_s = self._since = 0.0
        self._is_reported = False

    def check(self, now: float) -> EngineError | None:
        """Report the current piece if it is slow; return an error if it is stuck."""
        since = self._task.since()
        if since != self._since:  # the last one has ended
            self._longest_s = max(self._longest_s, self._age_s)
            self._since, self._age_s, self._is_reported = since, 0.0, False
        if not since:
            return None
        self._age_s = age_s = now - since
        if self._stuck_s is not None and age_s > max(self._stuck_s, STUCK_FACTOR * self._longest_s):
            self._report(logging.CRITICAL, "is given up")
            return EngineError(f"{self._task.name} did not end within {age_s:.0f} s")
        if age_s > max(self._slow_s, SLOW_FACTOR * self._longest_s) and not self._is_reported:
            self._is_reported = True
            self._report(logging.WARNING, "is still running")
            self._task.count_slow()  # after the report, which a reader of the counter then finds
        return None

    def _report(self, level: int, verdict: str) -> None:
        try:
            description = self._task.describe()
        except RuntimeError:  # it changed meanwhile
            description = "of unknown size"
        log.log(
            level,
            "%s %s after %.1f s (longest before: %.1f s): %s; stack:\n%s",
            *(self._task.name, verdict, self._age_s, self._longest_s, description),
            stack_of(self._task.thread()),
        )


def stack_of(thread: int | None) -> str:
    """Return the stack of a thread as lines of code, innermost last, without any values."""
    frame = sys._current_frames().get(thread or 0)  # noqa: SLF001 - there is no other way
    if frame is None:
        return "  no Python code"
    frames = traceback.walk_stack(frame)
    stack = traceback.StackSummary.extract(frames, limit=MAX_FRAMES, lookup_lines=False)
    return "\n".join(f"  {each.filename}:{each.lineno} {each.name}" for each in reversed(stack))


def listed(ids: Iterable[str]) -> str:
    """Return some ids as a text of bounded length."""
    some = sorted(ids)
    more = f" and {len(some) - MAX_LISTED} more" if len(some) > MAX_LISTED else ""
    return f"{', '.join(some[:MAX_LISTED]) or 'none'}{more}"
