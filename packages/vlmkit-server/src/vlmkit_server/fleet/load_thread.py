"""The thread that loads and closes models, one after the other, outside the event loop."""

import asyncio
import logging
import queue
import threading
import traceback
from collections.abc import Callable
from typing import TypeVar

from vlmkit.interfaces.runner import Runner
from vlmkit.kit import heap
from vlmkit_server.fleet.model_spec import Loader, runner_of

log = logging.getLogger(__name__)

T = TypeVar("T")


class LoadThread:
    """Loads and closes runners, and knows the open ones.

    It does not keep the process alive: a load that is running when the process ends is lost.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._open: list[Runner] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def add(self, runner: Runner) -> None:
        """Track a runner, to be closed at the end; close it at once after the end."""
        with self._lock:
            if not self._is_closed:
                self._open.append(runner)
                return
        _close(runner)

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T | BaseException]":
        """Run some work in the thread; the future has what it returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T | BaseException] = loop.create_future()

        def job() -> None:
            result = _result(work)
            try:
                loop.call_soon_threadsafe(_set_result, future, result)
            except RuntimeError:  # the loop has ended, and so has the waiting task
                log.debug("a result of the load thread came after shutdown")

        self._work.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name="vlmkit-load", daemon=True)
            self._thread.start()
        return future

    def load(self, load: Loader) -> "asyncio.Future[Runner | BaseException]":
        """Load a model; the future has its runner, or the error."""

        def work() -> Runner:
            runner = runner_of(load())
            self.add(runner)
            heap.settle_more()
            return runner

        return self.run(work)

    def unload(self, runner: Runner) -> "asyncio.Future[BaseException | None]":
        """Close a runner without other users, and return its memory to the system.

        The future has the error of closing it, if any.
        """
        errors: list[BaseException] = []

        def work() -> None:
            with self._lock:
                if self._is_closed:
                    return  # and so is the runner
                self._open.remove(runner)
            if (error := _close(runner)) is not None:
                errors.append(error)

        def free_memory() -> BaseException | None:
            _give_back()
            return errors[0] if errors else None

        self.run(work)
        return self.run(free_memory)

    def close(self) -> BaseException | None:
        """Close every runner, even if another one cannot be closed; return the first error.

        A model that is still loading is closed when it is loaded. A second call does nothing.
        """
        with self._lock:
            self._is_closed = True
            runners, self._open = self._open, []
        self._work.put(_end)
        errors = [error for runner in runners if (error := _close(runner)) is not None]
        return errors[0] if errors else None

    def _main(self) -> None:
        while (work := self._work.get()) is not _end:
            work()
            del work  # so that the thread keeps no reference to a runner


def _end() -> None:
    """A marker for the end of the work."""


def _close(runner: Runner) -> BaseException | None:
    """Close a runner; log and return the error, if any."""
    error = _result(runner.close)
    if error is not None:
        log.error("model %r could not be closed", runner.facts.name, exc_info=error)
    return error


def _give_back() -> None:
    """Collect garbage, and return freed memory to the system."""
    heap.collect()
    heap.trim()


def _result(work: Callable[[], T]) -> T | BaseException:
    """Return what some work returns or raises; a panic of a Rust library is no Exception."""
    try:
        return work()
    except BaseException as error:  # noqa: BLE001
        _clear_frames(error)
        return error


def _clear_frames(error: BaseException) -> None:
    """Free objects that the frames of an error refer to, such as a partly loaded model."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:  # an error may be its own cause
        seen.add(id(each))
        traceback.clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__


def _set_result(future: "asyncio.Future[T | BaseException]", result: T | BaseException) -> None:
    if not future.done():
        future.set_result(result)
