"""Throttles warnings and errors: the first of a kind is logged, further ones are counted.

So clients that send thousands of invalid requests neither fill a disk nor hide other lines. The
counts are logged when the period ends: nothing is lost silently.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 10.0
MAX_KINDS = 256  # further kinds are counted as one
_OTHERS = ("vlmkit", logging.WARNING, "warnings of other kinds")
UNTHROTTLED = "vlmkit_server.fleet"  # its lines are few, and each one matters


@dataclass(slots=True)
class _Kind:
    logger: str
    level: int
    text: str  # of its first record
    until_s: float
    num_throttled: int = 0


class LogThrottle(logging.Filter):
    """A handler's filter that passes one record of each kind per period.

    Args:
        handler: writes the counts.
        every_s: the period.
        clock: returns the time.
    """

    def __init__(
        self,
        handler: logging.Handler,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, int, str], _Kind] = {}
        self._timer: threading.Timer | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is logged now."""
        if record.levelno < logging.WARNING or getattr(record, "is_sum", False):
            return True
        if record.name.startswith(UNTHROTTLED):
            return True
        text = record.getMessage() if record.msg == "%s" else str(record.msg)
        kind = (record.name, record.levelno, text)
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
                kind = _OTHERS
            found = self._kinds.get(kind)
            if found is not None:
                found.num_throttled += 1
                return False
            text = kind[2] if kind == _OTHERS else record.getMessage().partition("\n")[0]
            self._kinds[kind] = _Kind(*kind[:2], text, self._clock() + self._every_s)
            self._wait()
            return True

    def flush(self, *, is_over: bool = True) -> None:
        """Log the counts of throttled records.

        Args:
            is_over: whether to include kinds whose period has not ended.
        """
        with self._lock:
            self._timer = None
            now_s = self._clock()
            ended = [k for k, kind in self._kinds.items() if is_over or kind.until_s <= now_s]
            sums = [self._kinds.pop(kind) for kind in ended]
            if self._kinds:
                self._wait()
        for kind in sums:
            if kind.num_throttled:
                self._handler.handle(self._sum(kind))

    def _sum(self, kind: _Kind) -> logging.LogRecord:
        text = "%d more within %g s, like: %s"
        values = (kind.num_throttled, self._every_s, kind.text)
        record = logging.LogRecord(kind.logger, kind.level, "", 0, text, values, None)
        record.is_sum = True
        return record

    def _wait(self) -> None:
        """Schedule the next flush; called with the lock held."""
        if self._timer is None:
            self._timer = threading.Timer(self._every_s, self.flush, kwargs={"is_over": False})
            self._timer.daemon = True
            self._timer.start()
