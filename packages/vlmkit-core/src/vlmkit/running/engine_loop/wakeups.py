"""Waking all waiting readers of an event loop with one call."""

import asyncio


class Wakeups:
    """Collects futures, and resolves those of each event loop with a single call."""

    def __init__(self) -> None:
        self._futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def add(self, future: "asyncio.Future[None]") -> None:
        """Resolve a future at the next flush."""
        self._futures.setdefault(future.get_loop(), []).append(future)

    def flush(self) -> None:
        """Resolve every future that was added."""
        waiting, self._futures = self._futures, {}
        for event_loop, futures in waiting.items():
            try:
                event_loop.call_soon_threadsafe(_resolve, futures)
            except RuntimeError:  # the event loop is closed, and with it all readers
                continue


def _resolve(futures: "list[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
