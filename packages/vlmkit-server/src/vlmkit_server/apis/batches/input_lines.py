"""The lines of a batch's input file: parsing, and checks before the batch runs.

Only a line feed ends a line: JSON text may contain other line breaks. Of a request, only what a
batch cannot do is checked here; its route checks the rest.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from vlmkit_server.apis.batches.wire import AnyEndpoint, BatchError

MAX_ERRORS = 100  # that are reported
SPANS_AT_ONCE = 1000
BOM = b"\xef\xbb\xbf"


class Line(msgspec.Struct):
    """One line; other keys have no effect."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    url: str
    body: msgspec.Raw
    method: Literal["POST"] = "POST"


class LineSpan(NamedTuple):
    """The position of a line in the file.

    Attributes:
        number: its number, counted from 1.
        start: offset of its first byte.
        num_bytes: its length, without the line feed.
    """

    number: int
    start: int
    num_bytes: int


class _Named(msgspec.Struct):
    custom_id: str


class _Request(msgspec.Struct):
    """The fields of a request that a batch checks."""

    model: str | None = None
    stream: bool | None = None
    background: bool | None = None


_LINE = msgspec.json.Decoder(Line)
_NAMED = msgspec.json.Decoder(_Named)
_REQUEST = msgspec.json.Decoder(_Request)


def line_of(content: bytes) -> Line:
    """Parse a line that was checked before."""
    return _LINE.decode(content)


def custom_id_of(content: bytes) -> str:
    """Return the custom id of a line that was checked before."""
    return _NAMED.decode(content).custom_id


class Check:
    """Finds the lines of a file, and errors in them; slow for a file with many lines.

    Args:
        path: the file.
        endpoint: the endpoint that all lines must have.
        max_lines: more are refused.
        max_line_bytes: a longer one is refused.

    Attributes:
        errors: the first errors.
        num_lines: the number of lines, except blank ones.
    """

    def __init__(
        self, path: Path, endpoint: AnyEndpoint, *, max_lines: int, max_line_bytes: int
    ) -> None:
        self._path = path
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._max_line_bytes = max_line_bytes
        self._ids: set[bytes] = set()
        self._models: set[str | None] = set()
        self.errors: list[BatchError] = []
        self.num_lines = 0

    @property
    def model(self) -> str | None:
        """The model that all lines name, if it is one."""
        return next(iter(self._models)) if len(self._models) == 1 else None

    def spans(self) -> Iterator[list[LineSpan]]:
        """Yield the lines' positions in chunks; stops after too many errors."""
        found: list[LineSpan] = []
        for span, content in self._lines():
            if content.isspace():
                continue
            self.num_lines += 1
            if self.num_lines > self._max_lines:
                self.refuse("too_many_lines", f"there are over {self._max_lines} lines")
                break
            error = self._line_error(span.number, content)
            if error is not None:
                self.errors.append(error)
                if len(self.errors) >= MAX_ERRORS:
                    break
            found.append(span)
            if len(found) >= SPANS_AT_ONCE:
                yield found
                found = []
        if not self.num_lines and not self.errors:
            self.refuse("empty_file", "the file has no lines")
        yield found

    def _lines(self) -> Iterator[tuple[LineSpan, bytes]]:
        """Yield lines, with one at a time in memory."""
        with self._path.open("rb") as file:
            start = len(BOM) if file.read(len(BOM)) == BOM else 0
            file.seek(start)
            number = 0
            while content := file.readline(self._max_line_bytes + 2):
                number += 1
                if number > 2 * self._max_lines:  # most of them blank
                    self.refuse("too_many_lines", f"there are over {self._max_lines} lines")
                    return
                if len(content.rstrip(b"\r\n")) > self._max_line_bytes:
                    self.refuse(
                        "line_too_long", f"the line is over {self._max_line_bytes} bytes", number
                    )
                    return
                yield LineSpan(number, start, len(content)), content
                start += len(content)

    def _line_error(self, number: int, content: bytes) -> BatchError | None:
        """Return the error in a line, if there is one; never quotes its content."""
        try:
            line = _LINE.decode(content)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$.")
            return BatchError("invalid_line", message, number, path.rstrip("`") or None)
        except (ValueError, RecursionError):
            return BatchError("invalid_json_line", "the line is not valid JSON", number)
        if line.url != self._endpoint:
            return BatchError("mismatched_url", "url is not the batch's endpoint", number, "url")
        known = hashlib.blake2b(line.custom_id.encode(), digest_size=16).digest()
        if known in self._ids:
            return BatchError(
                "duplicate_custom_id", "custom_id is another line's, too", number, "custom_id"
            )
        self._ids.add(known)
        return self._body_error(number, bytes(line.body).strip())

    def _body_error(self, number: int, body: bytes) -> BatchError | None:
        if not body.startswith(b"{"):
            return BatchError("invalid_line", "body must be an object", number, "body")
        try:
            request = _REQUEST.decode(body)
        except msgspec.ValidationError:
            return None  # a value has a wrong type, which the route reports better
        if len(self._models) < 2:
            self._models.add(request.model)
        for name in ("stream", "background"):
            if getattr(request, name):
                return BatchError(
                    "unsupported_parameter", f"a batch has no {name}", number, f"body.{name}"
                )
        return None

    def refuse(self, code: str, message: str, number: int | None = None) -> None:
        """Record an error."""
        self.errors.append(BatchError(code, message, number))
