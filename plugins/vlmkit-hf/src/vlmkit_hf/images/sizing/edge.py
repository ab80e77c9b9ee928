"""Pixtral and its like: in whole tokens, the longer side within a limit."""

from collections.abc import Mapping, Sequence
from typing import Any

from vlmkit_hf.images.pillow.sizes import within_edge
from vlmkit_hf.images.sizing.base import Limits, Size, Sizing, edges


class Edge(Sizing):
    """The limit of a picture's longer side.

    Args:
        processor: the image processor.
        token_side: pixels of a token's side.
    """

    names = ("size",)

    def __init__(self, processor: Any, token_side: int) -> None:
        self._most = int(processor.size["longest_edge"])
        self._token_side = token_side

    def asked(self, given: Mapping[str, Any]) -> Limits:
        """Take ``size`` with its ``longest_edge``."""
        size = edges(given, {"longest_edge": self._most})
        return {"size": size} if size else {}

    def num_tokens(self, size: Size, limits: Limits) -> int:
        """Count the tokens of both sides."""
        high, wide = self._resized(size, limits)
        return (high // self._token_side) * (wide // self._token_side)

    def outline(self, size: Size, limits: Limits) -> Mapping[str, Any]:
        """Return the size that it is shown in."""
        return {"image_sizes": [self._resized(size, limits)]}

    def _resized(self, size: Size, limits: Limits) -> Size:
        return within_edge(size, self._edge(limits), self._token_side)

    def steps(self, limits: Limits) -> Sequence[int]:
        """Return pixels of the longer side."""
        return range(1, self._edge(limits) + 1)

    def at(self, step: int, limits: Limits) -> Limits:  # noqa: ARG002 - there is no other limit
        """Shorten the longer side."""
        return {"size": {"longest_edge": step}}

    def _edge(self, limits: Limits) -> int:
        return int(limits["size"]["longest_edge"]) if limits else self._most
