"""Pages of TIFF files: the cost of decoding each, and a separate file for each.

Reads the directories of a file within limits. The decoder gets only the tags that pixels depend on,
because it would read all others and follow their offsets. Does not validate pixels, which the
decoder does. Follows "TIFF Revision 6.0", Adobe's technical notes, and the BigTIFF design of 2004.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

from vlmkit.errors import ImageError
from vlmkit.image_files.too_complex import too_complex

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
KIND = "a TIFF file"

KIND_OF_PAGE, WIDTH, HEIGHT, BITS, COMPRESSION, COLOURS = 254, 256, 257, 258, 259, 262
ORIENTATION, SAMPLES, ROWS, PLANES, TILE_WIDTH, TILE_HEIGHT = 274, 277, 278, 284, 322, 323
STRIP_OFFSETS, STRIP_BYTES, TILE_OFFSETS, TILE_BYTES = 273, 279, 324, 325
FILL_ORDER, FAX3, FAX4, PREDICTOR, PALETTE, EXTRA_SAMPLES = 266, 292, 293, 317, 320, 338
SAMPLE_FORMAT, JPEG_TABLES, YCBCR = 339, 347, (529, 530, 531, 532)
NEEDED = frozenset(
    {
        *(WIDTH, HEIGHT, BITS, COMPRESSION, COLOURS, FILL_ORDER, SAMPLES, ROWS, PLANES, FAX3, FAX4),
        *(PREDICTOR, PALETTE, TILE_WIDTH, TILE_HEIGHT, EXTRA_SAMPLES, SAMPLE_FORMAT, JPEG_TABLES),
        *YCBCR,
    }
)
"""Tags that a decoder gets besides those of strips or tiles; not the orientation, applied here."""

COMPRESSIONS = frozenset({1, 2, 3, 4, 5, 7, 8, 32773, 32946, 34925, 50000})
"""None, three of CCITT, LZW, JPEG, Deflate with two codes, PackBits, LZMA and Zstandard."""
JPEG = 7
OTHERS = {6: "old-style JPEG", 34712: "JPEG 2000", 34887: "LERC", 50001: "WebP", 50002: "JPEG XL"}
CAMERA_RAW = (32803, 34892)
REDUCED_OR_MASK = 1 | 4  # kinds of pages that are thumbnails or masks

MAX_PAGES = 2**10
MAX_TAGS = 2**9
MAX_SEGMENTS = 2**16
MAX_VALUES = 3 * 2**16  # of any other tag; the largest is a palette
MAX_PADDING = 4  # ratio of pixels in tiles to pixels of the image
SPARE_PIXELS = 2**22
MAX_SCANS = 4  # of one JPEG strip or tile; 1 is usual, 3 if each colour has its own scan
SCAN = b"\xff\xda"

INTEGERS = {1: "B", 3: "H", 4: "L", 13: "L", 16: "Q", 18: "Q"}
TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
TYPE_BYTES |= {16: 8, 17: 8, 18: 8}
SHORT, LONG, LONG8 = 3, 4, 16


class Tag(NamedTuple):
    """One tag: the type of its values, their number, and their offset in the file."""

    type: int
    num_values: int
    at: int


class Layout(NamedTuple):
    """The number format of a file: its byte order, and whether it is a BigTIFF file."""

    order: str
    is_big: bool

    def unpack(self, form: str, content: bytes, at: int) -> tuple[int, ...]:
        """Return the numbers at an offset.

        Raises:
            ValueError: the file ends before them.
        """
        try:
            return struct.unpack_from(self.order + form, content, at)
        except (struct.error, OverflowError) as error:
            raise ValueError("it breaks off") from error

    def pack(self, form: str, *numbers: int) -> bytes:
        """Return the encoding of numbers."""
        return struct.pack(self.order + form, *numbers)


def is_tiff(content: bytes) -> bool:
    """Return whether the first bytes are those of a TIFF file."""
    return content.startswith(SIGNATURES)


def first_page(content: bytes) -> "Page":
    """Return the first page that is not a thumbnail or mask; errors as for :func:`pages`."""
    return next(_pages(content))


def pages(content: bytes) -> list["Page"]:
    """Return the pages of a file without thumbnails and masks.

    Raises:
        ImageError: the file has no such page, or more pages or tags than usual files have.
        ValueError: the file is truncated.
    """
    return list(_pages(content))


def has_pages(content: bytes) -> bool:
    """Return whether a file is a TIFF file of several pages; False if it is broken."""
    if not is_tiff(content):
        return False
    try:
        return len(list(islice(_pages(content), 2))) > 1
    except (ImageError, ValueError):
        return False


def _pages(content: bytes) -> Iterator["Page"]:
    order = "<" if content.startswith(b"I") else ">"
    layout = Layout(order, is_big=b"+" in content[:4])
    (at,) = layout.unpack("Q", content, 8) if layout.is_big else layout.unpack("L", content, 4)
    number, seen = 0, set[int]()
    while at and at not in seen:  # stop at a cycle of directories
        if len(seen) == MAX_PAGES:
            raise too_complex(KIND, f"over {MAX_PAGES} pages")
        seen.add(at)
        tags, at = _directory(content, layout, at)
        page = Page(content, layout, tags, number + 1)
        if not page.first(KIND_OF_PAGE, 0) & REDUCED_OR_MASK:
            number += 1
            yield page
    if not number:
        raise ImageError(
            "image is a TIFF file of thumbnails alone, as camera raw files are",
            hint="export it as JPEG, or as TIFF with its pixels",
        )


def _directory(content: bytes, layout: Layout, at: int) -> tuple[dict[int, Tag], int]:
    """Return the tags of one directory, and the offset of the next; 0 if there is none."""
    count, entry, link = ("Q", "HHQ", "Q") if layout.is_big else ("H", "HHL", "L")
    entry_bytes, inline_bytes = (20, 8) if layout.is_big else (12, 4)
    (num_tags,) = layout.unpack(count, content, at)
    if num_tags > MAX_TAGS:
        raise too_complex(KIND, f"over {MAX_TAGS} tags in a page")
    at += struct.calcsize("=" + count)
    tags: dict[int, Tag] = {}
    for _ in range(num_tags):
        name, kind, num_values = layout.unpack(entry, content, at)
        offset = at + entry_bytes - inline_bytes
        if num_values * TYPE_BYTES.get(kind, 0) > inline_bytes:
            (offset,) = layout.unpack(link, content, offset)
        tags.setdefault(name, Tag(kind, num_values, offset))
        at += entry_bytes
    return tags, layout.unpack(link, content, at)[0]


class Page:
    """One page of a file.

    Args:
        content: the file.
        layout: the number format of the file.
        tags: the tags of the page.
        number: its number among the pages that are not thumbnails or masks, from 1.
    """

    def __init__(
        self, content: bytes, layout: Layout, tags: Mapping[int, Tag], number: int
    ) -> None:
        self.number = number
        self._content = content
        self._layout = layout
        self._tags = tags

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, before turning upright."""
        return self.first(WIDTH), self.first(HEIGHT)

    @property
    def orientation(self) -> int:
        """The value of its orientation tag; 1 is upright."""
        return self.first(ORIENTATION, 1)

    @cached_property
    def is_tiled(self) -> bool:
        """Whether its pixels are in tiles, not in strips."""
        return TILE_OFFSETS in self._tags and STRIP_OFFSETS not in self._tags

    @property
    def segment_bytes(self) -> int:
        """Memory in bytes of its largest decoded strip or tile, which a decoder buffers.

        0 if the page is not compressed: it is then read row by row.
        """
        if self.first(COMPRESSION, 1) == 1:
            return 0
        samples = max(4, self.first(SAMPLES, 1))
        width, height = self._segment_size()
        return width * height * samples * -(-max(8, *self._numbers(BITS, (1,))) // 8)

    def check(self) -> None:
        """Check that a page is supported and not far more expensive than its size suggests.

        Raises:
            ImageError: the page is not supported, or takes too long to decode.
            ValueError: its tags are invalid.
        """
        compression = self.first(COMPRESSION, 1)
        if self.first(COLOURS, 0) in CAMERA_RAW:
            raise ImageError(
                "image is a camera raw file, which is not decoded", hint="export it as JPEG"
            )
        if compression not in COMPRESSIONS:
            raise ImageError(
                f"image is a TIFF file with {OTHERS.get(compression, 'an unusual')} compression, "
                "which is not decoded",
                hint="save it again with LZW compression, or as PNG",
            )
        width, height = self.size
        across, down = self._segment_size()
        if min(width, height, across, down) < 1:
            raise ValueError("it has no size")
        num_segments = -(-width // across) * -(-height // down) * self._num_planes()
        if num_segments > MAX_SEGMENTS:
            raise too_complex(KIND, f"over {MAX_SEGMENTS} strips or tiles")
        padded = -(-width // across) * across * -(-height // down) * down
        if padded > MAX_PADDING * width * height + SPARE_PIXELS:
            raise too_complex(KIND, "tiles far larger than its picture")
        if compression == JPEG and any(
            self._content.count(SCAN, start, stop) > MAX_SCANS for start, stop in self._segments()
        ):
            raise too_complex(KIND, f"over {MAX_SCANS} scans in a strip or tile")

    def file(self, *, has_pixels: bool = True) -> bytes:
        """Return a file with only this page, and only the tags that its pixels depend on.

        Args:
            has_pixels: whether to include the strips or tiles.

        Raises:
            ValueError: the strips or tiles are outside the file, or overlap.
        """
        segments = self._segments() if has_pixels else [(0, 0)]
        sizes = [stop - start for start, stop in segments]
        if sum(sizes) > len(self._content):
            raise ValueError("its strips or tiles overlap")
        head_bytes, number = (16, LONG8) if self._layout.is_big else (8, LONG)
        offsets, at = [], head_bytes
        for num_bytes in sizes:
            offsets.append(at)
            at += num_bytes
        kept = {
            name: (tag.type, self._raw(name)) for name, tag in self._tags.items() if name in NEEDED
        }
        names = (TILE_OFFSETS, TILE_BYTES) if self.is_tiled else (STRIP_OFFSETS, STRIP_BYTES)
        for name, numbers in zip(names, (offsets, sizes), strict=True):
            kept[name] = (number, self._layout.pack(f"{len(numbers)}{INTEGERS[number]}", *numbers))
        if not self.is_tiled:  # decoders allocate memory for the stated number of rows
            kept[ROWS] = (LONG, self._layout.pack("L", self._segment_size()[1]))
        spare = -at % 8
        values, directory = _written(kept, self._layout, at + spare)
        begin = self._content[: 8 if self._layout.is_big else 4]
        head = begin + self._layout.pack(
            "Q" if self._layout.is_big else "L", at + spare + len(values)
        )
        view = memoryview(self._content)
        pixels = [view[start:stop] for start, stop in segments]
        return b"".join([head, *pixels, bytes(spare), values, directory])

    def first(self, name: int, default: int | None = None) -> int:
        """Return the first number of a tag.

        Raises:
            ValueError: the tag is missing and there is no default, or it is invalid.
        """
        numbers = self._numbers(name, () if default is None else (default,))
        if not numbers:
            raise ValueError("a tag is missing")
        return numbers[0]

    def _numbers(self, name: int, default: Sequence[int] = ()) -> Sequence[int]:
        tag = self._tags.get(name)
        if tag is None:
            return default
        if tag.type not in INTEGERS or not tag.num_values:
            raise ValueError("a tag has values of another type")
        self._check_count(name, tag)
        return self._layout.unpack(f"{tag.num_values}{INTEGERS[tag.type]}", self._content, tag.at)

    def _raw(self, name: int) -> bytes:
        """Return the bytes of a tag's values in the file."""
        tag = self._tags[name]
        self._check_count(name, tag)
        num_bytes = tag.num_values * TYPE_BYTES.get(tag.type, 0)
        found = self._content[tag.at : tag.at + num_bytes]
        if len(found) < max(1, num_bytes):
            raise ValueError("it breaks off")
        return found

    def _check_count(self, name: int, tag: Tag) -> None:
        if name in (STRIP_OFFSETS, STRIP_BYTES, TILE_OFFSETS, TILE_BYTES):
            if tag.num_values > MAX_SEGMENTS:
                raise too_complex(KIND, f"over {MAX_SEGMENTS} strips or tiles")
        elif tag.num_values > MAX_VALUES:
            raise too_complex(KIND, f"over {MAX_VALUES} values of a tag")

    def _num_planes(self) -> int:
        return self.first(SAMPLES, 1) if self.first(PLANES, 1) == 2 else 1

    def _segment_size(self) -> tuple[int, int]:
        """Return width and height of a tile or strip in pixels."""
        if self.is_tiled:
            return self.first(TILE_WIDTH), self.first(TILE_HEIGHT)
        width, height = self.size
        return width, min(self.first(ROWS, height), height)

    def _segments(self) -> list[tuple[int, int]]:
        """Return the ranges of the strips or tiles in the file."""
        names = (TILE_OFFSETS, TILE_BYTES) if self.is_tiled else (STRIP_OFFSETS, STRIP_BYTES)
        starts = self._numbers(names[0])
        end = len(self._content)
        sizes = self._numbers(names[1], (end - starts[0],) if len(starts) == 1 else ())
        if not starts or len(starts) != len(sizes):
            raise ValueError("it does not say where its pixels are")
        if any(start + size > end for start, size in zip(starts, sizes, strict=True)):
            raise ValueError("it breaks off")
        return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _written(kept: Mapping[int, tuple[int, bytes]], layout: Layout, at: int) -> tuple[bytes, bytes]:
    """Return the values stored outside of a directory, from an offset on, and the directory."""
    count, entry, link = ("Q", "HHQ", "Q") if layout.is_big else ("H", "HHL", "L")
    inline_bytes = 8 if layout.is_big else 4
    values, entries = bytearray(), [layout.pack(count, len(kept))]
    for name, (kind, data) in sorted(kept.items()):
        value = data.ljust(inline_bytes, b"\0")
        if len(data) > inline_bytes:
            value = layout.pack(link, at + len(values))
            values += data + bytes(-len(data) % 8)
        entries.append(layout.pack(entry, name, kind, len(data) // TYPE_BYTES[kind]) + value)
    return bytes(values), b"".join([*entries, layout.pack(link, 0)])
