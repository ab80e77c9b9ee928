"""``/v1/files``: upload, list, read and delete files.

Clients of OpenAI's API and of Anthropic's use the same routes; each gets its own shape. A file's
content is sent with headers that keep browsers from showing it.
"""

from typing import Any

from litestar import Controller, Request, Response, route
from litestar.di import NamedDependency
from litestar.enums import HttpMethod, MediaType
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, HTTPResponseBodyEvent, Receive, Scope, Send

from vlmkit_server.apis.files.shapes import deleted, encoded, listed
from vlmkit_server.apis.files.upload import upload
from vlmkit_server.apis.files.wire import DeletedFile, FileBody, FileForm, FilesPage, FilesQuery
from vlmkit_server.conversation.host import Host
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.caller import caller_of
from vlmkit_server.http.errors import ErrorBody, Fault, error_handlers
from vlmkit_server.http.message_errors import error_for_client
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation
from vlmkit_server.storage.file_storage import FileFacts, FileStorage

PIECE_BYTES = 2**20

_NOT_SHOWN = {"content-disposition": "attachment", "x-content-type-options": "nosniff"}


class FilesApi:
    """The API of files, in OpenAI's and in Anthropic's shapes."""

    error_type = ErrorBody

    def write_error(self, fault: Fault, status: int, scope: Scope) -> bytes:
        """Encode an error in the shape of the client's API."""
        return error_for_client(fault, status, scope)

    def routes(self, host: Host) -> list[type[Controller]]:
        """Return the routes of files."""
        host.dependencies["files"] = host.files
        return [FilesController]


class FilesController(Controller):
    """Files that clients name by id."""

    path = "/v1/files"
    exception_handlers = error_handlers(error_for_client)

    # One handler: with several, the framework's OPTIONS response has the last one's methods.
    @route(
        http_method=(*READ, HttpMethod.POST),
        status_code=200,
        operation=Operation(FilesPage, query=FilesQuery, form=FileForm, posted=FileBody),
    )
    async def files(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        files: NamedDependency[FileStorage],
    ) -> ASGIApp:
        """List files, or upload one."""
        if request.method == HttpMethod.POST:
            return upload(request, service, files)
        query = dict(request.query_params.multi_items())
        content = listed(await files.all_of(caller_of(request).owner), query, request.headers)
        return ASGIResponse(body=content)  # HEAD gets the headers alone

    @route(
        "/{file_id:str}",
        http_method=(*READ, HttpMethod.DELETE),
        status_code=200,
        operation=Operation(FileBody, deleted=DeletedFile),
    )
    async def file(
        self,
        request: Request[Any, Any, Any],
        files: NamedDependency[FileStorage],
        file_id: FromPath[str],
    ) -> Response[bytes]:
        """Return a file's metadata, or delete the file."""
        owner = caller_of(request).owner
        if request.method == HttpMethod.DELETE:
            await files.delete(file_id, owner)
            content = deleted(file_id, request.headers)
        else:
            content = encoded(await files.find(file_id, owner), request.headers)
        return Response(content, media_type=MediaType.JSON)

    @route("/{file_id:str}/content", http_method=READ, operation=Operation(bytes))
    async def content(
        self,
        request: Request[Any, Any, Any],
        files: NamedDependency[FileStorage],
        file_id: FromPath[str],
    ) -> ASGIApp:
        """Return a file's content."""
        owner = caller_of(request).owner
        file = await files.find(file_id, owner)
        if request.method == HttpMethod.HEAD:
            headers = _NOT_SHOWN | {"content-length": str(file.num_bytes)}
            return ASGIResponse(
                is_head_response=True, media_type="application/octet-stream", headers=headers
            )
        return Download(files, file, owner)


class Download:
    """Sends a file's content, with one piece at a time in memory.

    Args:
        files: stores the file.
        file: the facts of the file.
        owner: its owner.
    """

    def __init__(self, files: FileStorage, file: FileFacts, owner: bytes) -> None:
        self._files = files
        self._file = file
        self._owner = owner

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the content.

        Raises:
            NotStored: the file is gone, and nothing was sent yet.
        """
        num_left = self._file.num_bytes
        piece = await self._files.piece(self._file.id, self._owner, 0, PIECE_BYTES)
        own_headers = {"content-type": "application/octet-stream", "content-length": str(num_left)}
        headers = [
            (name.encode(), value.encode()) for name, value in (own_headers | _NOT_SHOWN).items()
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            num_left -= len(piece)
            body: HTTPResponseBodyEvent = {
                "type": "http.response.body",
                "body": piece,
                "more_body": num_left > 0,
            }
            await send(body)
            if num_left <= 0:
                return
            start = self._file.num_bytes - num_left
            piece = await self._files.piece(self._file.id, self._owner, start, PIECE_BYTES)
