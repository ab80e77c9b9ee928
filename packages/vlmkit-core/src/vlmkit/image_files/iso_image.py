"""Reads size, orientation and plane sizes from the headers of AVIF and HEIF files.

Reads boxes of ISO/IEC 14496-12 and item properties of ISO/IEC 23008-12. The time is linear in the
number of boxes, which is limited. Decodes nothing: the decoder must compare the size.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vlmkit.image_files.too_complex import too_complex

AVIF_BRANDS = frozenset({b"avif", b"avis"})
HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
NEUTRAL_BRANDS = frozenset({b"mif1", b"mif2", b"msf1"})
MAX_BRANDS = 64
MAX_BOXES = 2**12
MAX_ASSOCIATIONS = 2**14
SAMPLE_ENTRY_BYTES = 78  # of a visual sample entry, before its boxes
TRACK_SIZE_AT = (76, 88)  # offset in a track header, by its version
TURNS = (1, 8, 3, 6)
"""EXIF orientations by the number of counterclockwise quarter turns."""
MIRRORED_TURNS = ((4, 2), (5, 7), (2, 4), (7, 5))
"""The same if the image is then mirrored, top to bottom or left to right."""
ON_ITS_SIDE = frozenset({5, 6, 7, 8})
HEVC_CHROMA = (0, 0.5, 1, 2)  # samples of both chroma planes for each pixel
HEVC_DEPTH = 7  # bits a sample has over 8
HIGH_BITS, MONOCHROME, HALF_WIDTH, HALF_HEIGHT = 0x40, 0x10, 0x08, 0x04


class Box(NamedTuple):
    """One box: its kind, and the range of its payload in the file."""

    kind: bytes
    start: int
    stop: int


class IsoHeader(NamedTuple):
    """The header data of an AVIF or HEIF file.

    Attributes:
        coded_size: width and height in pixels.
        size: the size after cropping, before turning upright.
        orientation: the orientation as an EXIF value; 1 is upright.
        plane_bytes: bytes per pixel in all planes of a decoder, alpha included.
        has_alpha: whether the image may be transparent.
        is_grey: whether the image has no colours.
    """

    coded_size: tuple[int, int]
    size: tuple[int, int]
    orientation: int
    plane_bytes: float
    has_alpha: bool = False
    is_grey: bool = False

    @property
    def is_turned(self) -> bool:
        """Whether the upright image differs from the coded one."""
        return self.orientation != 1

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height in pixels, after turning upright."""
        return self.size[::-1] if self.orientation in ON_ITS_SIDE else self.size


def brands(content: bytes) -> list[bytes]:
    """Return the brands of a file, the major one first; empty for other kinds of files."""
    if content[4:8] != b"ftyp":
        return []
    stop = min(int.from_bytes(content[:4], "big"), len(content), 16 + 4 * MAX_BRANDS)
    return [content[8:12], *(content[at : at + 4] for at in range(16, stop - 3, 4))]


def is_avif(content: bytes) -> bool:
    """Return whether the brands of a file are those of AVIF."""
    return _has_brand(content, AVIF_BRANDS)


def is_heic(content: bytes) -> bool:
    """Return whether the brands of a file are those of HEIF with HEVC images."""
    return _has_brand(content, HEIC_BRANDS)


def _has_brand(content: bytes, wanted: frozenset[bytes]) -> bool:
    found = brands(content)
    if not found or found[0] not in NEUTRAL_BRANDS:
        return bool(found) and found[0] in wanted
    return any(each in wanted for each in found)


def read_iso_header(content: bytes, kind: str) -> IsoHeader:
    """Return the header data of a file.

    Args:
        content: the file, or its beginning.
        kind: the kind of file, for errors, such as ``an AVIF file``.

    Raises:
        ImageError: the file has more boxes than images have.
        ValueError: the file states no size.
    """
    boxes = _Boxes(content, kind)
    tops = list(boxes.within(0, len(content)))
    items = next((box for box in tops if box.kind == b"meta"), None)
    movie = next((box for box in tops if box.kind == b"moov"), None)
    is_movie = movie is not None and brands(content)[0] not in AVIF_BRANDS - {b"avis"}
    if movie is not None and is_movie and not _has_brand(content, HEIC_BRANDS):
        return _of_track(boxes, movie)
    if items is None:
        raise ValueError("no items")
    return _of_items(boxes, items)


class _Boxes:
    """Reads a limited number of boxes of one file."""

    def __init__(self, content: bytes, kind: str) -> None:
        self.content = content
        self._kind = kind
        self._num_read = 0

    def within(self, start: int, stop: int) -> Iterator[Box]:
        """Yield the boxes in a range of bytes; a truncated box ends with the range."""
        while start + 8 <= stop:
            self.count(MAX_BOXES, "boxes")
            head, num_bytes = 8, self.number(start, 4)
            if num_bytes == 1:
                head, num_bytes = 16, self.number(start + 8, 8)
            num_bytes = num_bytes or stop - start
            if num_bytes < head:
                return
            yield Box(
                self.content[start + 4 : start + 8], start + head, min(start + num_bytes, stop)
            )
            start += num_bytes

    def count(self, limit: int, what: str) -> None:
        """Count one more item that is read.

        Raises:
            ImageError: there are more than ``limit``.
        """
        self._num_read += 1
        if self._num_read > limit:
            raise too_complex(self._kind, f"over {limit} {what}")

    def number(self, start: int, num_bytes: int) -> int:
        """Return a big-endian number; 0 after the end of the file."""
        return int.from_bytes(self.content[start : start + num_bytes], "big")


def _of_track(boxes: _Boxes, movie: Box) -> IsoHeader:
    """Return the header data of an animation, from its first track with a size."""
    size: tuple[int, int] | None = None
    configurations: list[Box] = []
    for track in boxes.within(movie.start, movie.stop):
        if track.kind != b"trak":
            continue
        for box in boxes.within(track.start, track.stop):
            if box.kind == b"tkhd":
                at = box.start + TRACK_SIZE_AT[boxes.number(box.start, 1) == 1]
                found = (boxes.number(at, 4) >> 16, boxes.number(at + 4, 4) >> 16)
                size = size or (found if all(found) else None)
            elif box.kind == b"mdia":
                configurations += _configurations(boxes, box, (b"minf", b"stbl", b"stsd"))
    if size is None:
        raise ValueError("no track states a size")
    has_alpha = len(configurations) > 1  # alpha is in a separate track
    planes = _planes(boxes, configurations, has_alpha=has_alpha)
    return IsoHeader(size, size, 1, *planes)


def _configurations(boxes: _Boxes, box: Box, path: tuple[bytes, ...]) -> Iterator[Box]:
    """Yield the decoder configurations of a track's samples."""
    spare = {b"stsd": 8, b"av01": SAMPLE_ENTRY_BYTES}.get(box.kind, 0)
    for inner in boxes.within(box.start + spare, box.stop):
        if inner.kind == b"av1C":
            yield inner
        elif inner.kind == b"av01" or (path and inner.kind == path[0]):
            yield from _configurations(boxes, inner, path[1:])


def _of_items(boxes: _Boxes, items: Box) -> IsoHeader:
    """Return the header data of a still image, from the properties of its primary item."""
    inner = {box.kind: box for box in boxes.within(items.start + 4, items.stop)}
    primary, described = inner.get(b"pitm"), inner.get(b"iprp")
    if primary is None or described is None:
        raise ValueError("no primary item")
    item_bytes = 4 if boxes.number(primary.start, 1) else 2
    item_id = boxes.number(primary.start + 4, item_bytes)
    properties: list[Box] = []
    associations: list[Box] = []
    for box in boxes.within(described.start, described.stop):
        if box.kind == b"ipco":
            properties += boxes.within(box.start, box.stop)
        elif box.kind == b"ipma":
            associations.append(box)
    indexes = [index for box in associations for index in _indexes(boxes, box, item_id)]
    by_kind = {
        properties[i - 1].kind: properties[i - 1] for i in indexes if 0 < i <= len(properties)
    }
    has_alpha = any(box.kind == b"auxC" for box in properties)
    return _of_properties(boxes, by_kind, _planes(boxes, properties, has_alpha=has_alpha))


def _of_properties(
    boxes: _Boxes, by_kind: Mapping[bytes, Box], planes: tuple[float, bool, bool]
) -> IsoHeader:
    if b"ispe" not in by_kind:
        raise ValueError("no size")
    at = by_kind[b"ispe"].start + 4
    size = (boxes.number(at, 4), boxes.number(at + 4, 4))
    turns = boxes.number(by_kind[b"irot"].start, 1) & 3 if b"irot" in by_kind else 0
    orientation = TURNS[turns]
    if b"imir" in by_kind:
        orientation = MIRRORED_TURNS[turns][boxes.number(by_kind[b"imir"].start, 1) & 1]
    crop = _crop(boxes, by_kind[b"clap"]) if b"clap" in by_kind else size
    return IsoHeader(size, crop, orientation, *planes)


def _crop(boxes: _Boxes, box: Box) -> tuple[int, int]:
    """Return the width and height of a clean aperture, which are stored as fractions."""
    width, of_width, height, of_height = (boxes.number(box.start + at, 4) for at in (0, 4, 8, 12))
    if not of_width or not of_height:
        raise ValueError("a fraction has no denominator")
    return width // of_width, height // of_height


def _indexes(boxes: _Boxes, box: Box, item_id: int) -> Iterator[int]:
    """Yield the indexes of an item's properties, counted from 1."""
    item_bytes = 4 if boxes.number(box.start, 1) else 2
    index_bytes = 2 if boxes.number(box.start + 3, 1) & 1 else 1
    at = box.start + 8
    for _ in range(boxes.number(box.start + 4, 4)):
        if at >= box.stop:
            return
        boxes.count(MAX_ASSOCIATIONS, "properties of items")
        found, num_indexes = boxes.number(at, item_bytes), boxes.number(at + item_bytes, 1)
        at += item_bytes + 1
        if found == item_id:
            for number in range(num_indexes):
                index = boxes.number(at + number * index_bytes, index_bytes)
                yield index & (0x7FFF if index_bytes == 2 else 0x7F)
        at += num_indexes * index_bytes


def _planes(
    boxes: _Boxes, properties: Sequence[Box], *, has_alpha: bool
) -> tuple[float, bool, bool]:
    """Return bytes per pixel of all planes, whether there is alpha, and whether all are grey."""
    colour_bytes, sample_bytes, has_colours = 1.0, 1, False
    for box in properties:
        if box.kind == b"av1C":
            flags = boxes.number(box.start + 2, 1)
            depth = 2 if flags & HIGH_BITS else 1
            chroma = 2 / ((1 + bool(flags & HALF_WIDTH)) * (1 + bool(flags & HALF_HEIGHT)))
            chroma = 0 if flags & MONOCHROME else chroma
        elif box.kind == b"hvcC":
            depth = 2 if boxes.number(box.start + 17, 1) & HEVC_DEPTH else 1
            chroma = HEVC_CHROMA[boxes.number(box.start + 16, 1) & 3]
        else:
            continue
        colour_bytes = max(colour_bytes, depth * (1 + chroma))
        sample_bytes, has_colours = max(sample_bytes, depth), has_colours or chroma > 0
    return colour_bytes + sample_bytes * has_alpha, has_alpha, not has_colours
