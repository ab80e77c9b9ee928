"""Pixels to other pixels: resized by Pillow, and scaled to the numbers that a model was trained on.

Levels stay bytes until the end, and a table of 256 says what each becomes: exactly what torch
computes of each in the precision that the family uses.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image

from vlmkit_hf.images.size import Size

Pixels = np.ndarray[Any, np.dtype[Any]]
Resizer = Callable[[Pixels, Size], Pixels]
Scaling = Callable[[Pixels, Any], Pixels]
"""Levels in float32 to what a model is given, under a processor's settings."""


def bytewise(picture: Pixels, size: Size, resample: int) -> Pixels:
    """Resize bytes to bytes: across, then down, with bytes in between, as torch does.

    Pillow would choose the cheaper order, and a filter that overshoots is clipped in between.
    """
    if picture.shape[:2] == size:
        return picture
    across = PIL.Image.fromarray(picture).resize((size.width, picture.shape[0]), resample)
    return np.asarray(across.resize((size.width, size.height), resample))


def at_once(picture: Pixels, size: Size, resample: int) -> Pixels:
    """Resize bytes to bytes as Pillow does."""
    if picture.shape[:2] == size:
        return picture
    return np.asarray(PIL.Image.fromarray(picture).resize((size.width, size.height), resample))


def unclipped(picture: Pixels, size: Size, resample: int) -> Pixels:
    """Resize to numbers that are not rounded, and may lie beyond black and white."""
    if picture.shape[:2] == size:
        return picture.astype(np.float32)
    channels = [
        PIL.Image.fromarray(channel).resize((size.width, size.height), resample)
        for channel in np.moveaxis(picture, -1, 0).astype(np.float32)
    ]
    return np.stack([np.asarray(channel) for channel in channels], -1)


def unfiltered(picture: Pixels, size: Size, resample: int) -> Pixels:  # noqa: ARG001 - one for all
    """Resize bytes to bytes between the nearest four pixels, however many lie under a new one.

    Pillow has no such way to make a picture smaller.
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
    """Resize bytes to bytes in one way, whatever a checkpoint's settings say."""
    return bytewise(picture, size, PIL.Image.Resampling.BILINEAR)


def sampled(picture: Pixels, size: Size) -> Pixels:
    """Resize to numbers by the cubic through the four pixels around, which may overshoot."""
    columns = _cubic(picture.shape[1], size.width)
    rows = _cubic(picture.shape[0], size.height)
    across = np.einsum("hwtc,wt->hwc", picture.astype(np.float32)[:, columns[0]], columns[1])
    made: Pixels = np.einsum("htwc,ht->hwc", across[rows[0]], rows[1])
    return made


def _cubic(old: int, new: int) -> tuple[Pixels, Pixels]:
    """Return four pixels of a side around each new one, and their weights, as torch has them."""
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
    """Return how far between two pixels of a side each new one lies, and those two."""
    centre = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * np.float32(old / new)
    place = np.maximum(centre - np.float32(0.5), 0)
    before = np.minimum(place.astype(np.int64), old - 1)
    return place - before, before, np.minimum(before + 1, old - 1)


def scaled(pixels: Pixels, settings: Any, scaling: Scaling) -> Pixels:
    """Return what a model is given of levels ``[..., 3]``, in float32.

    Args:
        pixels: bytes, or numbers on the same scale.
        settings: of the processor: whether and how to rescale and normalise.
        scaling: in which steps, and how they are rounded.
    """
    if pixels.dtype != np.uint8:
        return scaling(pixels.astype(np.float32), settings)
    levels = np.arange(256, dtype=np.float32)[:, None].repeat(3, 1)
    table = scaling(levels, settings)
    return np.stack([table[pixels[..., c], c] for c in range(3)], -1)


def fused(levels: Pixels, settings: Any) -> Pixels:
    """Rescale and normalise in one step."""
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
    """Rescale, and then normalise what is rounded to float32."""
    if settings.do_rescale:
        levels = (levels.astype(np.float64) * settings.rescale_factor).astype(np.float32)
    if not settings.do_normalize:
        return levels
    mean, deviation = np.float32(settings.image_mean), np.float32(settings.image_std)
    made: Pixels = (levels - mean) / deviation
    return made


def coarse(levels: Pixels, settings: Any) -> Pixels:
    """Rescale and normalise in bfloat16."""
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
