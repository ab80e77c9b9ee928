"""Limits of an image's area, in whole patches: Qwen-VL, GLM-V and similar families."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vlmkit.errors import RequestError
from vlmkit_hf.images.size import Size
from vlmkit_hf.images.sizing.base import FIELD, Limits, Sizing, edges, number


class Area(Sizing):
    """A lower and an upper limit of the area, in pixels.

    Args:
        processor: the image processor.
    """

    names = ("min_pixels", "max_pixels", "size")

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._least = int(processor.size["shortest_edge"])
        self._most = int(processor.size["longest_edge"])
        self._token_patches = int(processor.merge_size**2)
        self._token_pixels = int(processor.patch_size**2) * self._token_patches

    def from_client(self, given: Mapping[str, Any]) -> Limits:
        """Accept ``min_pixels`` and ``max_pixels``, or the equivalent ``size``."""
        size = edges(given, {"shortest_edge": self._most, "longest_edge": self._most})
        if size and len(given) > 1:
            raise RequestError(
                f"{FIELD}: size excludes min_pixels and max_pixels, which say the same",
                param=FIELD,
            )
        for edge, name in {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}.items():
            if name in given:
                size[edge] = number(given, name, self._most)
        most = size.get("longest_edge", self._most)
        if size.get("shortest_edge", 0) > most:
            raise RequestError(
                f"{FIELD}.min_pixels is over max_pixels", param=f"{FIELD}.min_pixels"
            )
        return _size(size.get("shortest_edge", min(self._least, most)), most)

    def num_tokens(self, size: Size, limits: Limits) -> int:
        """Return the number of patches over the patches per token."""
        return self._num_patches(size, limits) // self._token_patches

    def outline(self, size: Size, limits: Limits) -> Mapping[str, Any]:
        """Return a grid with as many patches."""
        return {"image_grid_thw": np.array([[1, 1, self._num_patches(size, limits)]])}

    def _num_patches(self, size: Size, limits: Limits) -> int:
        """Return the processor's number of patches."""
        own = {"shortest_edge": self._least, "longest_edge": self._most}
        from_client = limits.get("size", own)
        pixels = {
            "min_pixels": from_client["shortest_edge"],
            "max_pixels": from_client["longest_edge"],
        }
        return int(
            self._processor.get_number_of_image_patches(*size, {"size": from_client, **pixels})
        )

    def steps(self, limits: Limits) -> Sequence[int]:
        """Return multiples of one token's area."""
        most = limits["size"]["longest_edge"] if limits else self._most
        return range(1, max(1, most // self._token_pixels) + 1)

    def at(self, step: int, limits: Limits) -> Limits:
        """Lower the upper limit, and the lower limit if necessary."""
        least = limits["size"]["shortest_edge"] if limits else self._least
        most = step * self._token_pixels
        return _size(min(least, most), most)


def _size(least: int, most: int) -> Limits:
    return {"size": {"shortest_edge": least, "longest_edge": most}}
