"""Reads size and tags of a WebP file without its decoder, which allocates all memory at once.

Does not validate files, which the decoder does.
"""

from collections.abc import Iterator
from typing import NamedTuple

BEGIN, KIND = b"RIFF", b"WEBP"
SIDE = 0x3FFF
EXTENDED = b"VP8X"
EXIF_FLAG, XMP_FLAG = 0x08, 0x04
TAGS = {b"EXIF": ("exif", EXIF_FLAG), b"XMP ": ("xmp", XMP_FLAG)}
FIRST_CHUNK = 12
MAX_CHUNKS = 2**15  # an animation has one for each frame


class Chunk(NamedTuple):
    """One chunk: its kind, and the range of its payload in the file."""

    kind: bytes
    start: int
    stop: int


def is_webp(content: bytes) -> bool:
    """Return whether the first bytes are those of a WebP file."""
    return content.startswith(BEGIN) and content[8:12] == KIND


def size(content: bytes) -> tuple[int, int] | None:
    """Return width and height in pixels; None for other files or an unknown header.

    Follows Google's "WebP Container Specification" and "WebP Lossless Bitstream Specification", and
    RFC 6386, section 9.1.
    """
    if not (is_webp(content) and len(content) >= 30):
        return None
    chunk = content[12:16]
    if chunk == EXTENDED:
        return 1 + _number(content[24:27]), 1 + _number(content[27:30])
    if chunk == b"VP8L":
        bits = _number(content[21:25])
        return 1 + (bits & SIDE), 1 + (bits >> 14 & SIDE)
    if chunk == b"VP8 ":
        return _number(content[26:28]) & SIDE, _number(content[28:30]) & SIDE
    return None


def is_whole(content: bytes) -> bool:
    """Return whether a file is at least as long as its header states."""
    return len(content) >= 8 + _number(content[4:8])


def chunks(content: bytes) -> Iterator[Chunk]:
    """Yield the top-level chunks of a file, at most ``MAX_CHUNKS``; not those inside frames."""
    position, end = FIRST_CHUNK, min(len(content), 8 + _number(content[4:8]))
    for _ in range(MAX_CHUNKS):
        if position + 8 > end:
            return
        start = position + 8
        stop = start + _number(content[position + 4 : start])
        yield Chunk(content[position : position + 4], start, stop)
        position = stop + (stop - start) % 2


def states_tags(content: bytes) -> bool:
    """Return whether the header of a file states EXIF or XMP tags."""
    return content[12:16] == EXTENDED and bool(content[20] & (EXIF_FLAG | XMP_FLAG))


def tags(content: bytes) -> dict[str, bytes]:
    """Return the first EXIF and XMP chunk that the header states, by Pillow's names."""
    found: dict[str, bytes] = {}
    if states_tags(content):
        for kind, start, stop in chunks(content):
            name, flag = TAGS.get(kind, ("", 0))
            if content[20] & flag and name not in found:
                found[name] = content[start:stop]
    return found


def _number(content: bytes) -> int:
    return int.from_bytes(content, "little")
