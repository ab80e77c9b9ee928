"""The requests in progress: counts them, and runs each while its result is needed.

It does not admit requests; the service does.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from litestar.types import Receive, Scope

from vlmkit_server.exchange.deadline import TooLate, deadline_of
from vlmkit_server.http.errors import ClientGone, Unavailable

T = TypeVar("T")


class ActiveRequests:
    """The requests in progress. It is used in the event loop's thread.

    Args:
        closing: returns the error of requests that a shutdown cancels.

    Attributes:
        num_open: the number of requests of any kind.
    """

    def __init__(self, closing: Callable[[], Unavailable]) -> None:
        self.num_open = 0
        self._closing = closing
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Count a request of any kind; a drain waits for it."""
        self.num_open += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self.num_open -= 1
            if not self.num_open:
                self._is_idle.set()

    async def attend(self, work: Coroutine[Any, Any, T], receive: Receive, scope: Scope) -> T:
        """Run the work of one request until it ends or its result is no longer wanted.

        Args:
            work: is cancelled when the client disconnects, the deadline passes, or the server
                gives up.
            receive: the connection; nothing but a disconnect is expected.
            scope: the request's scope, with its deadline.

        Raises:
            ClientGone: the client disconnected.
            TooLate: the deadline passed.
            Unavailable: the server is shutting down and did not wait any longer.
        """
        deadline_s = deadline_of(scope)
        left_s = None if deadline_s is None else deadline_s - asyncio.get_running_loop().time()
        task = asyncio.ensure_future(work)
        watcher = asyncio.ensure_future(disconnected(receive))
        self._tasks.add(task)
        try:
            await asyncio.wait((task, watcher), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone if watcher.done() else TooLate
            if task.cancelled():
                raise self._closing()
            return task.result()
        finally:
            self._tasks.discard(task)
            task.cancel()
            watcher.cancel()
            await asyncio.gather(task, watcher, return_exceptions=True)

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in progress; False after the timeout."""
        try:
            await asyncio.wait_for(self._is_idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def cancel(self) -> None:
        """Cancel the work of all requests; each of them still gets its error."""
        for task in self._tasks:
            task.cancel()


async def disconnected(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
