"""Reads chunks of PNG files, and removes compressed chunks that pixels do not depend on.

Pillow inflates texts and colour profiles of a few bytes to megabytes each, and keeps them. Only two
kinds of text are needed, because they can hold an orientation. Does not validate files, which the
decoder does.
"""

from collections.abc import Iterator
from typing import NamedTuple

BEGIN = b"\x89PNG\r\n\x1a\n"
END, PIXELS, EXIF = b"IEND", b"IDAT", b"eXIf"
TEXTS = frozenset({b"iTXt", b"tEXt", b"zTXt"})
INFLATED = frozenset({b"iCCP", b"iTXt", b"zTXt"})
ORIENTING_TEXTS = (b"XML:com.adobe.xmp\0", b"Raw profile type exif\0")
MAX_CHUNKS = 2**15  # the number of 1 KiB chunks in a file of 32 MiB
HEADER_BYTES = 8  # length and kind


class Chunk(NamedTuple):
    """One chunk: its kind, and its range in the file."""

    kind: bytes
    start: int
    stop: int


def chunks(content: bytes) -> Iterator[Chunk]:
    """Yield the chunks of a file before its end chunk, at most ``MAX_CHUNKS``."""
    start = len(BEGIN)
    for _ in range(MAX_CHUNKS):
        kind = content[start + 4 : start + HEADER_BYTES]
        if not kind or kind == END:
            return
        stop = start + 12 + int.from_bytes(content[start : start + 4], "big")
        yield Chunk(kind, start, stop)
        start = stop


def can_orient(content: bytes, chunk: Chunk) -> bool:
    """Return whether a chunk can hold an orientation."""
    is_text = chunk.kind in TEXTS
    return chunk.kind == EXIF or (
        is_text and content.startswith(ORIENTING_TEXTS, chunk.start + HEADER_BYTES)
    )


def without_inflated(content: bytes) -> bytes:
    """Return a file without compressed texts and profiles, except those with an orientation."""
    dropped = [
        chunk
        for chunk in chunks(content)
        if chunk.kind in INFLATED and not can_orient(content, chunk)
    ]
    if not dropped:
        return content
    bounds = [0, *(edge for chunk in dropped for edge in chunk[1:]), len(content)]
    view = memoryview(content)
    return b"".join(view[start:stop] for start, stop in zip(bounds[::2], bounds[1::2], strict=True))
