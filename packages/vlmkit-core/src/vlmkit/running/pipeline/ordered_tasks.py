"""Tasks whose results are taken in the order of their starts.

It bounds how many run, and the results that wait for an earlier one. It does not know what a task
does.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

R = TypeVar("R")

MAX_AHEAD = 8  # tasks and results in memory for each concurrent task


class OrderedTasks(Generic[R]):
    """Tasks in the order of their starts.

    One thread adds tasks and takes results. The tasks may end in another one.

    Args:
        num_concurrent: how many run at once.
        max_ahead: the greatest size of all results that are not taken. Above it, no task starts.
        size_of: returns the size of a result.
    """

    def __init__(self, num_concurrent: int, max_ahead: int, size_of: Callable[[R], int]) -> None:
        self._num_concurrent = num_concurrent
        self._max_ahead = max_ahead
        self._size_of = size_of
        self._tasks: deque[asyncio.Future[R] | Future[R]] = deque()
        self._changed = asyncio.Event()
        self._on_change: Callable[[], None] = self._changed.set
        # Each counter is written by one thread.
        self._num_started = self._size_taken = 0
        self._num_ended = self._size_ended = 0

    def __len__(self) -> int:
        """Return the number of tasks whose result was not taken."""
        return len(self._tasks)

    @property
    def has_room(self) -> bool:
        """Whether another task may start."""
        return (
            self._num_started - self._num_ended < self._num_concurrent
            and len(self._tasks) < MAX_AHEAD * self._num_concurrent
            and self._size_ended - self._size_taken < self._max_ahead
        )

    def start(self, work: Coroutine[Any, Any, R]) -> None:
        """Start a task in this event loop."""
        self.add(asyncio.ensure_future(work))

    def add(self, task: "asyncio.Future[R] | Future[R]") -> None:
        """Add a task that was started."""
        self._num_started += 1
        self._tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Future[R] | Future[R]") -> None:
        if not task.cancelled() and task.exception() is None:
            self._size_ended += self._size_of(task.result())
        self._num_ended += 1
        self._on_change()

    @property
    def is_first_done(self) -> bool:
        """Whether the first task has ended."""
        return bool(self._tasks) and self._tasks[0].done()

    def first(self) -> R:
        """Return the result of the first task, which has ended; it remains the first.

        Raises:
            BaseException: the error of the task.
        """
        return self._tasks[0].result()

    def take(self) -> R:
        """Return the result of the first task, which has ended, and remove it.

        Raises:
            BaseException: the error of the task.
        """
        result = self._tasks.popleft().result()
        self._size_taken += self._size_of(result)
        return result

    def on_change(self, notify: Callable[[], None]) -> None:
        """Call a function when a task ends, in the thread where it ends."""
        self._on_change = notify

    def notify(self, _: object = None) -> None:
        """Let :meth:`wait_for` check its condition."""
        self._changed.set()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is checked when a task ends, and by ``notify``."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()

    async def ended(self) -> None:
        """Wait until all tasks of this event loop have ended."""
        own = [task for task in self._tasks if isinstance(task, asyncio.Future)]
        await asyncio.gather(*own, return_exceptions=True)
