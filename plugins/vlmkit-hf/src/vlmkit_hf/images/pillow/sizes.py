"""To what size a picture is brought: the rules of families that keep to a number of patches."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vlmkit_hf.images.size import Size

MOST_STRETCHED = 200
SMALLEST, LARGEST = 1, 4096  # sides of a picture before it is split


def size_of(setting: Any) -> Size:
    """Return the size that a setting has by its height and width."""
    return Size(setting["height"], setting["width"])


def within(size: Size, most: Size, least: int | None) -> Size:
    """Return the largest size of a picture's shape within a canvas.

    A side of less than ``least`` is enlarged to that at most. transformers divides by a picture's
    side in float32 where the canvas is what limits it; so does this, for floors to be the same.
    """

    def factor(side: int, canvas: int) -> tuple[int, Any]:
        wanted = canvas if least is None else max(side, least)
        if least is None or canvas < wanted:
            return canvas, np.float32(canvas) / np.float32(side)
        return wanted, wanted / side

    (height, tall), (width, wide) = (factor(*pair) for pair in zip(size, most, strict=True))
    if wide < tall:
        height = min(math.floor(size.height * wide), height)
    else:
        width = min(math.floor(size.width * tall), width)
    return Size(max(height, 1), max(width, 1))


def within_patches(size: Size, side: int, most: int, most_a_side: int) -> Size:
    """Return a size of no more patches than are allowed, in all and along a side; none is enlarged.

    Args:
        size: of the picture.
        side: of a patch.
        most: patches.
        most_a_side: patches along a side.
    """
    num_patches = max(1, size.height // side) * max(1, size.width // side)
    longest = most_a_side * side
    scale = min(1.0, math.sqrt(most / num_patches), longest / size.height, longest / size.width)
    return Size(*(min(max(1, int(length * scale)), longest) for length in size))


def in_blocks(size: Size, side: int, least: int, most: int) -> Size:
    """Return a size in whole blocks, as many as are allowed, near to the picture's shape.

    Args:
        size: of the picture.
        side: of a block.
        least: blocks.
        most: blocks.
    """
    height, width = (max(side, round(length / side) * side) for length in size)
    area, least_area, most_area = size.height * size.width, least * side**2, most * side**2
    if height * width > most_area:
        shrink = math.sqrt(area / most_area)
        height, width = (max(side, math.floor(n / shrink / side) * side) for n in size)
    elif height * width < least_area:
        grow = math.sqrt(least_area / area)
        height, width = (math.ceil(n * grow / side) * side for n in size)
    return Size(height, width)


def nearest_in_blocks(size: Size, side: int, most: int) -> Size:
    """Return a size of whole blocks, no more than are allowed, whose shape is the picture's."""
    tall, wide = size.height / side, size.width / side
    shape = wide / tall
    if tall * wide > most:
        tall = (most / shape) ** 0.5
        wide = tall * shape
    # A set, as in transformers: it says which of two equally near ones is taken.
    around = set(
        itertools.product(
            [math.floor(tall), math.ceil(tall)],
            [math.floor(wide), math.ceil(wide)],
        )
    )
    near = [(high, broad) for high, broad in around if high >= 1 <= broad and high * broad <= most]
    near = near or [(max(1, round(tall)), max(1, round(wide)))]
    height, width = min(near, key=lambda it: abs(it[0] / it[1] - size.height / size.width))
    return Size(height * side, width * side)


def in_merged_patches(size: Size, side: int, merge: int, least: int, most: int) -> Size:
    """Return rows and columns of patches, multiples of those that are merged.

    Args:
        size: of the picture.
        side: of a patch.
        merge: patches along a token's side.
        least: patches.
        most: patches.
    """
    rows, columns = (round(length / side + 0.5) for length in size)
    shrink = min(math.sqrt(most / (rows * columns)), 1.0)
    rows, columns = math.floor(shrink * rows), math.floor(shrink * columns)
    if most > least > rows * columns:
        grow = math.sqrt(least / (rows * columns))
        rows, columns = math.ceil(grow * rows), math.ceil(grow * columns)
    rows = _merged(rows, merge, most // columns)
    return Size(rows, _merged(columns, merge, most // rows))


def _merged(length: int, merge: int, most: int) -> int:
    """Return the next multiple, or the last where that is too many."""
    over = length % merge
    if not over:
        return length
    up = length + merge - over
    return up if up <= most else max(merge, length - over)


def patches_in_area(size: Size, side: int, least: float, most: float) -> Size:
    """Return a size in whole blocks, of an area between two limits.

    Args:
        size: of the picture.
        side: of a block.
        least: pixels.
        most: pixels.

    Raises:
        ValueError: one side is too much longer than the other.
    """
    if max(size) / min(size) > MOST_STRETCHED:
        raise ValueError(f"a side is over {MOST_STRETCHED} times as long as the other")
    height, width = (round(length / side) * side for length in size)
    if height * width > most:
        shrink = math.sqrt(size.height * size.width / most)
        height, width = (max(side, math.floor(n / shrink / side) * side) for n in size)
    elif height * width < least:
        grow = math.sqrt(least / (size.height * size.width))
        height, width = (math.ceil(n * grow / side) * side for n in size)
    return Size(height, width)


def within_edge(size: Size, edge: int, side: int) -> Size:
    """Return a size in whole blocks, reduced to a longer side where it is over that.

    Args:
        size: of the picture.
        edge: the longer side.
        side: of a block.
    """
    ratio = max(size.height / edge, size.width / edge)
    used = [math.floor(length / ratio) for length in size] if ratio > 1 else size
    return Size(*(((length - 1) // side + 1) * side for length in used))


def in_slice(size: tuple[float, float], resolution: int, side: int, *, grows: bool) -> Size:
    """Return a size in whole blocks, of the area that a model was trained on if larger.

    Args:
        size: of the picture, or of a slice of it.
        resolution: side of a square of that area.
        side: of a block.
        grows: what is smaller is brought to that area, too.
    """
    height, width = size
    if height * width > resolution * resolution or grows:
        shape = width / height
        height = int(resolution / math.sqrt(shape))
        width = int(height * shape)
    return Size(_whole(height, side), _whole(width, side))


def _whole(length: float, side: int) -> int:
    return max(round(length / side) * side, side)


def resized_to_split(size: Size, edge: int) -> Size:
    """Return a picture's size, its longer side brought to a limit, before it is cut."""
    shape = size.width / size.height
    if size.width >= size.height:
        width, height = edge, int(edge / shape)
        height += height % 2
    else:
        height, width = edge, int(edge * shape)
        width += width % 2
    height, width = max(height, SMALLEST), max(width, SMALLEST)
    shape = width / height
    if width >= height and width > LARGEST:
        width, height = LARGEST, int(LARGEST / shape)
    elif height > width and height > LARGEST:
        height, width = LARGEST, int(LARGEST * shape)
    return Size(max(height, SMALLEST), max(width, SMALLEST))


def best_canvas(size: Size, canvases: Sequence[Sequence[int]]) -> Size:
    """Return the canvas that shows most of a picture, and of such the least wasteful."""
    best, most, least = Size(0, 0), 0, math.inf
    for height, width in canvases:
        scale = min(width / size.width, height / size.height)
        shown = int(size.width * scale) * int(size.height * scale)
        shown = min(shown, size.width * size.height)
        wasted = width * height - shown
        if shown > most or (shown == most and wasted < least):
            best, most, least = Size(height, width), shown, wasted
    return best


def within_canvas(size: Size, canvas: Size) -> Size:
    """Return a picture's size, kept in shape, that fills a canvas one way."""
    wide, tall = canvas.width / size.width, canvas.height / size.height
    if wide < tall:
        return Size(min(math.ceil(size.height * wide), canvas.height), canvas.width)
    return Size(canvas.height, min(math.ceil(size.width * tall), canvas.width))
