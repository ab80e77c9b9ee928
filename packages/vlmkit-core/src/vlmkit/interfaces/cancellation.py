"""The cancellation state of a request, for long-running work; cancels nothing by itself.

A request is cancelled when its client disconnects, its deadline passes, or its runner closes. Every
method may be called from any thread.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vlmkit.errors import RequestCancelled


class Cancellation:
    """The cancellation state of one request.

    Work that proceeds in steps calls :meth:`check` between them. Work that cannot be interrupted
    that way, such as a subprocess, registers a callback that stops it: see :meth:`calling`.

    Attributes:
        cancelled_s: time of the cancellation in seconds of the monotonic clock; None before.
    """

    __slots__ = ("_callbacks", "_lock", "cancelled_s")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[], object]] = {}
        self.cancelled_s: float | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether the request was cancelled, so that its result is not needed."""
        return self.cancelled_s is not None

    def check(self) -> None:
        """Return if the request was not cancelled.

        Raises:
            RequestCancelled: the request was cancelled.
        """
        if self.is_cancelled:
            raise RequestCancelled

    def cancel(self) -> None:
        """Cancel the request and run the registered callbacks; a second call does nothing."""
        with self._lock:
            if self.cancelled_s is not None:
                return
            self.cancelled_s = time.monotonic()
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            callback()

    @contextmanager
    def calling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call a function if the request is cancelled while the context is open.

        If the request was cancelled before, the function is called at once.

        Args:
            callback: runs in the thread that cancels, often the event loop's. It must return at
                once and raise nothing. It may still be running when the context closes.
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
