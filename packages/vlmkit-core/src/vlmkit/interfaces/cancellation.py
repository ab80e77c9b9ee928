"""Whether a request was cancelled, for work that takes long; it cancels nothing by itself.

A request is cancelled when its client disconnects, its time is over, or its runner closes. Every
method may be called from any thread.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vlmkit.errors import RequestCancelled


class Cancellation:
    """The cancellation of one request.

    Work in steps calls :meth:`check` between them. Work that cannot be interrupted that way, such
    as a subprocess, registers by :meth:`calling` what ends it.

    Attributes:
        cancelled_s: when it was cancelled, by the monotonic clock; None while it is not.
    """

    __slots__ = ("_callbacks", "_lock", "cancelled_s")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[], object]] = {}
        self.cancelled_s: float | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether the result is not wanted any more."""
        return self.cancelled_s is not None

    def check(self) -> None:
        """Return if the result is still wanted.

        Raises:
            RequestCancelled: it is not.
        """
        if self.is_cancelled:
            raise RequestCancelled

    def cancel(self) -> None:
        """Cancel, and call what was registered; harmless when done twice."""
        with self._lock:
            if self.cancelled_s is not None:
                return
            self.cancelled_s = time.monotonic()
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            callback()

    @contextmanager
    def calling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call a function on cancellation, as long as the context is open; at once if it was.

        Args:
            callback: runs in the thread that cancels, often the event loop's: it returns at once
                and raises nothing. A call may still be under way when the context closes.
        """
        key = object()
        with self._lock:
            self._callbacks[key] = callback
            is_cancelled = self.is_cancelled
        try:
            if is_cancelled:
                callback()
            yield
        finally:
            with self._lock:
                del self._callbacks[key]
