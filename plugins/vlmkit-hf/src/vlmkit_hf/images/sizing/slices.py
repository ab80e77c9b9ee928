"""Ovis2 and MiniCPM-V: a grid of slices, no more than a limit, beside the whole.

Which grid a picture gets is asked of the family's own image processor, by its size alone.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vlmkit_hf.images.size import Size
from vlmkit_hf.images.sizing.base import Limits, Sizing, number

Outline = Callable[[Any, Size, Mapping[str, Any]], Mapping[str, Any]]


def ovis2(images: Any, size: Size, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return rows and columns of tiles."""
    if not asked["crop_to_patches"] or asked["max_patches"] <= 1:
        return {"grids": np.array([[1, 1]])}
    own = sys.modules[type(images).__module__]
    tile, most = images.size, asked["max_patches"]
    if asked["use_covering_area_grid"]:
        columns, rows = own.get_min_tile_covering_grid(tuple(size), tile.height, most)
    else:
        sides = (tile.height, tile.width)
        least = min(asked["min_patches"], most)
        columns, rows = own.get_optimal_tiled_canvas(tuple(size), sides, least, most)
    return {"grids": np.array([[rows, columns]])}


def minicpm(images: Any, size: Size, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return rows and columns of slices, and how many patches they and the whole have."""
    scale, side = asked["scale_resolution"], asked["patch_size"]
    how = {"downsample_mode": asked["downsample_mode"]}
    grid = None
    if asked["slice_mode"]:
        grid = images.get_sliced_grid(tuple(size), asked["max_slice_nums"], scale)
    whole = images.find_best_resize(tuple(size), scale, side, allow_upscale=grid is None, **how)
    sizes = [whole]
    if grid is not None:
        sliced = images.get_refine_size(tuple(size), grid, scale, side, allow_upscale=True, **how)
        sizes += [(sliced[0] // grid[0], sliced[1] // grid[1])] * (grid[0] * grid[1])
    return {
        "grids": [grid or [0, 0]],
        "num_patches_per_image": [len(sizes)],
        "target_sizes": np.array(sizes, np.int32) // side,
    }


KINDS: Mapping[str, tuple[str, Outline]] = {
    "Ovis2ImageProcessor": ("max_patches", ovis2),
    "MiniCPMV4_6ImageProcessor": ("max_slice_nums", minicpm),
}
"""What bounds the slices of a family's image processor, and what says how many there are."""


class Slices(Sizing):
    """The largest number of slices.

    Args:
        processor: the family's.
        options: what it and its image processor are called with.
        kind: the class of its image processor.
        token: of which each has a feature.
    """

    def __init__(self, processor: Any, options: Mapping[str, Any], kind: str, token: str) -> None:
        self._name, self._outline = KINDS[kind]
        self.names = (self._name,)
        self._processor, self._token = processor, token
        images = processor.image_processor
        given = {key: value for key, value in options.items() if value is not None}
        self._own = {**images.to_dict(), **given}
        # MiniCPM-V's own call hands over how many patches are a token.
        patches = getattr(processor, "image_token_divisor", None)
        self._options = {**options, **({"image_token_divisor": patches} if patches else {})}
        self._most = int(self._own[self._name])

    def asked(self, given: Mapping[str, Any]) -> Limits:
        """Take the number."""
        return self.at(number(given, self._name, self._most), {})

    def num_tokens(self, size: Size, limits: Limits) -> int:
        """Count them in what the processor writes."""
        arrays = self.outline(size, limits)
        called_with = {**self._options, **limits}
        written = self._processor.replace_image_token(arrays, image_idx=0, **called_with)
        return int(written.count(self._token))

    def outline(self, size: Size, limits: Limits) -> Mapping[str, Any]:
        """Return what the processor's arrays say of the grid."""
        return self._outline(self._processor.image_processor, size, {**self._own, **limits})

    def steps(self, limits: Limits) -> Sequence[int]:
        """Return numbers of slices."""
        return range(1, limits.get(self._name, self._most) + 1)

    def at(self, step: int, limits: Limits) -> Limits:
        """Lower the number."""
        return {**limits, self._name: step}
