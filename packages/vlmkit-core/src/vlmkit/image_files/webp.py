"""What a WebP file says of its picture, read before its decoder is made: that takes all memory.

Says nothing of what is wrong with a file: that is the decoder's business.
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
    """One chunk: its kind, and where its payload starts and stops in the file."""

    kind: bytes
    start: int
    stop: int


def is_webp(content: bytes) -> bool:
    """Return whether a file begins as a WebP file."""
    return content.startswith(BEGIN) and content[8:12] == KIND


def size(content: bytes) -> tuple[int, int] | None:
    """Return width and height in pixels; None where the file is another, or its header is not ours.

    By "WebP Container Specification" and "WebP Lossless Bitstream Specification" of Google, and by
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
    """Return whether a file is as long as it says."""
    return len(content) >= 8 + _number(content[4:8])


def chunks(content: bytes) -> Iterator[Chunk]:
    """Yield the chunks of a file, at most ``MAX_CHUNKS`` of them; those of frames are not read."""
    place, end = FIRST_CHUNK, min(len(content), 8 + _number(content[4:8]))
    for _ in range(MAX_CHUNKS):
        if place + 8 > end:
            return
        start = place + 8
        stop = start + _number(content[place + 4 : start])
        yield Chunk(content[place : place + 4], start, stop)
        place = stop + (stop - start) % 2


def states_tags(content: bytes) -> bool:
    """Return whether a file says that it has tags, which can hold an orientation."""
    return content[12:16] == EXTENDED and bool(content[20] & (EXIF_FLAG | XMP_FLAG))


def tags(content: bytes) -> dict[str, bytes]:
    """Return the first EXIF and XMP chunk that a file says it has, by Pillow's names."""
    found: dict[str, bytes] = {}
    if states_tags(content):
        for kind, start, stop in chunks(content):
            name, flag = TAGS.get(kind, ("", 0))
            if content[20] & flag and name not in found:
                found[name] = content[start:stop]
    return found


def _number(content: bytes) -> int:
    return int.from_bytes(content, "little")
