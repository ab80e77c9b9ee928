"""Asks the lines of batches: a few at once, whenever those who wait for their answers leave room.

Tenants take turns, and of a tenant's batches the oldest goes first. A line is a request like any
other, of a priority below all that clients can ask for: a newcomer takes its place in the engine. A
line that is refused for want of room is asked again later. How one is asked, and what is written of
it, is the business of :mod:`vlmkit_server.apis.batches.line_requests`.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Coroutine, Iterable
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

LEFT_AT_ONCE = 1000  # lines without an answer that are written together
CROWDED_S = 0.1  # between looks whether there is room
REST_S = 60.0  # between looks whether a batch has expired
_LEFT: dict[Status, tuple[str, str]] = {
    "expired": ("batch_expired", "the completion window ended before this request was answered"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before this request was answered"),
}


@dataclass(eq=False, slots=True)
class ActiveBatch:
    """A batch whose lines are asked.

    Attributes:
        batch: it.
        gone: is set when its answers are not wanted any more.
        num_asked: how many lines are being answered.
        is_dry: whether no line waits.
        ending: what it will have been, once that is known.
        is_ending: whether its end is being written.
    """

    batch: OpenBatch
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    num_asked: int = 0
    is_dry: bool = False
    ending: Status | None = None
    is_ending: bool = False


class BatchRunner:
    """Has batches answered.

    Args:
        store: has them.
        service: says whether there is room.
        inside: answers a line.

    Attributes:
        num_asked: how many lines are being answered.
    """

    def __init__(self, store: BatchStore, service: Service, inside: InProcessClient) -> None:
        self._store = store
        self._service = service
        self._answers = LineRequests(store.folder, inside)
        self._most = store.folder.settings.max_batch_requests
        self._going: dict[int, ActiveBatch] = {}
        self._turns: dict[bytes, int] = {}  # owners, and the number of each one's last turn
        self._numbers = itertools.count(1)
        self._resting: dict[bytes, float] = {}  # owners, until when
        self._suspects: list[tuple[int, int]] = []
        self._bell = asyncio.Event()
        self._writer = Writer(store.lines)
        self._tasks: set[asyncio.Task[None]] = set()
        self.num_asked = 0

    def add(self, batch: OpenBatch) -> None:
        """Begin to ask a batch that was checked."""
        going = ActiveBatch(batch, ending=batch.ending)
        if going.ending is not None:
            going.gone.set()
        self._going[batch.number] = going
        log.info("batch %s of account %s is asked", batch.id, batch.account)
        self._bell.set()

    def suspect(self, lines: Iterable[tuple[int, int]]) -> None:
        """Ask some lines before all others, and one by one: one of them may end the process."""
        self._suspects = list(lines)

    def cancel(self, batch_id: str) -> None:
        """Stop to ask a batch whose cancellation is noted."""
        for going in self._going.values():
            if going.batch.id == batch_id:
                self._end(going, "cancelled")

    async def run(self) -> None:
        """Ask, until this is cancelled."""
        try:
            while True:
                self._bell.clear()
                try:
                    self._end_what_is_over()
                    rest_s = await self._ask_some()
                except Unavailable:  # the disk cannot be written; the log says it
                    rest_s = RETRY_AFTER_S
                except Exception:
                    log.exception("batches could not be asked")
                    rest_s = RETRY_AFTER_S
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._bell.wait(), rest_s)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._writer.stop()

    # Who is asked next.

    def _end_what_is_over(self) -> None:
        now = self._store.now()
        for going in list(self._going.values()):
            if now >= going.batch.expires_at:
                self._end(going, "expired")
            if going.is_dry and not going.num_asked:
                self._end(going, "completed")
            if going.ending and not going.num_asked and not going.is_ending:
                going.is_ending = True
                self._start(self._finalize(going))

    async def _ask_some(self) -> float:
        """Ask what can be asked now, and return how long to rest unless something happens."""
        while self._going and self.num_asked < self._most:
            if self._service.is_draining:
                return REST_S
            num_spare = self._service.num_spare(self.num_asked)
            if num_spare <= 0 or self._store.folder.is_full:
                return CROWDED_S
            if self._suspects:
                if self.num_asked or await self._ask_suspect():
                    return REST_S
                continue
            going, num = self._next()
            if going is None:
                break
            await self._ask_lines(going, min(num, num_spare))
        now = self._store.now()
        ends = [each.batch.expires_at - now for each in self._going.values() if not each.ending]
        pauses = [until - time.monotonic() for until in self._resting.values()]
        return max(CROWDED_S, min([REST_S, *ends, *pauses]))

    def _next(self) -> tuple[ActiveBatch | None, int]:
        """Return whose turn it is, and how many lines it may ask."""
        now = time.monotonic()
        self._resting = {owner: until for owner, until in self._resting.items() if until > now}
        first: dict[bytes, ActiveBatch] = {}
        for going in self._going.values():
            if not going.ending and not going.is_dry and going.batch.owner not in self._resting:
                first.setdefault(going.batch.owner, going)
        if not first:
            return None, 0
        owners = {going.batch.owner for going in self._going.values()}
        self._turns = {owner: self._turns.get(owner, 0) for owner in owners}
        owner = min(first, key=self._turns.__getitem__)
        self._turns[owner] = next(self._numbers)
        return first[owner], max(1, (self._most - self.num_asked) // len(first))

    async def _ask_lines(self, going: ActiveBatch, num: int) -> None:
        going.is_dry = True  # unless there are more, or one is given back meanwhile
        lines = await self._store.lines.take(going.batch.number, num)
        if len(lines) == num:
            going.is_dry = False
        for line in lines:
            self._ask(going, line)
        if not lines:
            self._bell.set()

    async def _ask_suspect(self) -> bool:
        """Ask the next of those that may end the process; tell whether it is being asked."""
        batch, number = self._suspects.pop()
        going = self._going.get(batch)
        if going is None or going.ending:
            return False
        lines = await self._store.lines.take(batch, 1, number=number)
        for line in lines:
            self._ask(going, line)
        return bool(lines)

    def _ask(self, going: ActiveBatch, line: TakenLine) -> None:
        going.num_asked += 1
        self.num_asked += 1
        self._start(self._answered(going, line))

    # One line.

    async def _answered(self, going: ActiveBatch, taken: TakenLine) -> None:
        """Ask a line, and keep what comes of it."""
        try:
            done = await self._came_of(going, taken)
            if done is not None:
                await self._writer.keep(done)
        except Exception as error:  # the line stays noted as asked, and is found so later
            if not isinstance(error, Unavailable):
                log.exception("a line of a batch could not be asked")
            self._rest(going.batch.owner, RETRY_AFTER_S)
        finally:
            going.num_asked -= 1
            self.num_asked -= 1
            self._bell.set()

    async def _came_of(self, going: ActiveBatch, taken: TakenLine) -> Done | None:
        """Return what came of a line; None where nothing did, and it is asked again or ended."""
        done = await self._answers.ask(going.batch, taken, going.gone)
        if not isinstance(done, Retry):
            return done
        self._rest(going.batch.owner, done.pause_s)
        await self._store.lines.give_back(going.batch.number, taken.number, counts=done.counts)
        going.is_dry = False
        return None

    def _rest(self, owner: bytes, pause_s: float) -> None:
        """Ask nothing of an owner's for a while."""
        self._resting[owner] = time.monotonic() + pause_s

    # The end of a batch.

    def _end(self, going: ActiveBatch, ending: Status) -> None:
        if going.ending is None:
            going.ending = ending
            going.gone.set()
            self._bell.set()

    async def _finalize(self, going: ActiveBatch) -> None:
        """Write what becomes of lines without an answer, and end a batch."""
        while True:
            try:
                is_over = await self._is_over(going)
                break
            except Unavailable:  # the disk cannot be written; the log says it
                await asyncio.sleep(RETRY_AFTER_S)
            except Exception:  # it is not given up: whoever waits for it would wait for ever
                log.exception("batch %s could not be ended", going.batch.id)
                await asyncio.sleep(RETRY_AFTER_S)
        if is_over:
            del self._going[going.batch.number]
        self._bell.set()

    async def _is_over(self, going: ActiveBatch) -> bool:
        """End a batch, but not one that has lines which nobody knows to be answered."""
        batch, ending = going.batch, going.ending or "completed"
        if ending == "completed" and await self._store.lines.ask_again(batch.number):
            going.gone = asyncio.Event()
            going.ending, going.is_dry, going.is_ending = None, False, False
            return False
        await self._store.finalize(batch, ending)
        if ending in _LEFT:
            await self._end_lines(batch, *_LEFT[ending])
        await self._store.end(batch, ending)
        log.info("batch %s of account %s is %s", batch.id, batch.account, ending)
        return True

    async def _end_lines(self, batch: OpenBatch, code: str, why: str) -> None:
        def left_out(lines: Iterable[TakenLine]) -> list[Done]:
            return [self._answers.left_out(batch, line, code, why) for line in lines]

        while lines := await self._store.lines.left(batch.number, LEFT_AT_ONCE):
            await self._store.lines.finish(await asyncio.to_thread(left_out, lines))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a line of a batch could not be asked", exc_info=error)
