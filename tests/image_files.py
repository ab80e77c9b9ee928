"""Files that users pass as images: of every supported format, and of others."""

import io
import struct
import zipfile
import zlib
from collections.abc import Callable

import numpy as np
import PIL.Image

SIZE = (48, 36)
COLOURS = ("red", "lime", "blue")

PICTURE = PIL.Image.fromarray(
    np.random.default_rng(0).integers(0, 256, (*SIZE[::-1], 3), np.uint8)
).resize(SIZE)
TURNED = PIL.Image.Exif()
TURNED[0x0112] = 6


def saved(kind: str, picture: PIL.Image.Image = PICTURE, **options: object) -> bytes:
    """Return an image as a file."""
    file = io.BytesIO()
    picture.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def of_mode(kind: str, mode: str, **options: object) -> bytes:
    """Return a file of another mode."""
    source = PICTURE.convert("L") if mode in ("I;16", "LA") else PICTURE
    return saved(kind, source.convert(mode), **options)


def several(kind: str, **options: object) -> bytes:
    """Return a file of three frames or pages."""
    first, *others = [PIL.Image.new("RGB", SIZE, colour) for colour in COLOURS]
    return saved(kind, first, save_all=True, append_images=others, **options)


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("word/document.xml", "<w/>")
    return file.getvalue()


def _huge() -> bytes:
    content = bytearray(saved("PNG"))
    content[16:24] = struct.pack(">LL", 60_000, 60_000)
    content[29:33] = struct.pack(">L", zlib.crc32(content[12:29]))
    return bytes(content)


FILES: dict[str, Callable[[], bytes]] = {
    "photo.png": lambda: saved("PNG"),
    "grey.png": lambda: of_mode("PNG", "L"),
    "16 bit.png": lambda: of_mode("PNG", "I;16"),
    "palette.png": lambda: of_mode("PNG", "P"),
    "alpha.png": lambda: of_mode("PNG", "RGBA"),
    "photo.jpg": lambda: saved("JPEG"),
    "progressive.jpeg": lambda: saved("JPEG", progressive=True),
    "cmyk.jpg": lambda: of_mode("JPEG", "CMYK"),
    "turned.jpg": lambda: saved("JPEG", exif=TURNED),
    "photo.webp": lambda: saved("WEBP"),
    "alpha.webp": lambda: of_mode("WEBP", "RGBA", lossless=True),
    "animated.webp": lambda: several("WEBP"),
    "photo.gif": lambda: saved("GIF"),
    "animated.gif": lambda: several("GIF"),
    "photo.bmp": lambda: saved("BMP"),
    "raw.tif": lambda: saved("TIFF"),
    "lzw.tiff": lambda: saved("TIFF", compression="tiff_lzw"),
    "deflate.tif": lambda: saved("TIFF", compression="tiff_adobe_deflate"),
    "jpeg.tif": lambda: saved("TIFF", compression="jpeg"),
    "cmyk.tif": lambda: of_mode("TIFF", "CMYK"),
    "16 bit.tif": lambda: of_mode("TIFF", "I;16"),
    "float.tif": lambda: of_mode("TIFF", "F"),
    "fax.tif": lambda: of_mode("TIFF", "1", compression="group4"),
    "turned.tif": lambda: saved("TIFF", tiffinfo={274: 6}),
    "big.tif": lambda: saved("TIFF", big_tiff=True),
    "pages.tif": lambda: several("TIFF"),
    "photo.avif": lambda: saved("AVIF", speed=10),
    "alpha.avif": lambda: of_mode("AVIF", "RGBA", speed=10),
    "animated.avif": lambda: several("AVIF", speed=10),
    "pages.pdf": lambda: several("PDF"),
    "drawing.svg": lambda: b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
    "drawing with xml.svg": lambda: b'<?xml version="1.0"?>\n<!-- x -->\n<svg width="9"></svg>',
    "login page.jpg": lambda: b"<!DOCTYPE html>\n<html><body>Log in first</body></html>",
    "empty.png": lambda: b"",
    "notes.png": lambda: b"Remember the milk.\n",
    "zeros.jpg": lambda: bytes(100),
    "film.mp4": lambda: b"\0\0\0\x18ftypisom\0\0\2\0isomiso2" + bytes(64),
    "film.webm": lambda: b"\x1aE\xdf\xa3" + bytes(64),
    "report.docx": _zip,
    "photo.jp2": lambda: saved("JPEG2000"),
    "icon.ico": lambda: saved("ICO", PICTURE.resize((16, 16))),
    "pointer.png": lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    "cut.jpg": lambda: saved("JPEG")[:-200],
    "cut.png": lambda: saved("PNG")[:-200],
    "cut.tif": lambda: saved("TIFF")[:-200],
    "cut.avif": lambda: saved("AVIF", speed=10)[:-200],
    "header alone.png": lambda: saved("PNG")[:20],
    "huge.png": _huge,
    "old.tif": lambda: saved("TIFF", compression="tiff_lzw").replace(
        struct.pack("<HHLL", 259, 3, 1, 5), struct.pack("<HHLL", 259, 3, 1, 6)
    ),
    "line.png": lambda: saved("PNG", PIL.Image.new("RGB", (900, 2))),
}
"""Each by its name."""
