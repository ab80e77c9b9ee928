"""The lines of a batch's file: what one says, and what is wrong with them, before any is asked.

Only a line feed ends a line: other characters that break lines may stand in a JSON text. What is in
a request is not looked at but for what a batch cannot do: the route that it is for refuses it.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from vlmkit_server.apis.batches.wire import AnyEndpoint, BatchError

MAX_ERRORS = 100  # that are told
PLACES_AT_ONCE = 1000
_BOM = b"\xef\xbb\xbf"


class Line(msgspec.Struct):
    """What one line says; other keys have no effect."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    url: str
    body: msgspec.Raw
    method: Literal["POST"] = "POST"


class Place(NamedTuple):
    """Where a line is.

    Attributes:
        number: of the line, counted from 1.
        start: its first byte.
        num_bytes: how many it has, without its end.
    """

    number: int
    start: int
    num_bytes: int


class _Named(msgspec.Struct):
    custom_id: str


class _Request(msgspec.Struct):
    """What a batch has to know of a request."""

    model: str | None = None
    stream: bool | None = None
    background: bool | None = None


_LINE = msgspec.json.Decoder(Line)
_NAMED = msgspec.json.Decoder(_Named)
_REQUEST = msgspec.json.Decoder(_Request)


def line_of(content: bytes) -> Line:
    """Return what a line says that was checked before."""
    return _LINE.decode(content)


def custom_id_of(content: bytes) -> str:
    """Return how the client calls a line that was checked before."""
    return _NAMED.decode(content).custom_id


class Check:
    """Finds the lines of a file and what is wrong with them; takes time where there are many.

    Args:
        path: of the file.
        endpoint: what all of them must be for.
        max_lines: more are refused.
        max_line_bytes: a longer one is refused.

    Attributes:
        errors: the first of what is wrong.
        num_lines: how many there are, blank ones excepted.
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

    def places(self) -> Iterator[list[Place]]:
        """Yield where lines are, in lots; what comes after too many errors is not looked at."""
        found: list[Place] = []
        for place, content in self._lines():
            if content.isspace():
                continue
            self.num_lines += 1
            if self.num_lines > self._max_lines:
                self.refuse("too_many_lines", f"there are over {self._max_lines} lines")
                break
            error = self._wrong(place.number, content)
            if error is not None:
                self.errors.append(error)
                if len(self.errors) >= MAX_ERRORS:
                    break
            found.append(place)
            if len(found) >= PLACES_AT_ONCE:
                yield found
                found = []
        if not self.num_lines and not self.errors:
            self.refuse("empty_file", "the file has no lines")
        yield found

    def _lines(self) -> Iterator[tuple[Place, bytes]]:
        """Yield lines, of which one at a time is in memory."""
        with self._path.open("rb") as file:
            start = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
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
                yield Place(number, start, len(content)), content
                start += len(content)

    def _wrong(self, number: int, content: bytes) -> BatchError | None:
        """Return what is wrong with a line, if anything is; its content is never repeated."""
        try:
            line = _LINE.decode(content)
        except msgspec.ValidationError as error:
            wrong, _, place = str(error).partition(" - at `$.")
            return BatchError("invalid_line", wrong, number, place.rstrip("`") or None)
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
        return self._wrong_body(number, bytes(line.body).strip())

    def _wrong_body(self, number: int, body: bytes) -> BatchError | None:
        if not body.startswith(b"{"):
            return BatchError("invalid_line", "body must be an object", number, "body")
        try:
            request = _REQUEST.decode(body)
        except msgspec.ValidationError:
            return None  # a value is of a wrong type, which the route says better
        if len(self._models) < 2:
            self._models.add(request.model)
        for name in ("stream", "background"):
            if getattr(request, name):
                return BatchError(
                    "unsupported_parameter", f"a batch has no {name}", number, f"body.{name}"
                )
        return None

    def refuse(self, code: str, message: str, number: int | None = None) -> None:
        """Note what is wrong."""
        self.errors.append(BatchError(code, message, number))
