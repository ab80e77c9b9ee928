"""Encodes stored files for OpenAI's or Anthropic's clients, by a request's headers."""

import datetime as dt
from collections.abc import Mapping, Sequence

import msgspec
from litestar.datastructures import Headers

from vlmkit.errors import RequestError
from vlmkit_server.apis.files.wire import (
    DeletedFile,
    DeletedFileMetadata,
    FileBody,
    FileMetadata,
    FileMetadataPage,
    FilesPage,
    FilesQuery,
)
from vlmkit_server.http.message_errors import is_anthropics
from vlmkit_server.storage.file_storage import FileFacts

_MAX_ANTHROPIC_PAGE = 1000
_PAGE = "page_"
_UNSUPPORTED = ("ids", "ids[]", "scope_id")


def encoded(file: FileFacts, headers: Headers) -> bytes:
    """Encode the metadata of a file."""
    return msgspec.json.encode(_metadata(file) if is_anthropics(headers) else _body(file))


def deleted(file_id: str, headers: Headers) -> bytes:
    """Encode the response to a deletion."""
    is_anthropic = is_anthropics(headers)
    return msgspec.json.encode(
        DeletedFileMetadata(file_id) if is_anthropic else DeletedFile(file_id)
    )


def listed(files: Sequence[FileFacts], query: Mapping[str, str], headers: Headers) -> bytes:
    """Encode a page of files.

    Args:
        files: all files, the oldest first.
        query: the parameters of the URL.
        headers: the request's headers.

    Raises:
        RequestError: a parameter is invalid.
    """
    is_anthropic = is_anthropics(headers)
    page_query = _query(query)
    after = page_query.page.removeprefix(_PAGE) if page_query.page else page_query.after
    files = [f for f in files if page_query.purpose in (None, f.purpose)]
    if page_query.order == "desc":
        files = files[::-1]
    start = 0
    if after is not None:
        names = [file.id for file in files]
        if after not in names:
            field = "page" if page_query.page else "after"
            raise RequestError(f"{field} names no file that is stored here", param=field)
        start = names.index(after) + 1
    most = (
        min(page_query.limit or 20, _MAX_ANTHROPIC_PAGE)
        if is_anthropic
        else page_query.limit or 10_000
    )
    page = files[start : start + most]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    has_more = start + len(page) < len(files)
    if not is_anthropic:
        return msgspec.json.encode(FilesPage([_body(f) for f in page], has_more, first, last))
    data, next_page = [_metadata(f) for f in page], f"{_PAGE}{last}" if has_more else None
    return msgspec.json.encode(FileMetadataPage(data, has_more, first, last, next_page))


def _query(query: Mapping[str, str]) -> FilesQuery:
    for name in _UNSUPPORTED:
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
