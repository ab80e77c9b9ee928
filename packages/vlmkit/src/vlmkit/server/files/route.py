"""``/v1/files``: files are sent, listed, read and deleted.

Clients of OpenAI's API and of Anthropic's use the same routes; each is answered in its own shape.
What is a file's content is given back as bytes that no browser shows.
"""

import asyncio
from contextlib import ExitStack
from typing import Any

from litestar import Controller, Request, Response, route
from litestar.di import NamedDependency
from litestar.enums import HttpMethod, MediaType
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Receive, Scope, Send

from vlmkit.server.fields.ignored import ignored_names
from vlmkit.server.fields.unused import UnusedKey
from vlmkit.server.files.form import boundary_of, sent_file
from vlmkit.server.files.shapes import deleted, file_error, listed, told
from vlmkit.server.files.store import FileStore
from vlmkit.server.files.wire import DeletedFile, FileBody, FileForm, FilesPage, FilesQuery
from vlmkit.server.http.caller import caller_of
from vlmkit.server.http.errors import error_handlers
from vlmkit.server.http.methods import READ
from vlmkit.server.http.operation import Operation
from vlmkit.server.work.service import Service

_NOT_SHOWN = {"content-disposition": "attachment", "x-content-type-options": "nosniff"}


class FilesController(Controller):
    """Files that are named by an id."""

    path = "/v1/files"
    exception_handlers = error_handlers(file_error)

    # One handler: of several, the framework's answer to OPTIONS would tell the methods of the last.
    @route(
        http_method=(*READ, HttpMethod.POST),
        status_code=200,
        operation=Operation(FilesPage, query=FilesQuery, form=FileForm, posted=FileBody),
    )
    async def files(
        self,
        request: Request[Any, Any, Any],
        service: NamedDependency[Service],
        files: NamedDependency[FileStore],
    ) -> ASGIApp:
        """List files, or keep one."""
        if request.method == HttpMethod.POST:
            return _Upload(request, service, files)
        query = dict(request.query_params.multi_items())
        content = listed(files.all_of(caller_of(request).owner), query, request.headers)
        return ASGIResponse(body=content)  # of which HEAD gets the headers

    @route(
        "/{file_id:str}",
        http_method=(*READ, HttpMethod.DELETE),
        status_code=200,
        operation=Operation(FileBody, deleted=DeletedFile),
    )
    async def file(
        self,
        request: Request[Any, Any, Any],
        files: NamedDependency[FileStore],
        file_id: FromPath[str],
    ) -> Response[bytes]:
        """Tell what is known of a file, or forget it."""
        owner = caller_of(request).owner
        if request.method == HttpMethod.DELETE:
            files.delete(file_id, owner)
            content = deleted(file_id, request.headers)
        else:
            content = told(files.find(file_id, owner), request.headers)
        return Response(content, media_type=MediaType.JSON)

    @route("/{file_id:str}/content", http_method=READ, operation=Operation(bytes))
    async def content(
        self,
        request: Request[Any, Any, Any],
        files: NamedDependency[FileStore],
        file_id: FromPath[str],
    ) -> Response[bytes]:
        """Return what a file holds."""
        content = files.find(file_id, caller_of(request).owner).content
        return Response(content, media_type="application/octet-stream", headers=_NOT_SHOWN)


class _Upload:
    """Takes one file, as the ASGI application that makes its response.

    Args:
        request: what is sent.
        service: whether work is taken.
        files: where it is kept.
    """

    def __init__(self, request: Request[Any, Any, Any], service: Service, files: FileStore) -> None:
        self._request = request
        self._service = service
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, keep the file, and answer."""
        self._files.check()
        boundary = boundary_of(self._request.headers)
        account = caller_of(self._request).account
        self._service.check_room(account)
        with ExitStack() as place, self._service.bodies.opened(self._request) as sent:
            body = await sent.read(self._request)
            place.enter_context(self._service.admitted(account))
            response = await self._service.attend(self._kept(body, boundary), receive)
        await response(scope, receive, send)

    async def _kept(self, body: bytes, boundary: str) -> ASGIApp:
        sent = await asyncio.to_thread(sent_file, body, boundary)
        ignored = ignored_names(UnusedKey(field, b'"') for field in sent.ignored)
        headers = self._service.ignore(ignored, self._request.headers)
        form = sent.form
        file = self._files.add(
            caller_of(self._request).owner,
            form.file,
            filename=sent.filename,
            purpose=form.purpose or "user_data",
            media_type=sent.media_type,
            lives_s=form.expires_after_seconds or form.expires_in_seconds,
        )
        return ASGIResponse(body=told(file, self._request.headers), headers=headers)
