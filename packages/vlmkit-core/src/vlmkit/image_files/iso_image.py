"""What AVIF and HEIF files say of their picture before any pixel: size, turn, bytes of its planes.

Reads boxes of ISO/IEC 14496-12 and item properties of ISO/IEC 23008-12, in time that follows the
number of boxes, which is limited. Decodes nothing: whoever decodes compares the size.
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
SAMPLE_ENTRY_BYTES = 78  # of a picture's, before its boxes
TRACK_SIZE_AT = (76, 88)  # in a track's header, by its version
TURNS = (1, 8, 3, 6)
"""Orientations of pictures that are turned by quarters against the clock."""
MIRRORED_TURNS = ((4, 2), (5, 7), (2, 4), (7, 5))
"""The same where they are then mirrored, top to bottom or left to right."""
ON_ITS_SIDE = frozenset({5, 6, 7, 8})
HEVC_CHROMA = (0, 0.5, 1, 2)  # samples of both chroma planes for each pixel
HEVC_DEPTH = 7  # bits a sample has over 8
HIGH_BITS, MONOCHROME, HALF_WIDTH, HALF_HEIGHT = 0x40, 0x10, 0x08, 0x04


class Box(NamedTuple):
    """One box: its kind, and where its payload starts and stops in the file."""

    kind: bytes
    start: int
    stop: int


class IsoHeader(NamedTuple):
    """What stands before the pixels.

    Attributes:
        coded_size: width and height in pixels.
        size: the same after cropping, and before turning upright.
        orientation: what makes it upright, as the tag of EXIF has it; 1 is nothing.
        plane_bytes: of one pixel in all planes of a decoder, alpha included.
        has_alpha: whether it may be transparent.
        is_grey: whether it has no colours.
    """

    coded_size: tuple[int, int]
    size: tuple[int, int]
    orientation: int
    plane_bytes: float
    has_alpha: bool = False
    is_grey: bool = False

    @property
    def is_turned(self) -> bool:
        """Whether the upright picture differs from the coded one."""
        return self.orientation != 1

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height in pixels, after turning upright."""
        return self.size[::-1] if self.orientation in ON_ITS_SIDE else self.size


def brands(content: bytes) -> list[bytes]:
    """Return the brands of a file, the major one first; none of a file of another kind."""
    if content[4:8] != b"ftyp":
        return []
    stop = min(int.from_bytes(content[:4], "big"), len(content), 16 + 4 * MAX_BRANDS)
    return [content[8:12], *(content[at : at + 4] for at in range(16, stop - 3, 4))]


def is_avif(content: bytes) -> bool:
    """Return whether a file begins as an AVIF file."""
    return _has_brand(content, AVIF_BRANDS)


def is_heic(content: bytes) -> bool:
    """Return whether a file begins as a HEIF file of HEVC pictures."""
    return _has_brand(content, HEIC_BRANDS)


def _has_brand(content: bytes, wanted: frozenset[bytes]) -> bool:
    found = brands(content)
    if not found or found[0] not in NEUTRAL_BRANDS:
        return bool(found) and found[0] in wanted
    return any(each in wanted for each in found)


def read_iso_header(content: bytes, kind: str) -> IsoHeader:
    """Return what a file says of its picture.

    Args:
        content: the file, or its beginning.
        kind: what it is, for errors.

    Raises:
        ImageError: it has more boxes than pictures have.
        ValueError: it states no size.
    """
    boxes = _Boxes(content, kind)
    tops = list(boxes.inside(0, len(content)))
    items = next((box for box in tops if box.kind == b"meta"), None)
    movie = next((box for box in tops if box.kind == b"moov"), None)
    is_movie = movie is not None and brands(content)[0] not in AVIF_BRANDS - {b"avis"}
    if movie is not None and is_movie and not _has_brand(content, HEIC_BRANDS):
        return _of_track(boxes, movie)
    if items is None:
        raise ValueError("no items")
    return _of_items(boxes, items)


class _Boxes:
    """Reads boxes of one file, of which there may be a limited number."""

    def __init__(self, content: bytes, kind: str) -> None:
        self.content = content
        self._kind = kind
        self._num_read = 0

    def inside(self, start: int, stop: int) -> Iterator[Box]:
        """Yield the boxes between two places; one that is cut off ends there."""
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

    def count(self, most: int, what: str) -> None:
        """Count one of what is read.

        Raises:
            ImageError: there are too many.
        """
        self._num_read += 1
        if self._num_read > most:
            raise too_complex(self._kind, f"over {most} {what}")

    def number(self, start: int, num_bytes: int) -> int:
        """Return a number; 0 where the file has ended."""
        return int.from_bytes(self.content[start : start + num_bytes], "big")


def _of_track(boxes: _Boxes, movie: Box) -> IsoHeader:
    """Return what the first track with a picture says: it is an animation."""
    size: tuple[int, int] | None = None
    configurations: list[Box] = []
    for track in boxes.inside(movie.start, movie.stop):
        if track.kind != b"trak":
            continue
        for box in boxes.inside(track.start, track.stop):
            if box.kind == b"tkhd":
                at = box.start + TRACK_SIZE_AT[boxes.number(box.start, 1) == 1]
                found = (boxes.number(at, 4) >> 16, boxes.number(at + 4, 4) >> 16)
                size = size or (found if all(found) else None)
            elif box.kind == b"mdia":
                configurations += _configurations(boxes, box, (b"minf", b"stbl", b"stsd"))
    if size is None:
        raise ValueError("no track states a size")
    has_alpha = len(configurations) > 1  # in a track of its own
    planes = _planes(boxes, configurations, has_alpha=has_alpha)
    return IsoHeader(size, size, 1, *planes)


def _configurations(boxes: _Boxes, box: Box, path: tuple[bytes, ...]) -> Iterator[Box]:
    """Yield what the samples of a track say of their decoder."""
    spare = {b"stsd": 8, b"av01": SAMPLE_ENTRY_BYTES}.get(box.kind, 0)
    for inner in boxes.inside(box.start + spare, box.stop):
        if inner.kind == b"av1C":
            yield inner
        elif inner.kind == b"av01" or (path and inner.kind == path[0]):
            yield from _configurations(boxes, inner, path[1:])


def _of_items(boxes: _Boxes, items: Box) -> IsoHeader:
    """Return what the properties of the primary item say."""
    inner = {box.kind: box for box in boxes.inside(items.start + 4, items.stop)}
    primary, described = inner.get(b"pitm"), inner.get(b"iprp")
    if primary is None or described is None:
        raise ValueError("no primary item")
    item_bytes = 4 if boxes.number(primary.start, 1) else 2
    item_id = boxes.number(primary.start + 4, item_bytes)
    properties: list[Box] = []
    associations: list[Box] = []
    for box in boxes.inside(described.start, described.stop):
        if box.kind == b"ipco":
            properties += boxes.inside(box.start, box.stop)
        elif box.kind == b"ipma":
            associations.append(box)
    indexes = [index for box in associations for index in _indexes(boxes, box, item_id)]
    own = {properties[i - 1].kind: properties[i - 1] for i in indexes if 0 < i <= len(properties)}
    has_alpha = any(box.kind == b"auxC" for box in properties)
    return _of_properties(boxes, own, _planes(boxes, properties, has_alpha=has_alpha))


def _of_properties(
    boxes: _Boxes, own: Mapping[bytes, Box], planes: tuple[float, bool, bool]
) -> IsoHeader:
    if b"ispe" not in own:
        raise ValueError("no size")
    at = own[b"ispe"].start + 4
    size = (boxes.number(at, 4), boxes.number(at + 4, 4))
    turns = boxes.number(own[b"irot"].start, 1) & 3 if b"irot" in own else 0
    orientation = TURNS[turns]
    if b"imir" in own:
        orientation = MIRRORED_TURNS[turns][boxes.number(own[b"imir"].start, 1) & 1]
    crop = _crop(boxes, own[b"clap"]) if b"clap" in own else size
    return IsoHeader(size, crop, orientation, *planes)


def _crop(boxes: _Boxes, box: Box) -> tuple[int, int]:
    """Return the width and height that a clean aperture leaves; each is a fraction."""
    width, of_width, height, of_height = (boxes.number(box.start + at, 4) for at in (0, 4, 8, 12))
    if not of_width or not of_height:
        raise ValueError("a fraction has no denominator")
    return width // of_width, height // of_height


def _indexes(boxes: _Boxes, box: Box, item_id: int) -> Iterator[int]:
    """Yield which properties an item has, counted from 1."""
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
            for place in range(num_indexes):
                index = boxes.number(at + place * index_bytes, index_bytes)
                yield index & (0x7FFF if index_bytes == 2 else 0x7F)
        at += num_indexes * index_bytes


def _planes(
    boxes: _Boxes, properties: Sequence[Box], *, has_alpha: bool
) -> tuple[float, bool, bool]:
    """Return the bytes of a pixel in all planes, whether one is alpha, and whether all are grey."""
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
