"""Limits of an image's longer side: Pixtral, Idefics3, SmolVLM and similar families."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vlmkit.errors import RequestError
from vlmkit_hf.images.pillow.sizes import resized_to_split, within_edge
from vlmkit_hf.images.size import Size
from vlmkit_hf.images.sizing.base import FIELD, Limits, Sizing, edges


class Edge(Sizing):
    """A limit of the longer side of an image in whole tokens, as Pixtral has it.

    Args:
        processor: the image processor.
        token_side: the side of a token, in pixels.
    """

    names = ("size",)

    def __init__(self, processor: Any, token_side: int) -> None:
        self._most = int(processor.size["longest_edge"])
        self._token_side = token_side

    def from_client(self, given: Mapping[str, Any]) -> Limits:
        """Accept ``size`` with its ``longest_edge``."""
        size = edges(given, {"longest_edge": self._most})
        return {"size": size} if size else {}

    def num_tokens(self, size: Size, limits: Limits) -> int:
        """Return the product of the tokens of both sides."""
        high, wide = self._resized(size, limits)
        return (high // self._token_side) * (wide // self._token_side)

    def outline(self, size: Size, limits: Limits) -> Mapping[str, Any]:
        """Return the resized size."""
        return {"image_sizes": [self._resized(size, limits)]}

    def _resized(self, size: Size, limits: Limits) -> Size:
        return within_edge(size, self._edge(limits), self._token_side)

    def steps(self, limits: Limits) -> Sequence[int]:
        """Return lengths of the longer side, in pixels."""
        return range(1, self._edge(limits) + 1)

    def at(self, step: int, limits: Limits) -> Limits:  # noqa: ARG002 - the only limit
        """Shorten the longer side."""
        return {"size": {"longest_edge": step}}

    def _edge(self, limits: Limits) -> int:
        return int(limits["size"]["longest_edge"]) if limits else self._most


class Splits(Sizing):
    """A limit of the longer side of an image that is cut into tiles, as Idefics3 has it.

    Args:
        processor: the image processor.
        tile_tokens: the number of tokens of a tile.
    """

    names = ("size", "do_image_splitting")

    def __init__(self, processor: Any, tile_tokens: int) -> None:
        self._most = int(processor.size["longest_edge"])
        self._tile = int(processor.max_image_size["longest_edge"])
        self._tile_tokens = tile_tokens

    def from_client(self, given: Mapping[str, Any]) -> Limits:
        """Accept ``size`` with its ``longest_edge``, and ``do_image_splitting``."""
        size = edges(given, {"longest_edge": self._most})
        limits: Limits = {"size": size} if size else {}
        if "do_image_splitting" in given:
            is_cut = given["do_image_splitting"]
            if not isinstance(is_cut, bool):
                param = f"{FIELD}.do_image_splitting"
                raise RequestError(f"{param} must be true or false", param=param)
            if not is_cut:
                limits["do_image_splitting"] = False
        return limits

    def num_tokens(self, size: Size, limits: Limits) -> int:
        """Return the tokens of all tiles, and of the whole image as one more tile."""
        rows, columns = self._grid(size, limits)
        return self._tile_tokens * (rows * columns + 1)

    def outline(self, size: Size, limits: Limits) -> Mapping[str, Any]:
        """Return the rows and columns of tiles."""
        rows, columns = self._grid(size, limits)
        return {"rows": [[rows]], "cols": [[columns]]}

    def _grid(self, size: Size, limits: Limits) -> tuple[int, int]:
        """Return rows and columns of tiles; zeros if the image is not cut."""
        if limits.get("do_image_splitting") is False:
            return 0, 0
        high, wide = self._resized(size, self._edge(limits))
        tile, shape = self._tile, wide / high
        if wide >= high:
            columns = math.ceil(wide / tile)
            rows = math.ceil(int(columns * tile / shape) / tile)
        else:
            rows = math.ceil(high / tile)
            columns = math.ceil(int(rows * tile * shape) / tile)
        return (rows, columns) if rows * columns > 1 else (0, 0)

    def steps(self, limits: Limits) -> Sequence[int]:
        """Return numbers of tiles along the longer side."""
        return range(1, max(1, self._edge(limits) // self._tile) + 1)

    def at(self, step: int, limits: Limits) -> Limits:
        """Shorten the longer side to whole tiles."""
        return {**limits, "size": {"longest_edge": step * self._tile}}

    def _edge(self, limits: Limits) -> int:
        return int(limits["size"]["longest_edge"]) if "size" in limits else self._most

    def _resized(self, size: Size, edge: int) -> Size:
        """Return the image's size before it is cut."""
        return resized_to_split(size, edge)
