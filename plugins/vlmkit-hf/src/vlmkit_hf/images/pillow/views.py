"""Plans of how an image is shown to a model: views, each with a few steps.

A plan depends on the size of the image alone. :mod:`.pixels` resizes and scales the pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vlmkit_hf.images.pillow.pixels import Pixels, Resizer, sampled
from vlmkit_hf.images.size import Size


@dataclass(frozen=True, slots=True)
class Resize:
    """Stretch or squeeze to a size."""

    size: Size


@dataclass(frozen=True, slots=True)
class Sample:
    """Resize by interpolation without antialiasing."""

    size: Size


@dataclass(frozen=True, slots=True)
class Pad:
    """Place on a background of one colour."""

    size: Size
    top: int = 0
    left: int = 0
    fill: int | Sequence[int] = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut into tiles, row by row; they overlap if the step is shorter than a tile."""

    tile: Size
    step: Size | None = None


@dataclass(frozen=True, slots=True)
class Crop:
    """Keep one part and leave out the rest."""

    size: Size
    top: int
    left: int


View = tuple[Resize | Sample | Pad | Crop | Cut, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one image is shown to a model.

    Attributes:
        views: views of the image, in the model's order.
        numbers: arrays beside the pixels, by name, with rows of images or tiles.
    """

    views: tuple[View, ...]
    numbers: Mapping[str, Any] = field(default_factory=dict)


def show(picture: Pixels, view: View, resize: Resizer) -> Pixels:
    """Return a view's tiles ``[tiles, height, width, 3]`` of an image ``[height, width, 3]``."""
    tiles = [picture]
    for step in view:
        if isinstance(step, Resize):
            tiles = [resize(tile, step.size) for tile in tiles]
        elif isinstance(step, Sample):
            tiles = [sampled(tile, step.size) for tile in tiles]
        elif isinstance(step, Pad):
            tiles = [_padded(tile, step) for tile in tiles]
        elif isinstance(step, Crop):
            tiles = [_cropped(tile, step) for tile in tiles]
        else:
            tiles = [part for tile in tiles for part in _cut(tile, step)]
    return np.stack(tiles)


def num_tiles(view: View) -> int:
    """Return the number of tiles of a view."""
    size, count = Size(0, 0), 1
    for step in view:
        if isinstance(step, Cut):
            step_size = step.step or step.tile
            count *= (size.height - step.tile.height) // step_size.height + 1
            count *= (size.width - step.tile.width) // step_size.width + 1
        else:
            size = step.size
    return count


def _padded(picture: Pixels, pad: Pad) -> Pixels:
    height, width, channels = picture.shape
    if (height, width) == pad.size:
        return picture
    is_level = np.min(pad.fill) >= 0
    kind = picture.dtype if is_level else np.float32  # a background darker than black
    background = np.full((*pad.size, channels), pad.fill, kind)
    background[pad.top : pad.top + height, pad.left : pad.left + width] = picture
    return background


def _cropped(picture: Pixels, crop: Crop) -> Pixels:
    bottom, right = crop.top + crop.size.height, crop.left + crop.size.width
    return picture[crop.top : bottom, crop.left : right]


def _cut(picture: Pixels, cut: Cut) -> list[Pixels]:
    step = cut.step or cut.tile
    rows = range(0, picture.shape[0] - cut.tile.height + 1, step.height)
    columns = range(0, picture.shape[1] - cut.tile.width + 1, step.width)
    return [
        picture[top : top + cut.tile.height, left : left + cut.tile.width]
        for top in rows
        for left in columns
    ]
