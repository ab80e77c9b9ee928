"""The thread in which models are loaded and closed, one after the other, beside the event loop."""

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
    """Loads and closes runners, and knows those that are alive.

    It does not keep a process alive that is asked to end: what is still being loaded then is lost.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._alive: list[Runner] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def add(self, runner: Runner) -> None:
        """Keep a runner, to be closed in the end; at once, if that has come."""
        with self._lock:
            if not self._is_closed:
                self._alive.append(runner)
                return
        _close(runner)

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T | BaseException]":
        """Do something in the thread; the future has what it returned or raised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T | BaseException] = loop.create_future()

        def job() -> None:
            result = _result(work)
            try:
                loop.call_soon_threadsafe(_tell, future, result)
            except RuntimeError:  # the loop is gone, and with it whoever wanted to know
                log.debug("nobody waits for the load thread any more")

        self._work.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name="vlmkit-load", daemon=True)
            self._thread.start()
        return future

    def load(self, load: Loader) -> "asyncio.Future[Runner | BaseException]":
        """Load a model; the future has its runner, or what was raised."""

        def work() -> Runner:
            runner = runner_of(load())
            self.add(runner)
            heap.settle_more()
            return runner

        return self.run(work)

    def unload(self, runner: Runner) -> "asyncio.Future[BaseException | None]":
        """Close a runner, which nobody else may hold, and give its memory back to the system.

        The future has what closing it raised, if anything.
        """
        errors: list[BaseException] = []

        def work() -> None:
            with self._lock:
                if self._is_closed:
                    return  # and so is the runner
                self._alive.remove(runner)
            if (error := _close(runner)) is not None:
                errors.append(error)

        def give_back() -> BaseException | None:
            _give_back()
            return errors[0] if errors else None

        self.run(work)
        return self.run(give_back)

    def close(self) -> BaseException | None:
        """Close every runner, whether or not another one can be; return what was raised first.

        What is still being loaded is closed when it is there. Harmless when done twice.
        """
        with self._lock:
            self._is_closed = True
            alive, self._alive = self._alive, []
        self._work.put(_end)
        errors = [error for runner in alive if (error := _close(runner)) is not None]
        return errors[0] if errors else None

    def _main(self) -> None:
        while (work := self._work.get()) is not _end:
            work()
            del work  # what it loaded or closed is not this thread's to keep


def _end() -> None:
    """Stand for the end of the work."""


def _close(runner: Runner) -> BaseException | None:
    """Close a runner; log and return what was raised."""
    error = _result(runner.close)
    if error is not None:
        log.error("model %r could not be closed", runner.facts.name, exc_info=error)
    return error


def _give_back() -> None:
    """Free what only cycles hold, and let the system have it."""
    heap.collect()
    heap.trim()


def _result(work: Callable[[], T]) -> T | BaseException:
    """Return what some work returns or raises: a panic of a Rust library is no Exception."""
    try:
        return work()
    except BaseException as error:  # noqa: BLE001
        _let_go(error)
        return error


def _let_go(error: BaseException) -> None:
    """Free what was loaded when an error was raised, which its frames would keep."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:  # an error may be its own cause
        seen.add(id(each))
        traceback.clear_frames(each.__traceback__)
        each = each.__cause__ or each.__context__


def _tell(future: "asyncio.Future[T | BaseException]", result: T | BaseException) -> None:
    if not future.done():
        future.set_result(result)
