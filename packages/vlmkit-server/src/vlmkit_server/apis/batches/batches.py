"""All batches of a server: new ones are checked in turn, and then asked; after a restart, again."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack

from litestar.types import ASGIApp

from vlmkit.errors import RequestError
from vlmkit_server.apis.batches.in_process_client import InProcessClient
from vlmkit_server.apis.batches.input_lines import Check, Place
from vlmkit_server.apis.batches.records import Kind, OpenBatch
from vlmkit_server.apis.batches.runner import BatchRunner
from vlmkit_server.apis.batches.store import BatchStore
from vlmkit_server.apis.batches.wire import MESSAGES, BatchBody, BatchErrors, BatchRequest
from vlmkit_server.apis.files.disk_store import FilesOnDisk
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.caller import Caller
from vlmkit_server.http.errors import NotStored, Unavailable

log = logging.getLogger(__name__)

SWEEP_S = 60.0
RETRY_S = 2.0


class Batches:
    """Batches that outlive the process.

    Args:
        files: has their files.
        service: says whether there is room.
        app: answers lines as it answers requests.

    Attributes:
        files: has their files.
        store: knows how far they are.
    """

    def __init__(self, files: FilesOnDisk, service: Service, app: ASGIApp) -> None:
        self.files = files
        self._settings = service.settings
        self.store = BatchStore(files.folder)
        self.asker = BatchRunner(self.store, service, InProcessClient(app))
        self._unchecked: asyncio.Queue[OpenBatch] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_restored = False

    async def start(self) -> None:
        """Go on with what is there from before, once the disk can be written."""
        with contextlib.suppress(Unavailable):  # the log says it
            await self._restore()
        self._tasks.append(asyncio.ensure_future(self._run()))

    async def _run(self) -> None:
        while not self._is_restored:
            await asyncio.sleep(RETRY_S)
            with contextlib.suppress(Unavailable):
                await self._restore()
        for work in (self.asker.run(), self._check_all(), self._sweep()):
            self._tasks.append(asyncio.ensure_future(work))

    async def _restore(self) -> None:
        ongoing = await self.store.restore()
        suspects = await self.store.lines.suspects()
        for batch in ongoing:
            if batch.status == "validating":
                self._unchecked.put_nowait(batch)
            else:
                self.asker.add(batch)
        if ongoing:
            self.asker.suspect(suspects)
            log.info("batches go on that had not ended")
        self._is_restored = True

    async def stop(self) -> None:
        """Stop to ask; what was not answered is asked after the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(Unavailable):
            await self.store.lines.give_all_back()
        self.files.folder.close()

    async def create(self, asked: BatchRequest, caller: Caller) -> BatchBody:
        """Begin a batch.

        Raises:
            RequestError: its file is not there or not for batches, or it is too long.
            Unavailable: it cannot be kept.
        """
        self._check_restored()
        try:
            file = await self.files.find(asked.input_file_id, caller.owner)
        except RequestError as error:
            error.param = "input_file_id"
            raise
        if file.purpose != "batch":
            raise RequestError(
                "input_file_id names a file whose purpose is not batch", param="input_file_id"
            )
        body = await self.store.create(asked, caller)
        self._unchecked.put_nowait(await self.store.opened(body.id))
        return body

    async def create_of_lines(self, lots: Iterator[bytes], caller: Caller) -> BatchBody:
        """Begin a batch of messages, whose lines are written into a file.

        Raises:
            RequestError: its owner has no room for them.
            Unavailable: it cannot be kept.
        """
        self._check_restored()
        incoming = self.files.incoming(caller.owner)
        with ExitStack() as undo:
            undo.callback(incoming.drop)
            while lot := await asyncio.to_thread(next, lots, b""):
                incoming.take(len(lot))
                await incoming.write(lot)
            await incoming.end()
            file = await self.files.keep(
                incoming,
                filename="messages.jsonl",
                purpose="batch",
                media_type="application/jsonl",
                lives_s=None,
            )
            undo.pop_all()
        asked = BatchRequest(file.id, "/v1/chat/completions", "24h")
        try:
            body = await self.store.create(asked, caller, MESSAGES)
        except BaseException:
            await self.files.delete(file.id, caller.owner)
            raise
        self._unchecked.put_nowait(await self.store.opened(body.id))
        return body

    async def delete(self, batch_id: str, owner: bytes) -> None:
        """Forget a batch of messages that has ended, and its files.

        Raises:
            NotStored: there is none, or not of this owner.
            RequestError: it has not ended.
        """
        body = await self.store.find(batch_id, owner, "msgbatch")
        if body.ended_at is None:
            raise RequestError("the batch has not ended", code="batch_not_ended", hint="cancel it")
        for name in (body.input_file_id, body.output_file_id, body.error_file_id):
            if name is not None:
                with contextlib.suppress(NotStored):
                    await self.files.delete(name, owner)
        await self.store.delete(batch_id, owner)

    async def cancel(self, batch_id: str, caller: Caller, kind: Kind = "batch") -> BatchBody:
        """Let a batch end.

        Raises:
            NotStored: there is none, or not of this owner.
        """
        body = await self.store.cancel(batch_id, caller.owner, kind)
        self.asker.cancel(batch_id)
        return body

    def _check_restored(self) -> None:
        if not self._is_restored:
            raise Unavailable("the disk cannot be written", code="disk_failed")

    async def _check_all(self) -> None:
        while True:
            batch = await self._unchecked.get()
            while True:
                try:
                    await self._check(batch)
                except Unavailable:  # the disk is full, and the log says it
                    await asyncio.sleep(RETRY_S)
                else:
                    break

    async def _check(self, batch: OpenBatch) -> None:
        """Look at all lines of a batch, and begin to ask it, or say why not."""
        data = self._settings.data
        check = Check(
            self.files.folder.path(batch.input_id),
            batch.endpoint,
            max_lines=data.max_batch_lines,
            max_line_bytes=self._settings.max_body_bytes,
        )
        lots = check.places()
        is_first = is_wanted = True
        try:
            while is_wanted and (lot := await asyncio.to_thread(_next, lots)) is not None:
                is_wanted = await self.store.lines.add_lines(batch.number, lot, is_first=is_first)
                is_first = False
        except OSError:
            log.exception("the file of batch %s cannot be read", batch.id)
            check.refuse("unreadable_file", "the file cannot be read")
        if check.errors:
            await self.store.fail(batch, BatchErrors(check.errors))
        if is_wanted and not check.errors:
            await self.store.begin(batch.id, check.num_lines, check.model)
        current = await self.store.opened(batch.id)
        if current.status != "failed":
            self.asker.add(current)

    async def _sweep(self) -> None:
        """Forget what is over, now and then."""
        while True:
            with contextlib.suppress(Unavailable):
                await self.files.forget_expired()
                await self.store.forget_old()
            await asyncio.sleep(SWEEP_S)


def _next(lots: Iterator[list[Place]]) -> list[Place] | None:
    return next(lots, None)


def storage_location(batches: Batches | None) -> Batches:
    """Return what may keep a batch that is asked for by its id.

    Raises:
        NotStored: nothing keeps any.
    """
    if batches is None:
        raise NotStored(
            "no batch of this id is stored here", param="batch_id", code="batch_not_found"
        )
    return batches


def keeping(batches: Batches | None) -> Batches:
    """Return what keeps the batches of a server.

    Raises:
        RequestError: nothing does.
    """
    if batches is None:
        raise RequestError(
            "this server keeps no batches",
            code="batches_not_kept",
            hint="its operator can name a folder for them in server.data.folder",
        )
    return batches
