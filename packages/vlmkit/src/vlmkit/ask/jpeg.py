"""What a JPEG file would cost to decode, told from its markers before anything is decoded.

A progressive file goes over all of its pixels once for each scan, and a scan takes a dozen bytes.
Says nothing of what is wrong with a file: that is the decoder's business, which never finds more
scans than are found here.
"""

import re

from vlmkit.ask.too_complex import too_complex

BEGIN = b"\xff\xd8\xff"
KIND = "a JPEG file"
MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")  # without those that have no place of their own
START, END, SCAN = 0xD8, 0xD9, 0xDA
TABLES, TAGS, EDITOR = 0xDB, 0xE1, 0xED
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
TAGS_BEGIN, NOTE_BEGIN = b"Exif\0\0", b"8BIM"
MAX_SEGMENTS = 2**14
MAX_SCANNED_PIXELS = 2 * 10**9  # 100 scans of a picture of 20 million pixels
MAX_TAGS_SEGMENTS = 64  # Pillow copies all that came before for each
MAX_TABLES_BYTES = 2**16  # 4 tables of 64 numbers are usual
MAX_NOTES = 2**12  # of an editor's, in all
MAX_IDLE_BYTES = 2**16  # between segments, where Pillow looks at each byte by itself
PIECE_BYTES = 2**20  # searched at once: no other thread runs meanwhile


def check(content: bytes, max_scans: int) -> None:
    """Refuse a file that would take far longer to decode than its size in pixels tells.

    Takes time in proportion to the file, whatever is in it.

    Raises:
        ImageError: it has too many scans, or more segments than pictures have.
    """
    parts = _Parts(max_scans)
    place = 0
    for _ in range(MAX_SEGMENTS):
        found = _next_marker(content, place)
        if not parts.num_scans:
            parts.num_idle_bytes += found - place
        if parts.num_idle_bytes > MAX_IDLE_BYTES:
            break
        if found == len(content) or (content[found + 1] == END and parts.num_scans):
            return
        place = found + 2 + _length(content, found)
        parts.count(content, found, place)
    raise too_complex(KIND, "more segments than a picture has")


class _Parts:
    """What was found so far."""

    def __init__(self, max_scans: int) -> None:
        self.num_scans = self.num_idle_bytes = 0
        self._max_scans = max_scans
        self._num_pixels = self._num_tags = self._num_tables_bytes = self._num_notes = 0

    def count(self, content: bytes, start: int, stop: int) -> None:
        """Count one segment.

        Raises:
            ImageError: there are too many of its kind.
        """
        kind = content[start + 1]
        if kind == SCAN:
            self._count_scan()
        elif kind in FRAMES:
            height, width = content[start + 5 : start + 7], content[start + 7 : start + 9]
            size = int.from_bytes(height, "big") * int.from_bytes(width, "big")
            self._num_pixels = max(self._num_pixels, size)
        elif kind in (TAGS, TABLES, EDITOR):
            self._num_tags += kind == TAGS and content.startswith(TAGS_BEGIN, start + 4)
            self._num_tables_bytes += stop - start if kind == TABLES else 0
            self._num_notes += content.count(NOTE_BEGIN, start, stop) if kind == EDITOR else 0
            self._check()

    def _count_scan(self) -> None:
        self.num_scans += 1
        if self.num_scans > self._max_scans:
            raise too_complex(KIND, f"over {self._max_scans} scans")
        if self.num_scans * self._num_pixels > MAX_SCANNED_PIXELS:
            raise too_complex(KIND, f"over {self.num_scans - 1} scans, too many for its size")

    def _check(self) -> None:
        if self._num_tags > MAX_TAGS_SEGMENTS:
            raise too_complex(KIND, f"over {MAX_TAGS_SEGMENTS} segments of tags")
        if self._num_tables_bytes > MAX_TABLES_BYTES:
            raise too_complex(KIND, "more tables than a picture has")
        if self._num_notes > MAX_NOTES:
            raise too_complex(KIND, f"over {MAX_NOTES} notes of an editor")


def _next_marker(content: bytes, place: int) -> int:
    """Return where the next marker is; the end of the file where there is none."""
    for start in range(place, len(content), PIECE_BYTES):
        if found := MARKER.search(content, start, start + PIECE_BYTES + 1):
            return found.start()
    return len(content)


def _length(content: bytes, place: int) -> int:
    """Return how many bytes belong to a marker; those two that tell it count as well."""
    if content[place + 1] in (START, END):
        return 0
    return max(2, int.from_bytes(content[place + 2 : place + 4], "big"))
