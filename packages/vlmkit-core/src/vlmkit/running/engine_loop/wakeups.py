"""Waking many readers of one event loop with a single call. Knows nothing of what they read."""

import asyncio


class Wakeups:
    """Collects the readers to wake, and wakes all of one event loop with a single call."""

    def __init__(self) -> None:
        self._futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def add(self, future: "asyncio.Future[None]") -> None:
        """Wake this reader at the next flush."""
        self._futures.setdefault(future.get_loop(), []).append(future)

    def flush(self) -> None:
        """Wake every reader that was added."""
        waiting, self._futures = self._futures, {}
        for event_loop, futures in waiting.items():
            try:
                event_loop.call_soon_threadsafe(_resolve, futures)
            except RuntimeError:  # the event loop is closed: nobody reads any more
                continue


def _resolve(futures: "list[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
