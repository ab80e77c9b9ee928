"""Answers many requests to one runner: results in the order of the requests, and a full engine.

Requests are read only when the engine can use them. The scheduler has another one waiting for each
that runs, so that a free slot is filled at once. Each request in progress has a thread, which waits
for its answer; an event loop would change threads three times for each request. It does not know
how a request is made.
"""

import asyncio
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
)
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Generic, TypeVar

from vlmkit.errors import EngineFailed, OutOfMemory, QueueFull, VlmkitError
from vlmkit.interfaces.runner import AnswerStream, Runner
from vlmkit.kit.runner_state import is_restarting
from vlmkit.running.pipeline.ordered_tasks import OrderedTasks
from vlmkit.types.completion import Completion
from vlmkit.types.request import Request

T = TypeVar("T")

Result = Completion | VlmkitError
"""The answer to a request, or the error of this request."""

REQUESTS_PER_SLOT = 2  # one runs, and one waits
MAX_AHEAD_TOKENS = 2**20  # of answers in memory, while an earlier request has none
RETRY_S = 0.1


class OrderedAnswers(Generic[T]):
    """Answers requests in order; for one use, from one thread or one event loop.

    Args:
        runner: answers them.
        make: returns the request for an item; runs in worker threads.
        submit: starts a request in the calling thread, as the runner does.
    """

    def __init__(
        self,
        runner: Runner,
        make: Callable[[T], Request],
        submit: Callable[[Request], AnswerStream],
    ) -> None:
        self._runner = runner
        self._make = make
        self._submit = submit
        num_concurrent = REQUESTS_PER_SLOT * runner.facts.limits.max_sequences
        self._threads = ThreadPoolExecutor(num_concurrent, "vlmkit-answers")
        # The engine loop needs a processor, too.
        self._may_prepare = threading.Semaphore(max(1, runner.facts.bounds.num_workers - 1))
        self._tasks: OrderedTasks[Result] = OrderedTasks(
            num_concurrent, MAX_AHEAD_TOKENS, _num_tokens
        )
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        self._streams: set[AnswerStream] = set()

    def results(self, items: Iterable[T]) -> Generator[Result, None, None]:
        """Yield the result of each item; this thread reads the items.

        Raises:
            EngineFailed: the engine failed for good.
            Exception: the items raised it; the results of all items before come first.
        """
        iterator, is_open, problem = iter(items), True, None
        news = threading.Event()
        self._tasks.on_change(news.set)
        try:
            while is_open or self._tasks:
                news.clear()
                if self._tasks.is_first_done:
                    yield self._tasks.take()
                elif is_open and self._tasks.has_room:
                    try:
                        item = next(iterator)
                    except StopIteration:
                        is_open = False
                    except Exception as error:  # noqa: BLE001 - raised below
                        is_open, problem = False, error
                    else:
                        self._tasks.add(self._threads.submit(self._answer, item))
                else:
                    news.wait()
        finally:
            self._close()
        if problem is not None:
            raise problem

    async def aresults(self, items: Iterable[T] | AsyncIterable[T]) -> AsyncGenerator[Result, None]:
        """Yield the result of each item; the asynchronous form of :meth:`results`."""
        tasks, reading = self._tasks, asyncio.ensure_future(self._read(items))
        reading.add_done_callback(tasks.notify)
        try:
            while True:
                await tasks.wait_for(lambda: tasks.is_first_done or (not tasks and reading.done()))
                if not tasks:
                    break
                yield tasks.take()
            await reading
        finally:
            reading.cancel()
            self._close()

    async def _read(self, items: Iterable[T] | AsyncIterable[T]) -> None:
        """Start a request for each item, when there is room."""
        async for item in _each(items):
            self._tasks.add(asyncio.wrap_future(self._threads.submit(self._answer, item)))
            await self._tasks.wait_for(lambda: self._tasks.has_room)

    def _close(self) -> None:
        """Abort the requests in progress."""
        with self._lock:
            self._is_closed.set()
            streams = list(self._streams)
        self._tasks.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for stream in streams:
            stream.abort()

    # In the thread of a request.

    def _answer(self, item: T) -> Result:
        """Return the answer to an item, or its error.

        Raises:
            EngineFailed: no further request can be answered.
            CancelledError: the iteration of results has ended.
        """
        try:
            stream = self._started(item)
            try:
                return stream.result()
            finally:
                with self._lock:
                    self._streams.discard(stream)
        except EngineFailed:
            raise
        except VlmkitError as error:
            return error

    def _started(self, item: T) -> AnswerStream:
        """Return the stream of a request, which waits for room.

        Raises:
            VlmkitError: it was refused.
            CancelledError: the iteration of results has ended.
        """
        request: Request | None = None
        while True:
            if not is_restarting(self._runner):
                try:
                    with self._may_prepare:
                        self._raise_if_closed()
                        request = request or self._make(item)
                        return self._registered(self._submit(request))
                except QueueFull:  # others use the same runner
                    pass
                except OutOfMemory:
                    if not self._streams:  # whose images would be freed
                        raise
            self._is_closed.wait(RETRY_S)

    def _registered(self, stream: AnswerStream) -> AnswerStream:
        """Let :meth:`_close` abort a stream; abort it here if that has run."""
        with self._lock:
            if not self._is_closed.is_set():
                self._streams.add(stream)
                return stream
        stream.abort()
        raise CancelledError

    def _raise_if_closed(self) -> None:
        if self._is_closed.is_set():
            raise CancelledError


def _num_tokens(result: Result) -> int:
    if isinstance(result, VlmkitError):
        return 1
    return result.usage.prompt_tokens + result.usage.completion_tokens


async def _each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """Yield the items of either kind of iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
