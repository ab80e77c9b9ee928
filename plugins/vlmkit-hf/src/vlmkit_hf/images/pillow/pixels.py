"""Resizes images with Pillow, and scales levels to the numbers that a model was trained on.

Levels stay bytes until the end. A table of 256 entries then maps each level to exactly the number
that torch computes in the family's precision.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image

from vlmkit_hf.images.size import Size

Pixels = np.ndarray[Any, np.dtype[Any]]
Resizer = Callable[[Pixels, Size], Pixels]
Scaling = Callable[[Pixels, Any], Pixels]
"""Scales levels in float32 to a model's inputs, under a processor's settings."""


def bytewise(picture: Pixels, size: Size, resample: int) -> Pixels:
    """Resize bytes to bytes: first the width, then the height, with bytes between, as torch does.

    Pillow would choose the cheaper order. Filters that overshoot are clipped between the steps.
    """
    if picture.shape[:2] == size:
        return picture
    across = PIL.Image.fromarray(picture).resize((size.width, picture.shape[0]), resample)
    return np.asarray(across.resize((size.width, size.height), resample))


def pillow_resized(picture: Pixels, size: Size, resample: int) -> Pixels:
    """Resize bytes to bytes as Pillow does."""
    if picture.shape[:2] == size:
        return picture
    return np.asarray(PIL.Image.fromarray(picture).resize((size.width, size.height), resample))


def unclipped(picture: Pixels, size: Size, resample: int) -> Pixels:
    """Resize to float32 without rounding; values may lie beyond black and white."""
    if picture.shape[:2] == size:
        return picture.astype(np.float32)
    channels = [
        PIL.Image.fromarray(channel).resize((size.width, size.height), resample)
        for channel in np.moveaxis(picture, -1, 0).astype(np.float32)
    ]
    return np.stack([np.asarray(channel) for channel in channels], -1)


def unfiltered(picture: Pixels, size: Size, resample: int) -> Pixels:  # noqa: ARG001 - one for all
    """Resize bytes to bytes by bilinear interpolation of four pixels, without antialiasing.

    Pillow always antialiases when it reduces an image.
    """
    if picture.shape[:2] == size:
        return picture
    rows, low, high = _between(picture.shape[0], size.height)
    columns, left, right = _between(picture.shape[1], size.width)
    across = [
        picture[at][:, left] * (1 - columns)[:, None] + picture[at][:, right] * columns[:, None]
        for at in (low, high)
    ]
    mixed = across[0] * (1 - rows)[:, None, None] + across[1] * rows[:, None, None]
    made: Pixels = np.clip(np.rint(mixed), 0, 255).astype(np.uint8)
    return made


def bilinear(picture: Pixels, size: Size, resample: int) -> Pixels:  # noqa: ARG001 - one for all
    """Resize bytes to bytes with the bilinear filter, whatever the checkpoint's settings are."""
    return bytewise(picture, size, PIL.Image.Resampling.BILINEAR)


def sampled(picture: Pixels, size: Size) -> Pixels:
    """Resize to float32 by bicubic interpolation without antialiasing; values may overshoot."""
    columns = _cubic(picture.shape[1], size.width)
    rows = _cubic(picture.shape[0], size.height)
    across = np.einsum("hwtc,wt->hwc", picture.astype(np.float32)[:, columns[0]], columns[1])
    made: Pixels = np.einsum("htwc,ht->hwc", across[rows[0]], rows[1])
    return made


def _cubic(old: int, new: int) -> tuple[Pixels, Pixels]:
    """Return the four source pixels for each target pixel of a side, and torch's weights."""
    bend = np.float32(-0.75)
    place = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * np.float32(old / new)
    place -= np.float32(0.5)
    before = np.floor(place)
    steps = np.arange(-1, 3, dtype=np.float32)
    apart = np.abs((place - before)[:, None] - steps)
    near = ((bend + 2) * apart - (bend + 3)) * apart * apart + 1
    far = ((apart - 5) * apart + 8) * apart * bend - 4 * bend
    taken = np.clip(before[:, None] + steps, 0, old - 1).astype(np.int64)
    return taken, np.where(apart <= 1, near, far)


def _between(old: int, new: int) -> tuple[Pixels, Pixels, Pixels]:
    """Return the fraction between two source pixels for each target pixel, and those two."""
    centre = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * np.float32(old / new)
    place = np.maximum(centre - np.float32(0.5), 0)
    before = np.minimum(place.astype(np.int64), old - 1)
    return place - before, before, np.minimum(before + 1, old - 1)


def scaled(pixels: Pixels, settings: Any, scaling: Scaling) -> Pixels:
    """Return a model's inputs for levels ``[..., 3]``, in float32.

    Args:
        pixels: bytes, or float32 numbers on the same scale.
        settings: the processor's settings for rescaling and normalization.
        scaling: the steps of the scaling and their rounding.
    """
    if pixels.dtype != np.uint8:
        return scaling(pixels.astype(np.float32), settings)
    levels = np.arange(256, dtype=np.float32)[:, None].repeat(3, 1)
    table = scaling(levels, settings)
    return np.stack([table[pixels[..., c], c] for c in range(3)], -1)


def fused(levels: Pixels, settings: Any) -> Pixels:
    """Rescale and normalize in one step."""
    factor = settings.rescale_factor if settings.do_rescale else 1.0
    if not settings.do_normalize:
        return levels * np.float32(factor)
    unit = np.float32(1.0 / factor)
    mean, deviation = (
        np.float32(settings.image_mean) * unit,
        np.float32(settings.image_std) * unit,
    )
    made: Pixels = (levels - mean) / deviation
    return made


def stepwise(levels: Pixels, settings: Any) -> Pixels:
    """Rescale, round to float32, then normalize."""
    if settings.do_rescale:
        levels = (levels.astype(np.float64) * settings.rescale_factor).astype(np.float32)
    if not settings.do_normalize:
        return levels
    mean, deviation = np.float32(settings.image_mean), np.float32(settings.image_std)
    made: Pixels = (levels - mean) / deviation
    return made


def bfloat16(levels: Pixels, settings: Any) -> Pixels:
    """Rescale and normalize in bfloat16."""
    if settings.do_rescale:
        levels = _rounded(levels * np.float32(settings.rescale_factor))
    if settings.do_normalize:
        numbers = np.array([settings.image_mean, settings.image_std], np.float32)
        mean, deviation = _rounded(numbers)
        levels = _rounded(_rounded(levels - mean) / deviation)
    return levels


def _rounded(numbers: Pixels) -> Pixels:
    """Round float32 to the nearest bfloat16, ties to even."""
    bits = np.asarray(numbers, np.float32).view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return bits.view(np.float32)
