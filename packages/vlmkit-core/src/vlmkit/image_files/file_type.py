"""Recognises file types by their first bytes, with descriptions and hints for error messages.

Opens nothing and refuses nothing.
"""

import re
from typing import NamedTuple

from vlmkit.image_files.iso_image import is_avif
from vlmkit.image_files.tiff import is_tiff
from vlmkit.image_files.webp import is_webp

START_BYTES = 1024
DECODED_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM")
SAVE_AS = "save it as PNG or JPEG"


class FileType(NamedTuple):
    """A file type.

    Attributes:
        name: its name with an article, such as ``a PDF document``.
        remedy: what a user can do about it.
        distribution: the distribution that opens such files; empty if none is known.
    """

    name: str
    remedy: str
    distribution: str = ""

    @property
    def hint(self) -> str:
        """A hint with all remedies, also for clients of a server."""
        return (
            f"install {self.distribution}, or {self.remedy}" if self.distribution else self.remedy
        )


EMPTY = FileType("empty", "check that it was saved or downloaded completely")
UNKNOWN = FileType("of no type that is known here", SAVE_AS)

_VIDEO = "extract frames as images, for example with ffmpeg"
_HEIC = FileType("a HEIC image", "save it as JPEG", "vlmkit-heif")
_ISO_BRANDS = {
    **dict.fromkeys([b"avif", b"avis"], FileType("an AVIF image", SAVE_AS)),
    **dict.fromkeys([b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm"], _HEIC),
    **dict.fromkeys([b"mif1", b"msf1", b"mif2"], _HEIC._replace(name="a HEIF image")),
    **dict.fromkeys([b"M4A ", b"M4B "], FileType("MPEG-4 audio", "send an image")),
    b"crx ": FileType("a camera raw file", "export it as JPEG or TIFF"),
    b"jxl ": FileType("a JPEG XL image", SAVE_AS),
    b"qt  ": FileType("a QuickTime video", _VIDEO),
}
_RIFF_KINDS = {
    b"WEBP": FileType("a WebP image", SAVE_AS),
    b"AVI ": FileType("an AVI video", _VIDEO),
    b"WAVE": FileType("WAV audio", "send an image"),
}
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", FileType("a PNG image", SAVE_AS)),
    (b"\xff\xd8\xff", FileType("a JPEG image", SAVE_AS)),
    (b"GIF8", FileType("a GIF image", SAVE_AS)),
    (b"BM", FileType("a BMP image", SAVE_AS)),
    *((begin, FileType("a TIFF image", SAVE_AS)) for begin in (b"II*\0", b"MM\0*")),
    *((begin, FileType("a BigTIFF image", SAVE_AS)) for begin in (b"II+\0", b"MM\0+")),
    (b"\0\0\0\x0cJXL \r\n\x87\n", FileType("a JPEG XL image", SAVE_AS)),
    (b"\xff\x0a", FileType("a JPEG XL image", SAVE_AS)),
    (b"\0\0\0\x0cjP  \r\n\x87\n", FileType("a JPEG 2000 image", SAVE_AS)),
    (b"\xff\x4f\xff\x51", FileType("a JPEG 2000 image", SAVE_AS)),
    (b"8BPS", FileType("a Photoshop document", SAVE_AS)),
    (b"\0\0\1\0", FileType("an icon", SAVE_AS)),
    (b"\x1aE\xdf\xa3", FileType("a Matroska or WebM video", _VIDEO)),
    (b"\0\0\1\xba", FileType("an MPEG video", _VIDEO)),
    (b"OggS", FileType("Ogg audio or video", "send an image")),
    (b"ID3", FileType("MP3 audio", "send an image")),
    (b"fLaC", FileType("FLAC audio", "send an image")),
    (b"PK\3\4", FileType("a ZIP archive or an Office document", "export its pages as PDF or PNG")),
    (b"\x1f\x8b", FileType("a gzip archive", "unpack it")),
    (b"%!PS", FileType("a PostScript document", "convert it to PDF or PNG")),
    (
        b"version https://git-lfs",
        FileType("a pointer to a file in Git LFS", "fetch the file itself: git lfs pull"),
    ),
)
_PDF = FileType("a PDF document", "export its pages as PNG", "vlmkit-pdf")
_SVG = FileType("an SVG drawing", "export it as PNG")
_HTML = FileType(
    "an HTML page", "open it in a browser to see what was saved, and download the image itself"
)
_MARKUP = (
    (re.compile(rb"<svg[\s/>]", re.IGNORECASE), _SVG),
    (re.compile(rb"<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE), _HTML),
    (re.compile(rb"<\?xml\s", re.IGNORECASE), FileType("an XML document", SAVE_AS)),
)
_BLANK = b"\xef\xbb\xbf \t\r\n\0"


def is_image(content: bytes) -> bool:
    """Return whether the first bytes show a format that :class:`vlmkit.Image` decodes."""
    is_other = is_webp(content) or is_tiff(content) or is_avif(content)
    return is_other or content.startswith(DECODED_SIGNATURES)


def file_type(content: bytes) -> FileType:
    """Return the type of a file by its first bytes."""
    if not content:
        return EMPTY
    start = bytes(content[:START_BYTES])
    if start[4:8] == b"ftyp":
        return _ISO_BRANDS.get(start[8:12], FileType("an MPEG-4 video", _VIDEO))
    if start.startswith(b"RIFF") and start[8:12] in _RIFF_KINDS:
        return _RIFF_KINDS[start[8:12]]
    for begin, found in _SIGNATURES:
        if start.startswith(begin):
            return found
    text = start.lstrip(_BLANK)
    if text.startswith(b"%PDF-"):
        return _PDF
    if text.startswith(b"<"):
        return next((found for mark, found in _MARKUP if mark.search(text)), UNKNOWN)
    return FileType("a text", "send an image") if _is_text(start) else UNKNOWN


def _is_text(start: bytes) -> bool:
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3:  # otherwise a character is cut off at the end
            return False
        text = start[: error.start].decode()
    return all(char.isprintable() or char in "\t\r\n\f" for char in text)
