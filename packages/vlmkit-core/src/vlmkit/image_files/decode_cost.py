"""What decoding a picture takes: memory by format, as measured, and what one file needs.

``benchmarks/image_memory.py`` measures it, and a slow test compares the table with the measurement.
A format without a row is not opened. Knows nothing of how the memory is shared.
"""

from collections.abc import Mapping
from typing import NamedTuple

STRIP_PIXELS = 2**16
"""Pixels that are converted or hashed at once, where that takes several copies."""

RGB_BYTES = 4
"""Memory of one pixel of a decoded picture: Pillow gives RGB a fourth byte."""

PREPARE_BYTES = 10
"""Memory of one pixel besides, while a model's processor has it: arrays and resized copies."""

PROCESS_BYTES = 40 * 2**20
"""Memory of a process that decodes one file, before it has the file."""

FIXED_BYTES = 3 * 2**20
"""For tables and rows of decoders, and for strips; files of 65,500 pixels in a row need most."""

NARROW_MODES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
"""Bytes of one pixel by Pillow's mode; every other mode takes four."""


class FormatCost(NamedTuple):
    """Memory that a decoder takes besides the pixels that it returns.

    Attributes:
        pixel_bytes: for each pixel; coefficients of JPEG files come on top, which differ by file.
        file_ratio: for each byte of the file: copies of the file and of its metadata.
        is_isolated: whether it runs in a process of its own, from which pixels are copied.
    """

    pixel_bytes: float
    file_ratio: float
    is_isolated: bool = False


COSTS: Mapping[str, FormatCost] = {
    "PNG": FormatCost(pixel_bytes=0, file_ratio=1),
    "JPEG": FormatCost(pixel_bytes=0, file_ratio=2),
    "WEBP": FormatCost(pixel_bytes=8, file_ratio=1),  # two canvases, then one and a copy
    "GIF": FormatCost(pixel_bytes=1, file_ratio=1),  # what the first frame is disposed of to
    "BMP": FormatCost(pixel_bytes=2, file_ratio=1),  # run lengths; others take nothing
    "TIFF": FormatCost(pixel_bytes=0, file_ratio=2, is_isolated=True),
    "AVIF": FormatCost(pixel_bytes=4, file_ratio=2, is_isolated=True),  # one more copy; and planes
}

FORMATS = tuple(COSTS)

DECODED_HERE = tuple(name for name, cost in COSTS.items() if not cost.is_isolated)
"""Formats whose decoders run in this process."""


class DecodeCost(NamedTuple):
    """Memory for one picture.

    Attributes:
        peak_bytes: while it is decoded.
        held_bytes: while its pixels are there; part of the peak.
        prepare_bytes: while it is made ready for a model, besides its pixels.
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
    """Return the memory that one file needs.

    Args:
        cost: of its format.
        mode: of the pixels that the decoder returns, by Pillow's name.
        size: width and height in pixels.
        num_file_bytes: of the file.
        is_copied: whether those pixels are not RGB yet.
        may_turn: whether an orientation tag may turn the picture.
        buffer_bytes: what a decoder holds besides: a JPEG file's coefficients until the last scan,
            the largest strip or tile of a TIFF file, the planes of an AVIF file.
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
