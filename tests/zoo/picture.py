"""Images in which every pixel matters, so a wrong crop or order fails a comparison."""

import numpy as np
from PIL import Image


def picture(seed: int, width: int = 60, height: int = 60) -> Image.Image:
    """Return an RGB image of ``width`` x ``height`` random coloured blocks of 4 pixels.

    Resizing would average single-pixel noise to grey.
    """
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (-(-height // 4), -(-width // 4), 3), dtype=np.uint8)
    pixels = blocks.repeat(4, axis=0).repeat(4, axis=1)[:height, :width]
    return Image.fromarray(np.ascontiguousarray(pixels))
