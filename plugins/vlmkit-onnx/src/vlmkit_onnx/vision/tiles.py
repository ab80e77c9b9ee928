"""Feeding towers of pictures ``[channels, height, width]``: whole images or tiles, all alike."""

from collections.abc import Callable, Hashable, Mapping

from vlmkit.errors import EngineError
from vlmkit.prompt import ImageSlot
from vlmkit_onnx.vision.feeding import AnyArray, Floats, Pictures, to_numpy
from vlmkit_onnx.vision.names import rows_of

Helpers = Callable[[int, int], dict[str, AnyArray]]
"""From a picture's height and width in pixels to the graph's further inputs."""


def _nothing(_height: int, _width: int) -> dict[str, AnyArray]:
    return {}


class TileFeeding:
    """An image's rows are those of its tiles, one tile after the other.

    Args:
        helpers: makes further inputs that all pictures of a size share.
    """

    def __init__(self, helpers: Helpers = _nothing) -> None:
        self._helpers = helpers

    def pictures(self, slot: ImageSlot) -> Pictures:
        """Return ``[tiles, channels, height, width]``."""
        pixels = to_numpy(slot.inputs["pixel_values"])
        if pixels.ndim not in (4, 5):
            raise EngineError(f"pixel_values of an image have {pixels.ndim} axes, expected 4 or 5")
        tiles = pixels.reshape(-1, *pixels.shape[-3:])
        return Pictures(tiles, tiles.shape[1:])

    def inputs(self, pixels: AnyArray, group: Hashable) -> dict[str, AnyArray]:  # noqa: ARG002
        """Return the tiles and what helps with their size."""
        return {"pixel_values": pixels, **self._helpers(pixels.shape[-2], pixels.shape[-1])}

    def rows(
        self,
        slot: ImageSlot,  # noqa: ARG002
        outputs: Mapping[str, Floats],
    ) -> dict[str, Floats]:
        """Return the tiles' rows in order."""
        return rows_of(outputs)
