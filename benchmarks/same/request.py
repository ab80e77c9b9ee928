"""A request as data: its content, the values kept of its answer, and the awaited state."""

import base64
import struct
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

Json = Any
PICTURES = Path(__file__).parents[2] / "plugins/vlmkit-demo/src/vlmkit_demo/pictures"


@dataclass(frozen=True)
class Request:
    """A request; ``<<NAME>>`` in its texts is an attachment, a key, or a kept value.

    Attributes:
        name: a unique name.
        method: the HTTP method.
        path: the path with its query.
        server: the name of the recorded server.
        body: sent as JSON, if there is one.
        text: sent instead of a body.
        form: sent instead of a body as ``multipart/form-data``; ``file`` is the text of its file.
        headers: additional to ``host``, ``content-length`` and the type of the body.
        raw: sent instead of all of these, in Latin-1.
        gzip: whether the body is compressed.
        keep: names for values of the answer, by the key of its JSON object.
        until: a key and its awaited values; the request is repeated until it has one of them.
    """

    name: str
    method: str
    path: str
    server: str = "open"
    body: Json = None
    text: str | None = None
    form: dict[str, str] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: str | None = None
    gzip: bool = False
    keep: dict[str, str] = field(default_factory=dict)
    until: tuple[str, list[str]] | None = None

    def as_json(self) -> dict[str, Json]:
        """Return the fields that differ from their defaults."""
        plain = asdict(Request("", "", ""))
        return {name: value for name, value in asdict(self).items() if value != plain[name]}

    def streamed(self) -> "Request":
        """Return the same request with a stream."""
        return replace(self, name=f"{self.name}, streamed", body={**self.body, "stream": True})

    def to(self, server: str, **headers: str) -> "Request":
        """Return the same request to another server."""
        name = f"{server}: {self.name}"
        return replace(self, name=name, server=server, headers={**self.headers, **headers})


def get(path: str, name: str = "", method: str = "GET", **more: Json) -> Request:
    """Return a request without a body."""
    return Request(name or f"{method} {path}", method, path, **more)


def post(name: str, path: str, body: Json = None, **more: Json) -> Request:
    """Return a request with a body of JSON."""
    return Request(f"{path}: {name}", "POST", path, body=body, **more)


def attachments() -> dict[str, str]:
    """Return files in base64, by the names in requests."""
    files = {path.name: path.read_bytes() for path in sorted(PICTURES.iterdir())}
    files |= {"small.png": png(8, 6, b"\x00\x80\x80"), "wide.png": png(60, 4, b"\xff\x00\x00")}
    files |= {"long.png": png(400, 3, b"\xff\x00\x00"), "dot.png": png(1, 1, b"\x00\x00\x00")}
    files |= {"small.bmp": bmp(8, 6), "page.pdf": PDF, "two.pdf": TWO_PAGES}
    files |= {"cut.png": files["shapes.png"][:900], "text.txt": b"no picture"}
    files["batch.jsonl"] = b"unused"
    return {name: base64.b64encode(content).decode() for name, content in files.items()}


def png(width: int, height: int, colour: bytes) -> bytes:
    """Return a PNG image of one colour."""
    rows = zlib.compress((b"\0" + colour * width) * height)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b""))
    )


def bmp(width: int, height: int) -> bytes:
    """Return a grey BMP image without compression."""
    pixels = b"\x80" * (width * 3 * height)
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(pixels), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54) + head + pixels


_PAGE = b"%d 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>endobj\n"
_PDF = b"""%%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[%b]/Count %d>>endobj
%btrailer<</Root 1 0 R>>
"""
PDF = _PDF % (b"3 0 R", 1, _PAGE % 3)
TWO_PAGES = _PDF % (b"3 0 R 4 0 R", 2, _PAGE % 3 + _PAGE % 4)
