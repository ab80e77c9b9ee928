"""All batches of a server: new ones are checked in turn, and then asked; after a restart, again."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from litestar.types import ASGIApp

from vlmkit.errors import RequestError
from vlmkit.server.batches.asker import Asker
from vlmkit.server.batches.inside import Inside
from vlmkit.server.batches.lines import Check, Place
from vlmkit.server.batches.store import BatchStore, OpenBatch
from vlmkit.server.batches.wire import BatchBody, BatchErrors, BatchRequest
from vlmkit.server.files.disk import FilesOnDisk
from vlmkit.server.http.caller import Caller
from vlmkit.server.http.errors import Unavailable
from vlmkit.server.work.service import Service

log = logging.getLogger(__name__)

SWEEP_S = 60.0
RETRY_S = 2.0


class Batches:
    """Batches that outlive the process.

    Args:
        files: has their files.
        service: says whether there is room.
        app: answers lines as it answers requests.
    """

    def __init__(self, files: FilesOnDisk, service: Service, app: ASGIApp) -> None:
        self._files = files
        self._settings = service.settings
        self.store = BatchStore(files.folder)
        self.asker = Asker(self.store, service, Inside(app))
        self._unchecked: asyncio.Queue[OpenBatch] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Go on with what is there from before."""
        is_going = False
        for batch in await self.store.restore():
            is_going = True
            if batch.status == "validating":
                self._unchecked.put_nowait(batch)
            else:
                self.asker.add(batch)
        if is_going:
            self.asker.suspect(await self.store.suspects())
            log.info("batches go on that had not ended")
        for work in (self.asker.run(), self._check_all(), self._sweep()):
            self._tasks.append(asyncio.ensure_future(work))

    async def stop(self) -> None:
        """Stop to ask; what was not answered is asked after the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(Unavailable):
            await self.store.give_all_back()
        self._files.folder.close()

    async def create(self, asked: BatchRequest, caller: Caller) -> BatchBody:
        """Begin a batch.

        Raises:
            RequestError: its file is not there or not for batches, or it is too long.
            Unavailable: it cannot be kept.
        """
        try:
            file = await self._files.find(asked.input_file_id, caller.owner)
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

    async def cancel(self, batch_id: str, caller: Caller) -> BatchBody:
        """Let a batch end.

        Raises:
            NotStored: there is none, or not of this owner.
        """
        body = await self.store.cancel(batch_id, caller.owner)
        self.asker.cancel(batch_id)
        return body

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
            self._files.folder.path(batch.input_id),
            batch.endpoint,
            max_lines=data.max_batch_lines,
            max_line_bytes=self._settings.max_body_bytes,
        )
        lots = check.places()
        is_first = is_wanted = True
        try:
            while is_wanted and (lot := await asyncio.to_thread(_next, lots)) is not None:
                is_wanted = await self.store.add_lines(batch.number, lot, is_first=is_first)
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
                await self._files.forget_expired()
                await self.store.forget_old()
            await asyncio.sleep(SWEEP_S)


def _next(lots: Iterator[list[Place]]) -> list[Place] | None:
    return next(lots, None)
