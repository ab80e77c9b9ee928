"""What other threads ask of the loop, and the bell that wakes it. Decides nothing."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from vlmkit.running.engine_loop.channel import Channel
from vlmkit.running.engine_loop.job import Job
from vlmkit.running.faults.engine_errors import closing_error, engine_failed

M = TypeVar("M")


class InboxBatch(NamedTuple):
    """What lay in the inbox.

    Attributes:
        new: sequences to run.
        aborted: channels whose requests are to end.
    """

    new: list[Job]
    aborted: set[Channel]


class Inbox:
    """Takes requests, cancellations and other news; the loop empties it between steps."""

    def __init__(self) -> None:
        self._jobs: deque[list[Job]] = deque()
        self._aborted: deque[Channel] = deque()
        self._is_closing = False
        self._is_draining = False
        self._has_news = False
        self._failure: BaseException | None = None
        self._watchers: list[Callable[[BaseException], None]] = []
        self.bell = threading.Condition()

    @property
    def num_jobs(self) -> int:
        """Sequences that the loop has not seen yet."""
        return sum(map(len, list(self._jobs)))

    def num_jobs_of(self, account: str) -> int:
        """Return how many of those are on one account."""
        return sum(len(jobs) for jobs in list(self._jobs) if jobs[0].channel.account == account)

    @property
    def failure(self) -> BaseException | None:
        """Why the loop ended, if it failed."""
        return self._failure

    def put(self, jobs: list[Job], refuse: Callable[[list[Job]], None]) -> None:
        """Leave the sequences of one request.

        Args:
            jobs: them.
            refuse: raises if there is no place for them; called under the lock.

        Raises:
            EngineError: the loop is closed or has failed.
        """
        with self.bell:
            if self._failure is not None:
                raise engine_failed(self._failure)
            if self._is_closing or self._is_draining:
                raise closing_error()
            refuse(jobs)
            self._jobs.append(jobs)
            self._ring()

    def abort(self, channel: Channel) -> None:
        """Ask for the end of a request."""
        with self.bell:
            self._aborted.append(channel)
            self._ring()

    def wake(self) -> None:
        """Let the loop look again."""
        with self.bell:
            self._ring()

    def close(self) -> None:
        """Ask for the end of everything."""
        with self.bell:
            self._is_closing = True
            self._ring()

    def drain(self, is_idle: Callable[[], bool], timeout_s: float) -> bool:
        """Take nothing more, and wait until the loop has nothing left; tell if that was in time."""
        with self.bell:
            self._is_draining = True
            self._ring()
            return self.bell.wait_for(lambda: is_idle() and not self._jobs, timeout_s)

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Call a function with the reason when the loop fails; at once if it has."""
        with self.bell:
            if self._failure is None:
                self._watchers.append(tell)
                return
        tell(self._failure)

    # The loop's side.

    def wait(self, can_run: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait for news, or until the loop can run by itself; False if the time is over."""
        with self.bell:
            self.bell.notify_all()  # who waits for a drained loop looks again
            return self.bell.wait_for(lambda: self._has_news or can_run(), timeout_s)

    def take(self, know: Callable[[Job], None]) -> InboxBatch | None:
        """Return what lay here, each sequence made known under the lock; None to end."""
        with self.bell:
            self._has_news = False
            if self._is_closing or self._failure is not None:
                return None
            new = [job for jobs in _drained(self._jobs) for job in jobs]
            for job in new:
                know(job)
            return InboxBatch(new, set(_drained(self._aborted)))

    def fail(self, failure: BaseException) -> list[Callable[[BaseException], None]]:
        """Take nothing more, for that reason; return who wants to know it, the first time."""
        with self.bell:
            if self._failure is None:
                self._failure = failure
            watchers, self._watchers = self._watchers, []
            self._ring()
            return watchers

    def end(self, know: Callable[[Job], None]) -> None:
        """Hand out what nobody will run any more."""
        with self.bell:
            for jobs in _drained(self._jobs):
                for job in jobs:
                    know(job)

    def _ring(self) -> None:
        self._has_news = True
        self.bell.notify_all()


def _drained(queue: deque[M]) -> Iterator[M]:
    while queue:
        yield queue.popleft()
