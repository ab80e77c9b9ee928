"""Files of any size: images of each format, PDF files, lines of batches and base64 texts."""

import base64
import functools
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from attack.bodies import CHAT_LINE

FORMATS: Mapping[str, Mapping[str, Any]] = {
    "PNG": {},
    "JPEG": {},
    "progressive JPEG": {"progressive": True},
    "lossy WebP": {"method": 0},
    "lossless WebP": {"lossless": True, "method": 0, "quality": 0},
    "GIF": {},
    "BMP": {},
}
"""What is decoded, with the options of the encoder; the last word is its name."""


@functools.cache
def image(name: str, num_pixels: int, *, is_noise: bool = False) -> bytes:
    """Return a file of a square image, in one colour or of noise."""
    import PIL.Image

    side = max(1, round(num_pixels**0.5))
    made = PIL.Image.new("RGB", (side, side), "teal")
    if is_noise:
        made = PIL.Image.effect_noise((side, side), 64).convert("RGB")
    content = io.BytesIO()
    made.save(content, name.rsplit(maxsplit=1)[-1], **FORMATS[name])
    return content.getvalue()


@functools.cache
def frames(kind: str, num_frames: int) -> bytes:
    """Return a file of an animation."""
    import PIL.Image

    made = [PIL.Image.new("L", (32, 32), number % 256) for number in range(num_frames)]
    content = io.BytesIO()
    made[0].save(content, kind, save_all=True, append_images=made[1:])
    return content.getvalue()


def png_chunks(num_chunks: int) -> bytes:
    """Return a PNG file with many text chunks before its pixels."""
    import zlib

    whole, text = image("PNG", 64), b"tEXtk\0v"
    chunk = b"\0\0\0\x03" + text + zlib.crc32(text).to_bytes(4, "big")
    return whole[:33] + chunk * num_chunks + whole[33:]


def jpeg_scans(num_scans: int) -> bytes:
    """Return a JPEG file that repeats its last scan."""
    whole = image("progressive JPEG", 256 * 256)
    start = whole.rindex(b"\xff\xda")
    return whole[:-2] + whole[start:-2] * num_scans + b"\xff\xd9"


def _pdf(objects: list[bytes]) -> bytes:
    body = b"".join(b"%d 0 obj%bendobj\n" % (n, o) for n, o in enumerate(objects, 1))
    return b"%PDF-1.4\n" + body + b"trailer<</Root 1 0 R>>\n"


def _stream(content: bytes, more: bytes = b"") -> bytes:
    return b"<</Length %d%b>>stream\n%b\nendstream\n" % (len(content), more, content)


def pdf_pages(num_pages: int) -> bytes:
    """Return a PDF file that repeats one page many times."""
    kids = b"3 0 R " * num_pages
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>"
    tree = b"<</Type/Pages/Kids[%b]/Count %d>>" % (kids, num_pages)
    return _pdf([b"<</Type/Catalog/Pages 2 0 R>>", tree, page])


def _one_page(page: bytes, *more: bytes) -> bytes:
    tree = b"<</Type/Pages/Kids[3 0 R]/Count 1>>"
    return _pdf([b"<</Type/Catalog/Pages 2 0 R>>", tree, page, *more])


def pdf_operators(num_operators: int) -> bytes:
    """Return a PDF file whose page draws many curves."""
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R>>"
    return _one_page(page, _stream(b"0 0 m 9 9 99 0 99 99 c S\n" * num_operators))


def pdf_forms(num_levels: int) -> bytes:
    """Return a PDF file whose forms each draw the next one twice."""
    page = (
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R"
        b"/Resources<</XObject<</F 5 0 R>>>>>>"
    )
    levels = [
        _stream(
            b"/F Do /F Do",
            b"/Type/XObject/Subtype/Form/BBox[0 0 99 99]/Resources<</XObject<</F %d 0 R>>>>"
            % next_,
        )
        for next_ in range(6, 6 + num_levels)
    ]
    last = _stream(b"0 0 9 9 re f", b"/Type/XObject/Subtype/Form/BBox[0 0 99 99]")
    return _one_page(page, _stream(b"/F Do"), *levels, last)


def pdf_side(points: int) -> bytes:
    """Return a PDF file with a page of a side's length."""
    return _one_page(b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 %d %d]>>" % (points, points))


def lines(num_lines: int) -> bytes:
    """Return the lines of a batch."""
    return b"".join(
        json.dumps(CHAT_LINE | {"custom_id": str(number)}).encode() + b"\n"
        for number in range(num_lines)
    )


def in_base64(content: bytes) -> str:
    """Return a file in base64."""
    return base64.b64encode(content).decode()


def data_url(content: bytes, kind: str = "image/png") -> str:
    """Return a file as a ``data:`` URL."""
    return f"data:{kind};base64,{in_base64(content)}"


IMAGES: Mapping[str, Callable[[int], bytes]] = {
    **{name: functools.partial(image, name) for name in FORMATS},
    "PNG of noise": functools.partial(image, "PNG", is_noise=True),
    "lossy WebP of noise": functools.partial(image, "lossy WebP", is_noise=True),
}
"""By pixels."""

PARTS: Mapping[str, Callable[[int], bytes]] = {
    "GIF frames": functools.partial(frames, "GIF"),
    "WebP frames": functools.partial(frames, "WEBP"),
    "PNG frames": functools.partial(frames, "PNG"),
    "PNG chunks": png_chunks,
    "JPEG scans": jpeg_scans,
}
"""By parts."""

PDFS: Mapping[str, Callable[[int], bytes]] = {
    "PDF pages": pdf_pages,
    "PDF operators": pdf_operators,
    "PDF page side": pdf_side,
}
