"""Checks the cost of decoding a JPEG file by its markers, before anything is decoded.

A progressive file processes all pixels once for each scan, and a scan can be a dozen bytes. Does
not validate the file, which the decoder does. The decoder never finds more scans than this module.
"""

import re

from vlmkit.image_files.too_complex import too_complex

BEGIN = b"\xff\xd8\xff"
KIND = "a JPEG file"
MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")  # without markers inside of scan data
START, END, SCAN = 0xD8, 0xD9, 0xDA
TABLES, TAGS, EDITOR = 0xDB, 0xE1, 0xED
PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
BLOCK_SIDE, COEFFICIENT_BYTES = 8, 2
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
TAGS_BEGIN, NOTE_BEGIN = b"Exif\0\0", b"8BIM"
MAX_SEGMENTS = 2**14
MAX_SCANNED_PIXELS = 2 * 10**9  # 100 scans of an image of 20 million pixels
MAX_TAGS_SEGMENTS = 64  # for each, Pillow copies all earlier ones
MAX_TABLES_BYTES = 2**16  # 4 tables of 64 numbers are usual
MAX_NOTES = 2**12  # resource blocks of an editor, in all segments
MAX_IDLE_BYTES = 2**16  # between segments, where Pillow reads byte by byte
PIECE_BYTES = 2**20  # searched at once, because the search holds the GIL


def check(content: bytes, max_scans: int) -> int:
    """Raise an error for a file that takes far longer to decode than its size in pixels suggests.

    Takes time linear in the size of the file, whatever its content.

    Returns:
        The memory that its decoder takes for coefficients, in bytes.

    Raises:
        ImageError: the file has too many scans, or more segments than images have.
    """
    parts = _Parts(max_scans)
    position = 0
    for _ in range(MAX_SEGMENTS):
        found = _next_marker(content, position)
        if not parts.num_scans:
            parts.num_idle_bytes += found - position
        if parts.num_idle_bytes > MAX_IDLE_BYTES:
            break
        if found == len(content) or (content[found + 1] == END and parts.num_scans):
            return parts.coefficient_bytes
        position = found + 2 + _length(content, found)
        parts.count(content, found, position)
    raise too_complex(KIND, "more segments than a picture has")


class _Parts:
    """Counts the parts of a file found so far."""

    def __init__(self, max_scans: int) -> None:
        self.num_scans = self.num_idle_bytes = self.coefficient_bytes = 0
        self._max_scans = max_scans
        self._num_pixels = self._num_tags = self._num_tables_bytes = self._num_notes = 0
        self._is_whole, self._num_components, self._all_coefficient_bytes = True, b"", 0

    def count(self, content: bytes, start: int, stop: int) -> None:
        """Count one segment.

        Raises:
            ImageError: there are too many of its kind.
        """
        kind = content[start + 1]
        if kind == SCAN:
            self._count_scan()
            self._is_whole &= content[start + 4 : start + 5] == self._num_components
            if not self._is_whole:
                self.coefficient_bytes = self._all_coefficient_bytes
        elif kind in FRAMES:
            self._read_frame(content, start)
        elif kind in (TAGS, TABLES, EDITOR):
            self._num_tags += kind == TAGS and content.startswith(TAGS_BEGIN, start + 4)
            self._num_tables_bytes += stop - start if kind == TABLES else 0
            self._num_notes += content.count(NOTE_BEGIN, start, stop) if kind == EDITOR else 0
            self._check()

    def _read_frame(self, content: bytes, start: int) -> None:
        """Read a frame's size, and compute the memory of its coefficients.

        By ITU-T T.81, sections B.2.2 and A.1.1. A decoder keeps coefficients if a scan refines
        earlier scans, or holds only some of the components.
        """
        height = int.from_bytes(content[start + 5 : start + 7], "big")
        width = int.from_bytes(content[start + 7 : start + 9], "big")
        self._num_pixels = max(self._num_pixels, height * width)
        self._num_components = content[start + 9 : start + 10]
        self._is_whole &= content[start + 1] not in PROGRESSIVE
        num_components = int.from_bytes(self._num_components, "big")
        factors = content[start + 11 : start + 10 + 3 * num_components : 3]
        across, down = [each >> 4 or 1 for each in factors], [each & 15 or 1 for each in factors]
        if factors:
            num_blocks = -(-width // (BLOCK_SIDE * max(across))) * -(
                -height // (BLOCK_SIDE * max(down))
            )
            num_blocks *= sum(x * y for x, y in zip(across, down, strict=True))
            num_bytes = num_blocks * BLOCK_SIDE**2 * COEFFICIENT_BYTES
            self._all_coefficient_bytes = max(self._all_coefficient_bytes, num_bytes)

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


def _next_marker(content: bytes, position: int) -> int:
    """Return the position of the next marker; the end of the file if there is none."""
    for start in range(position, len(content), PIECE_BYTES):
        if found := MARKER.search(content, start, start + PIECE_BYTES + 1):
            return found.start()
    return len(content)


def _length(content: bytes, position: int) -> int:
    """Return the length of a marker's segment in bytes, including its two length bytes."""
    if content[position + 1] in (START, END):
        return 0
    return max(2, int.from_bytes(content[position + 2 : position + 4], "big"))
