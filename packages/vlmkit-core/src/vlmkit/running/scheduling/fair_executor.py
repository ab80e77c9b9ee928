"""Worker threads that tenants share fairly: a burst of one tenant never delays another's work.

The next task is one of the tenant with the fewest running tasks. Among equals, it is of the tenant
whose last start is longest ago. Within a tenant, it is first come, first served. Nothing is
interrupted: long tasks check their own cancellation. The threads end with the process.
"""

import itertools
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class FairTaskQueue(Generic[T]):
    """A queue that tenants share fairly. Not thread-safe.

    Args:
        max_running: items of one tenant that may run at the same time; unbounded when None.

    Attributes:
        num_waiting: items that have not started.
    """

    def __init__(self, max_running: int | None = None) -> None:
        self._max_running = max_running
        self._waiting: dict[str, dict[T, None]] = {}
        self._running: dict[str, int] = {}
        self._started: dict[str, int] = {}  # number of the last start of each present tenant
        self._numbers = itertools.count(1)
        self.num_waiting = 0

    def put(self, tenant: str, item: T) -> None:
        """Append an item, which must be hashable and differ from all others."""
        self._waiting.setdefault(tenant, {})[item] = None
        self.num_waiting += 1

    def remove(self, tenant: str, item: T) -> None:
        """Remove an item if it still waits."""
        waiting = self._waiting.get(tenant)
        if waiting is None or item not in waiting:
            return
        del waiting[item]
        self.num_waiting -= 1
        self._forget_absent(tenant)

    def start(self) -> T | None:
        """Return the next item, which runs until :meth:`finish`; None if there is none."""
        ready = [tenant for tenant in self._waiting if self._may_start(tenant)]
        if not ready:
            return None
        tenant = min(ready, key=lambda t: (self._running.get(t, 0), self._started.get(t, 0)))
        waiting = self._waiting[tenant]
        item = next(iter(waiting))
        del waiting[item]
        self.num_waiting -= 1
        self._running[tenant] = self._running.get(tenant, 0) + 1
        self._started[tenant] = next(self._numbers)
        self._forget_absent(tenant)
        return item

    def finish(self, tenant: str) -> None:
        """Record that a running item of a tenant has ended."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        self._forget_absent(tenant)

    def _may_start(self, tenant: str) -> bool:
        return self._max_running is None or self._running.get(tenant, 0) < self._max_running

    def _forget_absent(self, tenant: str) -> None:
        if not self._waiting.get(tenant):
            self._waiting.pop(tenant, None)
            if tenant not in self._running:
                self._started.pop(tenant, None)


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Work:
    tenant: str
    run: Callable[[], Any]
    future: "Future[Any]"


class FairExecutor:
    """Runs functions in worker threads, which start on demand.

    Args:
        num_threads: the maximum number of threads.
        name: prefix of the threads' names.
        max_running: threads that one tenant may use at the same time; all when None.
    """

    def __init__(self, num_threads: int, name: str, max_running: int | None = None) -> None:
        self._num_threads = num_threads
        self._name = name
        self._queue: FairTaskQueue[_Work] = FairTaskQueue(max_running)
        self._has_work = threading.Condition()
        self._num_started = self._num_idle = 0
        self._is_shut_down = False

    def submit(self, tenant: str, run: Callable[[], T]) -> "Future[T]":
        """Run a function in a thread; cancelling the future in time takes it out of the queue.

        Raises:
            RuntimeError: the executor was shut down.
        """
        future: Future[T] = Future()
        work = _Work(tenant, run, future)
        with self._has_work:
            if self._is_shut_down:
                raise RuntimeError("the executor was shut down")
            self._queue.put(tenant, work)
            is_short = self._num_idle < self._queue.num_waiting
            if is_short and self._num_started < self._num_threads:
                self._num_started += 1
                thread_name = f"{self._name}-{self._num_started}"
                threading.Thread(target=self._serve, name=thread_name, daemon=True).start()
            self._has_work.notify()
        # A future that held its work would be a reference cycle with everything the work holds.
        future.add_done_callback(partial(self._remove_cancelled, weakref.ref(work)))
        return future

    def shutdown(self) -> None:
        """Take no more work, and return at once; queued work still runs."""
        with self._has_work:
            self._is_shut_down = True
            self._has_work.notify_all()

    def _remove_cancelled(self, reference: "weakref.ref[_Work]", future: "Future[Any]") -> None:
        work = reference()
        if work is not None and future.cancelled():
            with self._has_work:
                self._queue.remove(work.tenant, work)

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            _run(work)
            tenant = work.tenant
            del work  # and with it what it holds, such as a request's body
            with self._has_work:
                self._queue.finish(tenant)
                self._has_work.notify()

    def _next(self) -> _Work | None:
        with self._has_work:
            self._num_idle += 1
            while (work := self._queue.start()) is None and not self._is_shut_down:
                self._has_work.wait()
            self._num_idle -= 1
            return work


def _run(work: _Work) -> None:
    """Run a function unless its future was cancelled, and set the future's result or error."""
    if not work.future.set_running_or_notify_cancel():
        return
    try:
        result = work.run()
    except BaseException as error:  # noqa: BLE001 - a panic of a Rust library is no Exception
        work.future.set_exception(error)
    else:
        work.future.set_result(result)
