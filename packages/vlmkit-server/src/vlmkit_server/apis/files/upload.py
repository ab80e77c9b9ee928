"""Receives uploads: into memory as a whole, or to disk piece by piece."""

import asyncio
from contextlib import ExitStack
from typing import Any

from litestar import Request
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Receive, Scope, Send

from vlmkit.errors import RequestError
from vlmkit_server.admission.admission import admission_of
from vlmkit_server.admission.bodies import Body
from vlmkit_server.apis.files.form import FormReader, SentFile, boundary_of, sent_file
from vlmkit_server.apis.files.shapes import encoded
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.caller import caller_of
from vlmkit_server.http.content_encoding import check_not_encoded
from vlmkit_server.storage.disk_store import FilesOnDisk, IncomingFile
from vlmkit_server.storage.file_storage import FilesInMemory, FileStorage
from vlmkit_server.wire.ignored import shown_names

PIECE_BYTES = 2**20
FORM_BYTES = 2**16  # size of a body besides its file


def upload(request: Request[Any, Any, Any], service: Service, files: FileStorage) -> ASGIApp:
    """Return the ASGI application that stores an upload and responds."""
    if isinstance(files, FilesOnDisk):
        return _ToDisk(request, service, files)
    if isinstance(files, FilesInMemory):
        return _ToMemory(request, service, files)
    raise TypeError(files)


class _ToMemory:
    """Stores one upload in memory, as the ASGI application that responds.

    Args:
        request: the upload.
        service: counts the fields that are ignored.
        files: stores the file.
    """

    def __init__(
        self, request: Request[Any, Any, Any], service: Service, files: FilesInMemory
    ) -> None:
        self._request = request
        self._service = service
        self._store = files.store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, store the file, and respond."""
        self._store.check()
        check_not_encoded(self._request.headers)
        boundary = boundary_of(self._request.headers)
        admission = admission_of(scope)
        admission.check()
        with admission.body() as sent:
            body = await sent.read(self._request)
            admission.admit()
            response = await admission.attend(self._stored(body, boundary), receive)
        await response(scope, receive, send)

    async def _stored(self, body: bytes, boundary: str) -> ASGIApp:
        sent, content = await asyncio.to_thread(sent_file, body, boundary)
        headers = _ignored(sent, self._service, self._request)
        if sent.purpose == "batch":
            raise RequestError(
                "this server keeps no batches",
                param="purpose",
                code="batches_not_kept",
                hint="its operator can name a folder for them in server.data.folder",
            )
        caller = caller_of(self._request)
        file = self._store.add(
            caller.owner,
            content,
            filename=sent.filename,
            purpose=sent.purpose,
            media_type=sent.media_type,
            lives_s=sent.lives_s,
            account=caller.account,
        )
        return ASGIResponse(body=encoded(file, self._request.headers), headers=headers)


class _ToDisk:
    """Stores one upload on disk, with one piece at a time in memory.

    Args:
        request: the upload.
        service: counts the fields that are ignored.
        files: stores the file.
    """

    def __init__(
        self, request: Request[Any, Any, Any], service: Service, files: FilesOnDisk
    ) -> None:
        self._request = request
        self._service = service
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the body as it arrives, store the file, and respond."""
        check_not_encoded(self._request.headers)
        boundary = boundary_of(self._request.headers)
        admission = admission_of(scope)
        admission.check()
        incoming = self._files.incoming(caller_of(self._request).owner)
        with ExitStack() as undo:
            undo.callback(incoming.drop)
            with admission.body() as body:
                sent = await self._written(body, boundary, incoming)
            admission.admit()
            headers = _ignored(sent, self._service, self._request)
            await incoming.end()
            file = await self._files.keep(
                incoming,
                filename=sent.filename,
                purpose=sent.purpose,
                media_type=sent.media_type,
                lives_s=sent.lives_s,
            )
            undo.pop_all()
        response = ASGIResponse(body=encoded(file, self._request.headers), headers=headers)
        await response(scope, receive, send)

    async def _written(self, body: Body, boundary: str, incoming: IncomingFile) -> SentFile:
        content = bytearray()
        reader = FormReader(boundary, content.extend)
        num_bytes = 0
        async for piece in body.pieces(self._request, PIECE_BYTES):
            if not piece:
                break
            await asyncio.to_thread(reader.feed, piece)
            num_bytes += len(piece) - len(content)
            if num_bytes > FORM_BYTES:
                raise RequestError("the form is too long besides its file", code="invalid_form")
            incoming.count(len(content))
            await incoming.write(bytes(content))
            content.clear()
        await asyncio.to_thread(reader.feed, b"")
        return reader.sent()


def _ignored(sent: SentFile, service: Service, request: Request[Any, Any, Any]) -> dict[str, str]:
    names = shown_names(sent.ignored)
    return service.ignore(names, request.headers) if names else {}
