"""From the body of ``POST /v1/files`` to a file and what is said of it.

The multipart package reads the body; what its parts may be is said here.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from litestar.datastructures import Headers
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from vlmkit.errors import RequestError
from vlmkit.server.files.wire import FileForm
from vlmkit.server.http.errors import WrongMediaType

MAX_PARTS = 16
MAX_FIELD_BYTES = 512
MAX_NAME_CHARS = 255
UNKNOWN_TYPE = "application/octet-stream"


class SentFile(NamedTuple):
    """A file as it was sent.

    Attributes:
        form: what is said of it, and what it holds.
        filename: a label.
        media_type: what it is said to be.
        ignored: fields that have no effect.
    """

    form: FileForm
    filename: str
    media_type: str
    ignored: frozenset[str]


def boundary_of(headers: Headers) -> str:
    """Return what parts the body.

    Raises:
        WrongMediaType: it is no multipart body.
    """
    kind, options = parse_options_header(headers.get("content-type", ""))
    boundary: str = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise WrongMediaType("the body must be announced as multipart/form-data with a boundary")
    return boundary


def sent_file(body: bytes, boundary: str) -> SentFile:
    """Read a body; takes time where it is large.

    Raises:
        RequestError: names the field that is wrong.
    """
    try:
        parts = {segment.name: (segment, content) for segment, content in _parts(body, boundary)}
    except (MultipartError, UnicodeDecodeError):
        raise RequestError(
            "the body is not valid multipart/form-data", code="invalid_form"
        ) from None
    if "file" not in parts:
        raise RequestError("file is needed", param="file")
    file, content = parts.pop("file")
    known = {field.encode_name for field in msgspec.structs.fields(FileForm)}
    given = {name: _text(name, held) for name, (_, held) in parts.items() if name in known}
    name = file.filename or "file"
    if len(name) > MAX_NAME_CHARS:
        raise RequestError(f"a file's name is over {MAX_NAME_CHARS} characters", param="file")
    media_type = file.content_type or UNKNOWN_TYPE
    return SentFile(
        _form(content, given),
        name,
        media_type if len(media_type) <= MAX_NAME_CHARS else UNKNOWN_TYPE,
        frozenset(parts.keys() - known),
    )


def _parts(body: bytes, boundary: str) -> Iterator[tuple[MultipartSegment, bytes]]:
    """Yield the parts of a body."""
    content = bytearray()
    segment = None
    with PushMultipartParser(boundary, max_segment_count=MAX_PARTS, strict=True) as parser:
        for event in parser.parse(body):
            if isinstance(event, MultipartSegment):
                segment, content = event, bytearray()
            elif event:
                content += event
            else:
                yield segment, bytes(content)


def _text(name: str, content: bytes) -> str:
    if len(content) > MAX_FIELD_BYTES:
        raise RequestError(f"{name} is over {MAX_FIELD_BYTES} bytes", param=name)
    return content.decode(errors="replace")


def _form(content: bytes, given: dict[str, str]) -> FileForm:
    """Return a form whose fields have the types that they should."""
    for name, text in given.items():
        try:
            msgspec.convert({"file": b"", name: text}, FileForm, strict=False)
        except msgspec.ValidationError:
            raise RequestError(
                f"{name} has a value that this server does not support",
                param=name,
                code="unsupported_value",
            ) from None
    form = msgspec.convert({"file": b"", **given}, FileForm, strict=False)
    form.file = content
    return form
