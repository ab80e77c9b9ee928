"""The memory that decoding an image takes: measured values by format, and the need of one file.

``benchmarks/image_memory.py`` measures it, and a slow test compares the table with the measurement.
Formats without a row are not opened. Does not limit or divide memory.
"""

from collections.abc import Mapping
from typing import NamedTuple

STRIP_PIXELS = 2**16
"""Pixels that are converted or hashed at once, to limit copies."""

RGB_BYTES = 4
"""Memory of one decoded pixel: Pillow stores RGB in four bytes."""

PREPARE_BYTES = 10
"""Additional memory of one pixel during preprocessing: arrays and resized copies."""

PROCESS_BYTES = 40 * 2**20
"""Memory of a decoder process before it receives its file."""

FIXED_BYTES = 3 * 2**20
"""Memory for a decoder's tables and rows, and for strips; rows of 65,500 pixels need the most."""

NARROW_MODES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
"""Bytes per pixel by Pillow's mode; every other mode takes four."""


class FormatCost(NamedTuple):
    """Memory that a decoder takes besides the pixels that it returns.

    Attributes:
        pixel_bytes: bytes per pixel, without the coefficients of JPEG files, which differ by file.
        file_ratio: bytes per byte of the file, for copies of the file and of its metadata.
        is_isolated: whether the decoder runs in its own process, from which pixels are copied.
    """

    pixel_bytes: float
    file_ratio: float
    is_isolated: bool = False


COSTS: Mapping[str, FormatCost] = {
    "PNG": FormatCost(pixel_bytes=0, file_ratio=1),
    "JPEG": FormatCost(pixel_bytes=0, file_ratio=2),
    "WEBP": FormatCost(pixel_bytes=8, file_ratio=1),  # two canvases, then one and a copy
    "GIF": FormatCost(pixel_bytes=1, file_ratio=1),  # the disposal buffer of the first frame
    "BMP": FormatCost(pixel_bytes=2, file_ratio=1),  # run-length encoding; others need nothing
    "TIFF": FormatCost(pixel_bytes=0, file_ratio=2, is_isolated=True),
    "AVIF": FormatCost(pixel_bytes=4, file_ratio=2, is_isolated=True),  # one copy, besides planes
}

FORMATS = tuple(COSTS)

DECODED_HERE = tuple(name for name, cost in COSTS.items() if not cost.is_isolated)
"""Formats whose decoders run in this process."""


class DecodeCost(NamedTuple):
    """Memory for one image.

    Attributes:
        peak_bytes: maximum during decoding.
        held_bytes: memory of the decoded pixels; part of the peak.
        prepare_bytes: additional memory during preprocessing, without the pixels.
    """

    peak_bytes: int
    held_bytes: int
    prepare_bytes: int = 0


NO_COST = DecodeCost(0, 0)


def decode_cost(
    cost: FormatCost,
    mode: str,
    size: tuple[int, int],
    *,
    num_file_bytes: int,
    is_copied: bool,
    may_turn: bool,
    buffer_bytes: int = 0,
) -> DecodeCost:
    """Return the memory that decoding one file needs.

    Args:
        cost: the cost of its format.
        mode: Pillow's mode of the pixels that the decoder returns.
        size: width and height in pixels.
        num_file_bytes: size of the file.
        is_copied: whether these pixels must be converted to RGB.
        may_turn: whether an orientation tag may rotate or mirror the image.
        buffer_bytes: buffers of the decoder: a JPEG file's coefficients until the last scan, the
            largest strip or tile of a TIFF file, or the planes of an AVIF file.
    """
    num_pixels = size[0] * size[1]
    source = NARROW_MODES.get(mode, 4)
    steps = [
        (source + cost.pixel_bytes) * num_pixels + buffer_bytes,
        source * (1 + may_turn) * num_pixels,
        (source + RGB_BYTES * is_copied) * num_pixels,
    ]
    held_bytes = RGB_BYTES * num_pixels
    fixed = FIXED_BYTES + cost.file_ratio * num_file_bytes
    if cost.is_isolated:
        fixed += PROCESS_BYTES + held_bytes
    return DecodeCost(int(max(steps) + fixed), held_bytes, PREPARE_BYTES * num_pixels)
