"""Answers many requests to one runner: results in the order of the requests, and a full engine.

Requests are read only when the engine can use them. The scheduler has another one waiting for each
that runs, so that a free slot is filled at once. It does not know how a request is made.
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
    Iterator,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Generic, TypeVar

from vlmkit.errors import EngineFailed, OutOfMemory, QueueFull, VlmkitError
from vlmkit.interfaces.runner import AnswerStream, Runner
from vlmkit.kit.runner_state import is_restarting
from vlmkit.running.pipeline.ordered_tasks import OrderedTasks
from vlmkit.running.prompting.request_workers import drop_late_result
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
        # The engine loop needs a processor, too.
        num_threads = max(1, runner.facts.bounds.num_workers - 1)
        self._workers = ThreadPoolExecutor(num_threads, "vlmkit-answers")
        self._num_answering = 0
        self._tasks: OrderedTasks[Result] = OrderedTasks(
            REQUESTS_PER_SLOT * runner.facts.limits.max_sequences, MAX_AHEAD_TOKENS, _num_tokens
        )

    def results(self, items: Iterable[T]) -> Generator[Result, None, None]:
        """Yield the result of each item; this thread reads the items.

        Raises:
            EngineFailed: the engine failed for good.
            Exception: the items raised it; the results of all items before come first.
        """
        iterator, is_open, problem = iter(items), True, None
        with _event_loop() as event_loop:
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
                            self._tasks.add(
                                asyncio.run_coroutine_threadsafe(self._answer(item), event_loop)
                            )
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
            self._tasks.start(self._answer(item))
            await self._tasks.wait_for(lambda: self._tasks.has_room)

    def _close(self) -> None:
        """Abort the requests in progress."""
        self._tasks.cancel()
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, item: T) -> Result:
        """Return the answer to an item, or its error.

        Raises:
            EngineFailed: no further request can be answered.
        """
        try:
            stream = await self._started(item)
            self._num_answering += 1
            try:
                return await stream.aresult()
            except BaseException:
                stream.abort()
                raise
            finally:
                self._num_answering -= 1
        except EngineFailed:
            raise
        except VlmkitError as error:
            return error

    async def _started(self, item: T) -> AnswerStream:
        """Return the stream of a request, which waits for room.

        Raises:
            VlmkitError: it was refused.
        """
        made: list[Request] = []

        def start() -> AnswerStream:
            if not made:
                made.append(self._make(item))
            return self._submit(made[0])

        while True:
            if not is_restarting(self._runner):
                future = self._workers.submit(start)
                try:
                    return await asyncio.wrap_future(future)
                except asyncio.CancelledError:
                    future.add_done_callback(partial(drop_late_result, _abort))
                    raise
                except QueueFull:  # others use the same runner
                    pass
                except OutOfMemory:
                    if not self._num_answering:  # whose images would be freed
                        raise
            await asyncio.sleep(RETRY_S)


def _abort(stream: AnswerStream) -> None:
    stream.abort()


def _num_tokens(result: Result) -> int:
    if isinstance(result, VlmkitError):
        return 1
    return result.usage.prompt_tokens + result.usage.completion_tokens


@contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield the event loop of another thread; this one may have its own, as in a notebook."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run_until_stopped() -> None:
        stopped = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stopped))
        await stopped.wait()

    thread = threading.Thread(
        target=lambda: asyncio.run(run_until_stopped()), name="vlmkit-answers", daemon=True
    )
    thread.start()
    event_loop, stopped = started.result()
    try:
        yield event_loop
    finally:
        event_loop.call_soon_threadsafe(stopped.set)
        thread.join()


async def _each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """Yield the items of either kind of iterable."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
