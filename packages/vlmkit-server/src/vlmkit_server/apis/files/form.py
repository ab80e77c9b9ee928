"""Parses the multipart body of ``POST /v1/files``.

The multipart package parses the body; this module checks its parts.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from litestar.datastructures import Headers
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from vlmkit.errors import RequestError
from vlmkit_server.apis.files.wire import FileForm
from vlmkit_server.http.errors import WrongMediaType

MAX_PARTS = 16
MAX_FIELD_BYTES = 512
MAX_NAME_CHARS = 255
MAX_BOUNDARY_CHARS = 1024  # the parser's own limit; RFC 2046 allows 70
UNKNOWN_TYPE = "application/octet-stream"


class SentFile(NamedTuple):
    """The metadata of an uploaded file.

    Attributes:
        form: the form's other fields.
        filename: the client's name for the file.
        media_type: the client's media type.
        ignored: fields that have no effect.
    """

    form: FileForm
    filename: str
    media_type: str
    ignored: frozenset[str]

    @property
    def purpose(self) -> str:
        """Its purpose; ``user_data`` if none is sent."""
        return self.form.purpose or "user_data"

    @property
    def lives_s(self) -> int | None:
        """Time until it expires, in the field of either API."""
        return self.form.expires_after_seconds or self.form.expires_in_seconds


def boundary_of(headers: Headers) -> str:
    """Return the boundary of a multipart body.

    Raises:
        WrongMediaType: the body is not multipart.
    """
    kind, options = parse_options_header(headers.get("content-type", ""))
    boundary: str = options.get("boundary", "")
    if kind != "multipart/form-data" or not boundary:
        raise WrongMediaType(
            "the body must be announced as multipart/form-data with a boundary",
            hint="curl does so with -F: -F purpose=user_data -F file=@FILE",
        )
    return boundary


class FormReader:
    """Parses a body piece by piece, and passes on the file's content.

    Args:
        boundary: the boundary of the parts.
        on_content: called with the next bytes of the file.

    Raises:
        RequestError: the boundary is invalid.
    """

    def __init__(self, boundary: str, on_content: Callable[[bytes], None]) -> None:
        try:
            self._parser = PushMultipartParser(boundary, max_segment_count=MAX_PARTS, strict=True)
        except MultipartError:
            raise RequestError(
                f"the boundary must have 1 to {MAX_BOUNDARY_CHARS} characters and no line break",
                param="content-type",
                code="invalid_form",
            ) from None
        self._on_content = on_content
        self._file: MultipartSegment | None = None
        self._name = ""
        self._texts: dict[str, bytes] = {}

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of a body; an empty one is its end. A large piece is slow.

        Raises:
            RequestError: the body is invalid.
        """
        try:
            for event in self._parser.parse(piece):
                if isinstance(event, MultipartSegment):
                    self._begin(event)
                elif event:
                    self._continue(event)
        except (MultipartError, UnicodeDecodeError):
            raise _invalid_form() from None

    def sent(self) -> SentFile:
        """Return the file's metadata, at the end of the body.

        Raises:
            RequestError: names the invalid field.
        """
        if self._file is None:
            raise RequestError("file is needed", param="file")
        known = {field.encode_name for field in msgspec.structs.fields(FileForm)}
        given = {name: _text(name, held) for name, held in self._texts.items() if name in known}
        name = self._file.filename or "file"
        if len(name) > MAX_NAME_CHARS:
            raise RequestError(f"a file's name is over {MAX_NAME_CHARS} characters", param="file")
        media_type = self._file.content_type or UNKNOWN_TYPE
        return SentFile(
            _form(given),
            name,
            media_type if len(media_type) <= MAX_NAME_CHARS else UNKNOWN_TYPE,
            frozenset(self._texts.keys() - known),
        )

    def _begin(self, segment: MultipartSegment) -> None:
        self._name = segment.name
        if segment.name != "file":
            self._texts[segment.name] = b""
        elif self._file is not None:
            raise RequestError("file is sent more than once", param="file")
        else:
            self._file = segment

    def _continue(self, content: bytes) -> None:
        if self._name == "file":
            self._on_content(content)
        else:
            held = self._texts[self._name]
            self._texts[self._name] = (held + content)[: MAX_FIELD_BYTES + 1]


def sent_file(body: bytes, boundary: str) -> tuple[SentFile, bytes]:
    """Parse a whole body, and return the file's metadata and content; slow for a large body.

    Raises:
        RequestError: names the invalid field.
    """
    content = bytearray()
    reader = FormReader(boundary, content.extend)
    reader.feed(body)
    reader.feed(b"")
    return reader.sent(), bytes(content)


def _text(name: str, content: bytes) -> str:
    if len(content) > MAX_FIELD_BYTES:
        raise RequestError(f"{name} is over {MAX_FIELD_BYTES} bytes", param=name)
    return content.decode(errors="replace")


def _form(given: dict[str, str]) -> FileForm:
    """Return a form whose fields have the declared types."""
    for name, text in given.items():
        try:
            msgspec.convert({"file": b"", name: text}, FileForm, strict=False)
        except msgspec.ValidationError:
            raise RequestError(
                f"{name} has a value that this server does not support",
                param=name,
                code="unsupported_value",
            ) from None
    return msgspec.convert({"file": b"", **given}, FileForm, strict=False)


def _invalid_form() -> RequestError:
    return RequestError("the body is not valid multipart/form-data", code="invalid_form")
