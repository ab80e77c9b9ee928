"""Small images for tests; each is a function of its size and seed."""

import numpy as np

from vlmkit.types.image import Image


def picture(height: int = 48, width: int = 64, *, seed: int = 0) -> Image:
    """Return an image of smooth colours with some noise; other seeds differ everywhere."""
    random = np.random.default_rng(seed)
    corners = random.integers(0, 200, size=(2, 2, 3)).astype(np.float64)
    down = np.linspace(0.0, 1.0, height)[:, None, None]
    across = np.linspace(0.0, 1.0, width)[None, :, None]
    top = corners[0, 0] * (1 - across) + corners[0, 1] * across
    bottom = corners[1, 0] * (1 - across) + corners[1, 1] * across
    noise = random.integers(0, 56, size=(height, width, 3))
    return Image.open((top * (1 - down) + bottom * down + noise).astype(np.uint8))


def awkward_pictures() -> list[Image]:
    """Return images that are hard for processors: tiny, narrow, wide, odd, of one colour."""
    sizes = [(2, 2), (2, 200), (200, 2), (31, 17)]
    plain = Image.open(np.zeros((40, 40, 3), dtype=np.uint8))
    return [*(picture(height, width) for height, width in sizes), plain]
