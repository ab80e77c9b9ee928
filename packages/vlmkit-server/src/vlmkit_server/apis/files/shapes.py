"""Stored files as one of the two APIs tells them: which one, the header of a request says."""

import datetime as dt
from collections.abc import Mapping, Sequence

import msgspec
from litestar.datastructures import Headers
from litestar.types import Scope

from vlmkit.errors import RequestError
from vlmkit_server.apis.files.storage import FileFacts
from vlmkit_server.apis.files.wire import (
    DeletedFile,
    DeletedFileMetadata,
    FileBody,
    FileMetadata,
    FileMetadataPage,
    FilesPage,
    FilesQuery,
)
from vlmkit_server.http.errors import Fault, openai_error
from vlmkit_server.http.message_errors import message_error

VERSION = "anthropic-version"
_OWN_MOST = 1000
_PAGE = "page_"
_NOT_HERE = ("ids", "ids[]", "scope_id")


def is_anthropics(headers: Headers) -> bool:
    """Tell whether a client speaks Anthropic's API: its clients always say which version."""
    return VERSION in headers


def file_error(fault: Fault, status: int, scope: Scope) -> bytes:
    """Encode an error in the shape of the API that a client speaks."""
    write = message_error if is_anthropics(Headers.from_scope(scope)) else openai_error
    return write(fault, status, scope)


def told(file: FileFacts, headers: Headers) -> bytes:
    """Encode what is known of a file."""
    return msgspec.json.encode(_metadata(file) if is_anthropics(headers) else _body(file))


def deleted(file_id: str, headers: Headers) -> bytes:
    """Encode that a file was deleted."""
    own = is_anthropics(headers)
    return msgspec.json.encode(DeletedFileMetadata(file_id) if own else DeletedFile(file_id))


def listed(files: Sequence[FileFacts], query: Mapping[str, str], headers: Headers) -> bytes:
    """Encode a page of files.

    Args:
        files: all of them, the oldest first.
        query: the parameters of a URL.
        headers: of the request.

    Raises:
        RequestError: a parameter is wrong.
    """
    own = is_anthropics(headers)
    wanted = _wanted(query)
    after = wanted.page.removeprefix(_PAGE) if wanted.page else wanted.after
    files = [f for f in files if wanted.purpose in (None, f.purpose)]
    if wanted.order == "desc":
        files = files[::-1]
    start = 0
    if after is not None:
        names = [file.id for file in files]
        if after not in names:
            field = "page" if wanted.page else "after"
            raise RequestError(f"{field} names no file that is stored here", param=field)
        start = names.index(after) + 1
    most = min(wanted.limit or 20, _OWN_MOST) if own else wanted.limit or 10_000
    page = files[start : start + most]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    has_more = start + len(page) < len(files)
    if not own:
        return msgspec.json.encode(FilesPage([_body(f) for f in page], has_more, first, last))
    data, next_page = [_metadata(f) for f in page], f"{_PAGE}{last}" if has_more else None
    return msgspec.json.encode(FileMetadataPage(data, has_more, first, last, next_page))


def _wanted(query: Mapping[str, str]) -> FilesQuery:
    for name in _NOT_HERE:
        if name in query:
            raise RequestError(
                f"{name} is not supported by this server", param=name, code="unsupported_parameter"
            )
    try:
        return msgspec.convert(query, FilesQuery, strict=False)
    except msgspec.ValidationError as error:
        name = "order" if "$.order" in str(error) else "limit"
        expected = "asc or desc" if name == "order" else "1 to 10000"
        raise RequestError(f"{name} must be {expected}", param=name) from None


def _body(file: FileFacts) -> FileBody:
    return FileBody(
        file.id,
        file.num_bytes,
        file.created_at,
        file.filename,
        file.purpose,
        file.expires_at,
    )


def _metadata(file: FileFacts) -> FileMetadata:
    return FileMetadata(
        file.id,
        _moment(file.created_at),
        file.filename,
        file.media_type,
        file.num_bytes,
        None if file.expires_at is None else _moment(file.expires_at),
    )


def _moment(time_s: int) -> str:
    return dt.datetime.fromtimestamp(time_s, dt.UTC).isoformat().replace("+00:00", "Z")
