"""Creates batches, checks their input files in turn, and resumes them after a restart."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack

from litestar.types import ASGIApp

from vlmkit.errors import RequestError
from vlmkit_server.apis.batches.in_process_client import InProcessClient
from vlmkit_server.apis.batches.input_lines import Check, LineSpan
from vlmkit_server.apis.batches.records import Kind, OpenBatch
from vlmkit_server.apis.batches.runner import BatchRunner
from vlmkit_server.apis.batches.store import BatchStore
from vlmkit_server.apis.batches.wire import MESSAGES, BatchBody, BatchErrors, BatchRequest
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.caller import Caller
from vlmkit_server.http.errors import NotStored, Unavailable
from vlmkit_server.storage.disk_store import FilesOnDisk

log = logging.getLogger(__name__)

SWEEP_S = 60.0
RETRY_S = 2.0


class Batches:
    """The batches of a server; they survive a restart.

    Args:
        files: stores their files.
        service: admits their requests.
        app: answers their requests.

    Attributes:
        files: stores their files.
        store: stores their state.
    """

    def __init__(self, files: FilesOnDisk, service: Service, app: ASGIApp) -> None:
        self.files = files
        self._settings = service.settings
        self.store = BatchStore(files.folder)
        self._runner = BatchRunner(self.store, service, InProcessClient(app))
        self._unchecked: asyncio.Queue[OpenBatch] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_restored = False

    async def start(self) -> None:
        """Resume unfinished batches, once the disk is writable."""
        with contextlib.suppress(Unavailable):  # it is logged
            await self._restore()
        self._tasks.append(asyncio.ensure_future(self._run()))

    async def _run(self) -> None:
        while not self._is_restored:
            await asyncio.sleep(RETRY_S)
            with contextlib.suppress(Unavailable):
                await self._restore()
        for work in (self._runner.run(), self._check_all(), self._sweep()):
            self._tasks.append(asyncio.ensure_future(work))

    async def _restore(self) -> None:
        ongoing = await self.store.lifecycle.restore()
        suspects = await self.store.lines.suspects()
        for batch in ongoing:
            if batch.status == "validating":
                self._unchecked.put_nowait(batch)
            else:
                self._runner.add(batch)
        if ongoing:
            self._runner.suspect(suspects)
            log.info("unfinished batches resumed: %d", len(ongoing))
        self._is_restored = True

    async def stop(self) -> None:
        """Stop running batches; unanswered lines run after the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(Unavailable):
            await self.store.lines.release_all()
        self.files.folder.close()

    async def create(self, request: BatchRequest, caller: Caller) -> BatchBody:
        """Create a batch.

        Raises:
            RequestError: its file is missing or not for batches, or it is too long.
            Unavailable: it cannot be stored.
        """
        self._check_restored()
        try:
            file = await self.files.find(request.input_file_id, caller.owner)
        except RequestError as error:
            error.param = "input_file_id"
            raise
        if file.purpose != "batch":
            raise RequestError(
                "input_file_id names a file whose purpose is not batch", param="input_file_id"
            )
        body = await self.store.create(request, caller)
        self._unchecked.put_nowait(await self.store.lifecycle.opened(body.id))
        return body

    async def create_of_lines(self, chunks: Iterator[bytes], caller: Caller) -> BatchBody:
        """Create a batch of messages; its lines are written to a file.

        Raises:
            RequestError: the owner has no room for them.
            Unavailable: it cannot be stored.
        """
        self._check_restored()
        incoming = self.files.incoming(caller.owner)
        with ExitStack() as undo:
            undo.callback(incoming.drop)
            while chunk := await asyncio.to_thread(next, chunks, b""):
                incoming.count(len(chunk))
                await incoming.write(chunk)
            await incoming.end()
            file = await self.files.keep(
                incoming,
                filename="messages.jsonl",
                purpose="batch",
                media_type="application/jsonl",
                lives_s=None,
            )
            undo.pop_all()
        request = BatchRequest(file.id, "/v1/chat/completions", "24h")
        try:
            body = await self.store.create(request, caller, MESSAGES)
        except BaseException:
            await self.files.delete(file.id, caller.owner)
            raise
        self._unchecked.put_nowait(await self.store.lifecycle.opened(body.id))
        return body

    async def delete(self, batch_id: str, owner: bytes) -> None:
        """Delete a batch of messages that has ended, and its files.

        Raises:
            NotStored: it does not exist, or has another owner.
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
        """Cancel a batch.

        Raises:
            NotStored: it does not exist, or has another owner.
        """
        body = await self.store.cancel(batch_id, caller.owner, kind)
        self._runner.cancel(batch_id)
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
                except Unavailable:  # the disk is full, which is logged
                    await asyncio.sleep(RETRY_S)
                else:
                    break

    async def _check(self, batch: OpenBatch) -> None:
        """Check all lines of a batch, then start to run it, or fail it."""
        data = self._settings.data
        check = Check(
            self.files.folder.path(batch.input_id),
            batch.endpoint,
            max_lines=data.max_batch_lines,
            max_line_bytes=self._settings.max_body_bytes,
        )
        chunks = check.spans()
        is_first = is_validating = True
        try:
            while is_validating and (chunk := await asyncio.to_thread(_next, chunks)) is not None:
                is_validating = await self.store.lines.add_lines(
                    batch.number, chunk, is_first=is_first
                )
                is_first = False
        except OSError:
            log.exception("the input file of batch %s cannot be read", batch.id)
            check.refuse("unreadable_file", "the file cannot be read")
        if check.errors:
            await self.store.lifecycle.fail(batch, BatchErrors(check.errors))
        if is_validating and not check.errors:
            await self.store.lifecycle.begin(batch.id, check.num_lines, check.model)
        current = await self.store.lifecycle.opened(batch.id)
        if current.status != "failed":
            self._runner.add(current)

    async def _sweep(self) -> None:
        """Delete expired files and old batches, once a minute."""
        while True:
            with contextlib.suppress(Unavailable):
                await self.files.forget_expired()
                await self.store.lifecycle.forget_old()
            await asyncio.sleep(SWEEP_S)


def _next(chunks: Iterator[list[LineSpan]]) -> list[LineSpan] | None:
    return next(chunks, None)


def batches_or_not_found(batches: Batches | None) -> Batches:
    """Return the batches, for a request that names one by id.

    Raises:
        NotStored: the server stores no batches.
    """
    if batches is None:
        raise NotStored(
            "no batch of this id is stored here", param="batch_id", code="batch_not_found"
        )
    return batches


def require_batches(batches: Batches | None) -> Batches:
    """Return the batches, for a request that creates one.

    Raises:
        RequestError: the server stores no batches.
    """
    if batches is None:
        raise RequestError(
            "this server keeps no batches",
            code="batches_not_kept",
            hint="its operator can name a folder for them in server.data.folder",
        )
    return batches
