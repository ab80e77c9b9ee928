"""What a JPEG file would cost to decode, told from its markers before anything is decoded.

A progressive file goes over all of its pixels once for each scan, and a scan takes a dozen bytes.
Says nothing of what is wrong with a file: that is the decoder's business, which never finds more
scans than are found here.
"""

import re

from vlmkit.errors import ImageError

BEGIN = b"\xff\xd8\xff"
MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")  # without those that have no place of their own
START, END, SCAN = 0xD8, 0xD9, 0xDA
MAX_SEGMENTS = 2**14
MAX_IDLE_BYTES = 2**16  # between segments, where Pillow looks at each byte by itself
PIECE_BYTES = 2**20  # searched at once: no other thread runs meanwhile


def check(content: bytes, max_scans: int) -> None:
    """Refuse a file that would take far longer to decode than its size in pixels tells.

    Takes time in proportion to the file, whatever is in it.

    Raises:
        ImageError: it has too many scans, or more segments than pictures have.
    """
    place = num_scans = num_idle_bytes = 0
    for _ in range(MAX_SEGMENTS):
        found = _next_marker(content, place)
        num_idle_bytes += 0 if num_scans else found - place
        if num_idle_bytes > MAX_IDLE_BYTES:
            break
        if found == len(content) or (content[found + 1] == END and num_scans):
            return
        num_scans += content[found + 1] == SCAN
        if num_scans > max_scans:
            raise ImageError(
                f"image is a JPEG file of over {max_scans} scans",
                hint="save it again, as an ordinary JPEG file",
            )
        place = found + 2 + _length(content, found)
    raise ImageError("image is a JPEG file of more segments than a picture has")


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
