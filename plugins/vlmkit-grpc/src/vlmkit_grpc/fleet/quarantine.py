"""Requests that were running when workers died, so that none can kill one worker after another."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from vlmkit.errors import RequestError

MAX_DEATHS = 2
QUARANTINE_S = 3600.0
MAX_ENTRIES = 10_000


class Quarantine:
    """Refuses a request after the second worker that died with it, for an hour. Thread-safe.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._deaths: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def note(self, fingerprint: bytes) -> None:
        """Note that a worker died while it worked for a request."""
        with self._lock:
            num, since_s = self._deaths.pop(fingerprint, (0, 0.0))
            if self._clock() - since_s > QUARANTINE_S:
                num = 0
            self._deaths[fingerprint] = (num + 1, self._clock())
            if len(self._deaths) > MAX_ENTRIES:
                self._deaths.popitem(last=False)

    def check(self, fingerprint: bytes) -> None:
        """Refuse a request that is in quarantine.

        Raises:
            RequestError: two workers died while they worked for it.
        """
        with self._lock:
            num, since_s = self._deaths.get(fingerprint, (0, 0.0))
            is_over = self._clock() - since_s > QUARANTINE_S
        if num >= MAX_DEATHS and not is_over:
            raise RequestError(
                f"{MAX_DEATHS} workers ended while they worked for this request",
                code="request_ends_workers",
                hint="change the request, or try again in an hour",
            )
