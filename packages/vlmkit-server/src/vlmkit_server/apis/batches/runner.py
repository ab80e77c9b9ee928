"""Runs the lines of batches: a few at once, in capacity that interactive requests leave free.

Tenants take turns; of a tenant's batches, the oldest goes first. A line is a request with a
priority below all that clients can set, so an interactive request preempts it in the engine. A
refused line runs again later. :mod:`vlmkit_server.apis.batches.line_requests` sends the requests
and creates the results.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from vlmkit_server.apis.batches.in_process_client import InProcessClient
from vlmkit_server.apis.batches.line_requests import LineRequests, Retry
from vlmkit_server.apis.batches.records import Done, OpenBatch, TakenLine
from vlmkit_server.apis.batches.store import BatchStore
from vlmkit_server.apis.batches.wire import Status
from vlmkit_server.apis.batches.writer import Writer
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.errors import RETRY_AFTER_S, Unavailable

log = logging.getLogger(__name__)

LEFT_AT_ONCE = 1000  # unanswered lines that are written together
POLL_S = 0.1  # between two checks for free capacity
IDLE_S = 60.0  # between two checks for expired batches
_LEFT: dict[Status, tuple[str, str]] = {
    "expired": ("batch_expired", "the completion window ended before this request was answered"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before this request was answered"),
}


@dataclass(eq=False, slots=True)
class ActiveBatch:
    """A batch whose lines are run.

    Attributes:
        batch: the batch.
        gone: set when its answers are no longer needed.
        num_running: number of lines that are running.
        is_dry: whether no line is waiting.
        ending: its final status, once that is decided.
        is_ending: whether its end is being written.
    """

    batch: OpenBatch
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    num_running: int = 0
    is_dry: bool = False
    ending: Status | None = None
    is_ending: bool = False


class BatchRunner:
    """Runs batches.

    Args:
        store: stores the batches.
        service: knows the free capacity.
        client: sends the requests.

    Attributes:
        num_running: number of lines that are running.
    """

    def __init__(self, store: BatchStore, service: Service, client: InProcessClient) -> None:
        self._store = store
        self._service = service
        self._requests = LineRequests(store.folder, client)
        self._finisher = _Finisher(store, self._requests)
        self._max_running = store.folder.settings.max_batch_requests
        self._active: dict[int, ActiveBatch] = {}
        self._rotation = _OwnerRotation()

        self._suspects: list[tuple[int, int]] = []
        self._changed = asyncio.Event()
        self._writer = Writer(store.lines)
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_running = 0

    def add(self, batch: OpenBatch) -> None:
        """Start to run a batch that was checked."""
        active = ActiveBatch(batch, ending=batch.ending)
        if active.ending is not None:
            active.gone.set()
        self._active[batch.number] = active
        log.info("batch %s of tenant %s started", batch.id, batch.account)
        self._changed.set()

    def suspect(self, lines: Iterable[tuple[int, int]]) -> None:
        """Run some lines first, one at a time: one of them may crash the process."""
        self._suspects = list(lines)

    def cancel(self, batch_id: str) -> None:
        """Stop a batch whose cancellation is stored."""
        for active in self._active.values():
            if active.batch.id == batch_id:
                self._end(active, "cancelled")

    async def run(self) -> None:
        """Run lines until this is cancelled."""
        try:
            while True:
                self._changed.clear()
                try:
                    self._end_batches()
                    pause_s = await self._run_lines()
                except Unavailable:  # the disk cannot be written, which is logged
                    pause_s = RETRY_AFTER_S
                except Exception:
                    log.exception("batches could not be run")
                    pause_s = RETRY_AFTER_S
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), pause_s)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._writer.stop()

    # Which lines are next.

    def _end_batches(self) -> None:
        now = self._store.now()
        for active in list(self._active.values()):
            if now >= active.batch.expires_at:
                self._end(active, "expired")
            if active.is_dry and not active.num_running:
                self._end(active, "completed")
            if active.ending and not active.num_running and not active.is_ending:
                active.is_ending = True
                self._start(self._finalize(active))

    async def _run_lines(self) -> float:
        """Start the lines that can run now; return how long to wait for a change."""
        while self._active and self.num_running < self._max_running:
            if self._service.admission.is_draining:
                return IDLE_S
            num_spare = self._service.admission.num_spare(self.num_running)
            if num_spare <= 0 or self._store.folder.is_full:
                return POLL_S
            if self._suspects:
                if self.num_running or await self._run_suspect():
                    return IDLE_S
                continue
            active, num = self._next()
            if active is None:
                break
            await self._take_lines(active, min(num, num_spare))
        now = self._store.now()
        ends = [each.batch.expires_at - now for each in self._active.values() if not each.ending]
        pauses = self._rotation.pauses_s()
        return max(POLL_S, min([IDLE_S, *ends, *pauses]))

    def _next(self) -> tuple[ActiveBatch | None, int]:
        """Return the batch whose turn it is, and how many lines it may start."""
        batches = self._active.values()
        found, num_owners = self._rotation.next(
            [each for each in batches if not each.ending and not each.is_dry],
            {each.batch.owner for each in batches},
        )
        if found is None:
            return None, 0
        return found, max(1, (self._max_running - self.num_running) // num_owners)

    async def _take_lines(self, active: ActiveBatch, num: int) -> None:
        active.is_dry = True  # unless there are more, or one is released meanwhile
        lines = await self._store.lines.take(active.batch.number, num)
        if len(lines) == num:
            active.is_dry = False
        for line in lines:
            self._start_line(active, line)
        if not lines:
            self._changed.set()

    async def _run_suspect(self) -> bool:
        """Run the next suspect line; tell whether it started."""
        batch, number = self._suspects.pop()
        active = self._active.get(batch)
        if active is None or active.ending:
            return False
        lines = await self._store.lines.take(batch, 1, number=number)
        for line in lines:
            self._start_line(active, line)
        return bool(lines)

    def _start_line(self, active: ActiveBatch, line: TakenLine) -> None:
        active.num_running += 1
        self.num_running += 1
        self._start(self._run_line(active, line))

    # One line.

    async def _run_line(self, active: ActiveBatch, line: TakenLine) -> None:
        """Run a line, and store its result."""
        try:
            done = await self._result(active, line)
            if done is not None:
                await self._writer.store(done)
        except Exception as error:  # the line stays marked as running, and is found later
            if not isinstance(error, Unavailable):
                log.exception("a batch line failed")
            self._rotation.pause(active.batch.owner, RETRY_AFTER_S)
        finally:
            active.num_running -= 1
            self.num_running -= 1
            self._changed.set()

    async def _result(self, active: ActiveBatch, line: TakenLine) -> Done | None:
        """Return the result of a line; None if it is to run again, or its batch ended."""
        done = await self._requests.run(active.batch, line, active.gone)
        if not isinstance(done, Retry):
            return done
        self._rotation.pause(active.batch.owner, done.pause_s)
        await self._store.lines.release(active.batch.number, line.number, counts=done.counts)
        active.is_dry = False
        return None

    # The end of a batch.

    def _end(self, active: ActiveBatch, ending: Status) -> None:
        if active.ending is None:
            active.ending = ending
            active.gone.set()
            self._changed.set()

    async def _finalize(self, active: ActiveBatch) -> None:
        if await self._finisher.finish(active):
            del self._active[active.batch.number]
        self._changed.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a batch task failed", exc_info=error)


class _OwnerRotation:
    """Gives turns to the owners of batches, and pauses owners whose lines were refused."""

    def __init__(self) -> None:
        self._last_turns: dict[bytes, int] = {}
        self._numbers = itertools.count(1)
        self._paused_until_s: dict[bytes, float] = {}

    def pause(self, owner: bytes, pause_s: float) -> None:
        """Run no line of an owner for a while."""
        self._paused_until_s[owner] = time.monotonic() + pause_s

    def pauses_s(self) -> list[float]:
        """Return how long the owners are still paused."""
        return [until_s - time.monotonic() for until_s in self._paused_until_s.values()]

    def next(
        self, waiting: Iterable[ActiveBatch], owners: Collection[bytes]
    ) -> tuple[ActiveBatch | None, int]:
        """Return the batch whose turn it is, and how many owners have a batch that can run.

        Args:
            waiting: batches with waiting lines, the oldest first.
            owners: the owners of all batches.
        """
        now_s = time.monotonic()
        self._paused_until_s = {
            owner: until_s for owner, until_s in self._paused_until_s.items() if until_s > now_s
        }
        first: dict[bytes, ActiveBatch] = {}
        for active in waiting:
            if active.batch.owner not in self._paused_until_s:
                first.setdefault(active.batch.owner, active)
        if not first:
            return None, 0
        self._last_turns = {owner: self._last_turns.get(owner, 0) for owner in owners}
        owner = min(first, key=self._last_turns.__getitem__)
        self._last_turns[owner] = next(self._numbers)
        return first[owner], len(first)


class _Finisher:
    """Ends batches, and writes results for their unanswered lines.

    Args:
        store: stores the batches.
        requests: creates the results.
    """

    def __init__(self, store: BatchStore, requests: LineRequests) -> None:
        self._store = store
        self._requests = requests

    async def finish(self, active: ActiveBatch) -> bool:
        """End a batch; False if it has lines whose result is unknown, which run again."""
        while True:
            try:
                return await self._try_finish(active)
            except Unavailable:  # the disk cannot be written, which is logged
                await asyncio.sleep(RETRY_AFTER_S)
            except Exception:  # retried: otherwise its owner would wait forever
                log.exception("batch %s could not be ended", active.batch.id)
                await asyncio.sleep(RETRY_AFTER_S)

    async def _try_finish(self, active: ActiveBatch) -> bool:
        batch, ending = active.batch, active.ending or "completed"
        if ending == "completed" and await self._store.lines.reset(batch.number):
            active.gone = asyncio.Event()
            active.ending, active.is_dry, active.is_ending = None, False, False
            return False
        await self._store.lifecycle.finalize(batch, ending)
        if ending in _LEFT:
            await self._end_lines(batch, *_LEFT[ending])
        await self._store.lifecycle.end(batch, ending)
        log.info("batch %s of tenant %s ended: %s", batch.id, batch.account, ending)
        return True

    async def _end_lines(self, batch: OpenBatch, code: str, why: str) -> None:
        def left_out(lines: Iterable[TakenLine]) -> list[Done]:
            return [self._requests.left_out(batch, line, code, why) for line in lines]

        while lines := await self._store.lines.left(batch.number, LEFT_AT_ONCE):
            await self._store.lines.finish(await asyncio.to_thread(left_out, lines))
