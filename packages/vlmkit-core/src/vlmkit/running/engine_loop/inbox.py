"""Requests of other threads to the loop: new sequences, cancellations, drain and close."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from vlmkit.running.engine_loop.job import Job
from vlmkit.running.engine_loop.stream import Channel
from vlmkit.running.faults.engine_errors import closing_error, engine_failed

M = TypeVar("M")


class InboxBatch(NamedTuple):
    """What the loop takes from the inbox at once.

    Attributes:
        new: sequences to run.
        aborted: the channels of requests to abort.
    """

    new: list[Job]
    aborted: set[Channel]


class Inbox:
    """A thread-safe queue to the loop, which empties it between steps.

    Attributes:
        failure: why the loop ended, if it failed.
        changed: is notified of every change.
    """

    def __init__(self) -> None:
        self._jobs: deque[list[Job]] = deque()
        self._aborted: deque[Channel] = deque()
        self._is_closing = False
        self._is_draining = False
        self._is_pending = False
        self.failure: BaseException | None = None
        self._watchers: list[Callable[[BaseException], None]] = []
        self.changed = threading.Condition()

    @property
    def num_jobs(self) -> int:
        """Sequences that the loop has not taken yet."""
        return sum(map(len, list(self._jobs)))

    def num_jobs_of(self, account: str) -> int:
        """Return how many of those belong to one account."""
        return sum(len(jobs) for jobs in list(self._jobs) if jobs[0].channel.account == account)

    def put(self, jobs: list[Job], refuse: Callable[[list[Job]], None]) -> None:
        """Add the sequences of one request.

        Args:
            jobs: the sequences.
            refuse: raises if the queue is full; called under the lock.

        Raises:
            EngineError: the loop is closed or has failed.
        """
        with self.changed:
            if self.failure is not None:
                raise engine_failed(self.failure)
            if self._is_closing or self._is_draining:
                raise closing_error()
            refuse(jobs)
            self._jobs.append(jobs)
            self._notify()

    def abort(self, channel: Channel) -> None:
        """Request the abort of a request."""
        with self.changed:
            self._aborted.append(channel)
            self._notify()

    def wake(self) -> None:
        """Wake the loop."""
        with self.changed:
            self._notify()

    def close(self) -> None:
        """Request the end of the loop."""
        with self.changed:
            self._is_closing = True
            self._notify()

    def drain(self, is_idle: Callable[[], bool], timeout_s: float) -> bool:
        """Accept nothing more and wait until the loop is idle; return whether that was in time."""
        with self.changed:
            self._is_draining = True
            self._notify()
            return self.changed.wait_for(lambda: is_idle() and not self._jobs, timeout_s)

    def on_failure(self, notify: Callable[[BaseException], None]) -> None:
        """Call a function with the reason when the loop fails; at once if it has."""
        with self.changed:
            if self.failure is None:
                self._watchers.append(notify)
                return
        notify(self.failure)

    # The loop's side.

    def wait(self, can_run: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait for a request or until the loop can run; return False after the timeout."""
        with self.changed:
            self.changed.notify_all()  # for threads that wait for a drained loop
            return self.changed.wait_for(lambda: self._is_pending or can_run(), timeout_s)

    def take(self, add: Callable[[Job], None]) -> InboxBatch | None:
        """Return everything in the inbox; None when the loop must end.

        Each sequence is passed to ``add`` under the lock.
        """
        with self.changed:
            self._is_pending = False
            if self._is_closing or self.failure is not None:
                return None
            new = [job for jobs in _drained(self._jobs) for job in jobs]
            for job in new:
                add(job)
            return InboxBatch(new, set(_drained(self._aborted)))

    def fail(self, failure: BaseException) -> list[Callable[[BaseException], None]]:
        """Accept nothing more, for a reason; return the functions to call with it."""
        with self.changed:
            if self.failure is None:
                self.failure = failure
            watchers, self._watchers = self._watchers, []
            self._notify()
            return watchers

    def end(self, add: Callable[[Job], None]) -> None:
        """Pass the remaining sequences to ``add``; they will not run."""
        with self.changed:
            for jobs in _drained(self._jobs):
                for job in jobs:
                    add(job)

    def _notify(self) -> None:
        self._is_pending = True
        self.changed.notify_all()


def _drained(queue: deque[M]) -> Iterator[M]:
    while queue:
        yield queue.popleft()
