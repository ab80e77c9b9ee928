"""Limits of the number of slices beside the whole image: Ovis2 and MiniCPM-V.

The family's own image processor chooses the grid, by the size of the image alone.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vlmkit_hf.images.size import Size
from vlmkit_hf.images.sizing.base import Limits, Sizing, number

Outline = Callable[[Any, Size, Mapping[str, Any]], Mapping[str, Any]]


def ovis2(images: Any, size: Size, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return rows and columns of tiles."""
    if not settings["crop_to_patches"] or settings["max_patches"] <= 1:
        return {"grids": np.array([[1, 1]])}
    own = sys.modules[type(images).__module__]
    tile, most = images.size, settings["max_patches"]
    if settings["use_covering_area_grid"]:
        columns, rows = own.get_min_tile_covering_grid(tuple(size), tile.height, most)
    else:
        sides = (tile.height, tile.width)
        least = min(settings["min_patches"], most)
        columns, rows = own.get_optimal_tiled_canvas(tuple(size), sides, least, most)
    return {"grids": np.array([[rows, columns]])}


def minicpm(images: Any, size: Size, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return rows and columns of slices, and the patches of the slices and of the whole."""
    scale, side = settings["scale_resolution"], settings["patch_size"]
    how = {"downsample_mode": settings["downsample_mode"]}
    grid = None
    if settings["slice_mode"]:
        grid = images.get_sliced_grid(tuple(size), settings["max_slice_nums"], scale)
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
"""For each image processor: the setting that limits its slices, and the function for its grid."""


class Slices(Sizing):
    """The upper limit of the number of slices.

    Args:
        processor: the family's processor.
        options: the arguments of the processor and its image processor.
        kind: the class name of its image processor.
        token: the text of the feature token.
    """

    def __init__(self, processor: Any, options: Mapping[str, Any], kind: str, token: str) -> None:
        self._name, self._outline = KINDS[kind]
        self.names = (self._name,)
        self._processor, self._token = processor, token
        images = processor.image_processor
        given = {key: value for key, value in options.items() if value is not None}
        self._own = {**images.to_dict(), **given}
        # MiniCPM-V's own call passes the number of patches per token.
        patches = getattr(processor, "image_token_divisor", None)
        self._options = {**options, **({"image_token_divisor": patches} if patches else {})}
        self._most = int(self._own[self._name])

    def from_client(self, given: Mapping[str, Any]) -> Limits:
        """Accept the limit."""
        return self.at(number(given, self._name, self._most), {})

    def num_tokens(self, size: Size, limits: Limits) -> int:
        """Count the feature tokens in the processor's text."""
        arrays = self.outline(size, limits)
        called_with = {**self._options, **limits}
        written = self._processor.replace_image_token(arrays, image_idx=0, **called_with)
        return int(written.count(self._token))

    def outline(self, size: Size, limits: Limits) -> Mapping[str, Any]:
        """Return the processor's arrays that describe the grid."""
        return self._outline(self._processor.image_processor, size, {**self._own, **limits})

    def steps(self, limits: Limits) -> Sequence[int]:
        """Return numbers of slices."""
        return range(1, limits.get(self._name, self._most) + 1)

    def at(self, step: int, limits: Limits) -> Limits:
        """Lower the limit."""
        return {**limits, self._name: step}
