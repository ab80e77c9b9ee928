"""Keeps warnings and errors from flooding a log: of one kind, one is written, the next are counted.

So strangers who send nonsense by the thousand neither fill a disk nor hide what else is said. What
was counted is written when its time is over: nothing is lost in silence.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 10.0
MAX_KINDS = 256  # what is beyond is one kind
_OTHERS = ("vlmkit", logging.WARNING, "warnings of other kinds")
UNBOUNDED = "vlmkit_server.fleet"  # speaks of models, which are few, and each line counts


@dataclass(slots=True)
class _Kind:
    logger: str
    level: int
    text: str  # of its first record
    until_s: float
    num_held: int = 0


class LogThrottle(logging.Filter):
    """Lets one record of each kind pass in a time, for a handler.

    Args:
        handler: writes the sums.
        every_s: the time.
        clock: tells it.
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
        """Tell whether a record is written now."""
        if record.levelno < logging.WARNING or getattr(record, "is_sum", False):
            return True
        if record.name.startswith(UNBOUNDED):
            return True
        text = record.getMessage() if record.msg == "%s" else str(record.msg)
        kind = (record.name, record.levelno, text)
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
                kind = _OTHERS
            found = self._kinds.get(kind)
            if found is not None:
                found.num_held += 1
                return False
            text = kind[2] if kind == _OTHERS else record.getMessage().partition("\n")[0]
            self._kinds[kind] = _Kind(*kind[:2], text, self._clock() + self._every_s)
            self._wait()
            return True

    def tell(self, *, is_over: bool = True) -> None:
        """Write the sums of what was held.

        Args:
            is_over: whether those count as well whose time has not ended.
        """
        with self._lock:
            self._timer = None
            now_s = self._clock()
            ended = [k for k, kind in self._kinds.items() if is_over or kind.until_s <= now_s]
            sums = [self._kinds.pop(kind) for kind in ended]
            if self._kinds:
                self._wait()
        for kind in sums:
            if kind.num_held:
                self._handler.handle(self._sum(kind))

    def _sum(self, kind: _Kind) -> logging.LogRecord:
        text = "%d more within %g s, like: %s"
        values = (kind.num_held, self._every_s, kind.text)
        record = logging.LogRecord(kind.logger, kind.level, "", 0, text, values, None)
        record.is_sum = True
        return record

    def _wait(self) -> None:
        """Have the sums told in time; to be called with the lock."""
        if self._timer is None:
            self._timer = threading.Timer(self._every_s, self.tell, kwargs={"is_over": False})
            self._timer.daemon = True
            self._timer.start()
