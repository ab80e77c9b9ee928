"""Limits of the number of tiles in a grid: InternVL and similar families."""

from collections.abc import Mapping, Sequence
from typing import Any

from vlmkit.errors import RequestError
from vlmkit_hf.images.size import Size
from vlmkit_hf.images.sizing.base import FIELD, Limits, Sizing, number

_OTHER_NAMES = {
    "max_dynamic_patch": "max_patches",
    "min_dynamic_patch": "min_patches",
    "dynamic_image_size": "crop_to_patches",
}
"""Names in the family's own code for settings that transformers renamed."""


class Tiles(Sizing):
    """A lower and an upper limit of the number of tiles.

    Args:
        processor: the image processor.
        tile_tokens: the number of tokens of a tile.
    """

    names = ("min_patches", "max_patches", "crop_to_patches", *_OTHER_NAMES)

    def __init__(self, processor: Any, tile_tokens: int) -> None:
        self._processor = processor
        self._least = int(processor.min_patches)
        self._most = int(processor.max_patches)
        self._tile_tokens = tile_tokens

    def from_client(self, given: Mapping[str, Any]) -> Limits:
        """Accept the limits of tiles, and whether images are cut at all."""
        named = {_OTHER_NAMES.get(name, name): name for name in given}
        if len(named) < len(given):
            raise RequestError(f"{FIELD} says the same by two names", param=FIELD)
        limits: Limits = {}
        for key in ("max_patches", "min_patches"):
            if key in named:
                limits[key] = number(given, named[key], self._most)
        most = limits.get("max_patches", self._most)
        if limits.setdefault("min_patches", min(self._least, most)) > most:
            param = f"{FIELD}.{named['min_patches']}"
            raise RequestError(f"{param} is over the largest number", param=param)
        if (name := named.get("crop_to_patches")) is not None:
            if not isinstance(given[name], bool):
                raise RequestError(f"{FIELD}.{name} must be true or false", param=f"{FIELD}.{name}")
            limits["crop_to_patches"] = given[name]
        return limits

    def num_tokens(self, size: Size, limits: Limits) -> int:
        """Return the tokens of all tiles."""
        return self._tile_tokens * self._num_tiles(size, limits)

    def outline(self, size: Size, limits: Limits) -> Mapping[str, Any]:
        """Return the number of tiles."""
        return {"num_patches": [self._num_tiles(size, limits)]}

    def _num_tiles(self, size: Size, limits: Limits) -> int:
        """Return the processor's number of tiles."""
        from_client = {"crop_to_patches": True, **limits}
        return int(self._processor.get_number_of_image_patches(*size, from_client))

    def steps(self, limits: Limits) -> Sequence[int]:
        """Return numbers of tiles."""
        return range(1, limits.get("max_patches", self._most) + 1)

    def at(self, step: int, limits: Limits) -> Limits:
        """Lower the upper limit, and the lower limit if necessary."""
        least = min(limits.get("min_patches", self._least), step)
        return {**limits, "max_patches": step, "min_patches": least}
