"""The rules by which families resize an image to a limited number of patches."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vlmkit_hf.images.size import Size

MOST_STRETCHED = 200
SMALLEST, LARGEST = 1, 4096  # sides of a picture before it is split


def size_of(setting: Any) -> Size:
    """Return the size of a setting with height and width."""
    return Size(setting["height"], setting["width"])


def within(size: Size, most: Size, least: int | None) -> Size:
    """Return the largest size within a canvas that keeps an image's aspect ratio.

    A side shorter than ``least`` is enlarged to at most that. If the canvas is the limit,
    transformers divides by the image's side in float32. So does this function, so that both
    round down equally.
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
    """Return a size within limits of patches in all and along a side; never enlarges.

    Args:
        size: the size of the image.
        side: the side of a patch.
        most: the most patches.
        most_a_side: the most patches along a side.
    """
    num_patches = max(1, size.height // side) * max(1, size.width // side)
    longest = most_a_side * side
    scale = min(1.0, math.sqrt(most / num_patches), longest / size.height, longest / size.width)
    return Size(*(min(max(1, int(length * scale)), longest) for length in size))


def in_blocks(size: Size, side: int, least: int, most: int) -> Size:
    """Return a size in whole blocks within limits, near the image's aspect ratio.

    Args:
        size: the size of the image.
        side: the side of a block.
        least: the least blocks.
        most: the most blocks.
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
    """Return a size in whole blocks within a limit, with the nearest aspect ratio."""
    tall, wide = size.height / side, size.width / side
    shape = wide / tall
    if tall * wide > most:
        tall = (most / shape) ** 0.5
        wide = tall * shape
    # A set, as in transformers: its order decides between two equally near sizes.
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
    """Return rows and columns of patches, as multiples of ``merge``.

    Args:
        size: the size of the image.
        side: the side of a patch.
        merge: the number of patches along a token's side.
        least: the least patches.
        most: the most patches.
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
    """Return the next multiple, or the previous one if the next exceeds the limit."""
    over = length % merge
    if not over:
        return length
    up = length + merge - over
    return up if up <= most else max(merge, length - over)


def patches_in_area(size: Size, side: int, least: float, most: float) -> Size:
    """Return a size in whole blocks, with an area between two limits.

    Args:
        size: the size of the image.
        side: the side of a block.
        least: the smallest area, in pixels.
        most: the largest area, in pixels.

    Raises:
        ValueError: the aspect ratio is too extreme.
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
    """Return a size in whole blocks, reduced if its longer side exceeds a limit.

    Args:
        size: the size of the image.
        edge: the limit of the longer side.
        side: the side of a block.
    """
    ratio = max(size.height / edge, size.width / edge)
    used = [math.floor(length / ratio) for length in size] if ratio > 1 else size
    return Size(*(((length - 1) // side + 1) * side for length in used))


def in_slice(size: tuple[float, float], resolution: int, side: int, *, grows: bool) -> Size:
    """Return a size in whole blocks, reduced to the area of the model's training if larger.

    Args:
        size: the size of the image, or of a slice.
        resolution: the side of a square of that area.
        side: the side of a block.
        grows: whether smaller sizes are enlarged to that area.
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
    """Return an image's size before it is cut: its longer side has the given length."""
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
    """Return the canvas with the highest resolution of an image, then with the least waste."""
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
    """Return the size that fits an image into a canvas and keeps its aspect ratio."""
    wide, tall = canvas.width / size.width, canvas.height / size.height
    if wide < tall:
        return Size(min(math.ceil(size.height * wide), canvas.height), canvas.width)
    return Size(canvas.height, min(math.ceil(size.width * tall), canvas.width))
