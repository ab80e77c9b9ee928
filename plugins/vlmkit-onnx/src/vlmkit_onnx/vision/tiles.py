"""Feeds towers of pictures ``[channels, height, width]`` of one size: whole images or tiles."""

import numpy as np

from vlmkit.errors import EngineError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_onnx.vision.feeding import AnyArray, Group, OrderedRows, Pictures, array_of

PIXEL_MASK = "pixel_attention_mask"


class TileFeeding(OrderedRows, frozen=True, tag="tiles", tag_field="kind"):
    """An image's rows are those of its tiles, one tile after the other."""

    def pictures(self, slot: MediaSlot) -> Pictures:
        """Return ``[tiles, channels, height, width]``."""
        tiles = tiles_of(slot)
        return Pictures(tiles, tiles.shape[1:])

    def inputs(self, pixels: AnyArray, group: Group) -> dict[str, AnyArray]:  # noqa: ARG002
        """Return the tiles."""
        return {"pixel_values": pixels}


def tiles_of(slot: MediaSlot) -> AnyArray:
    """Return an image's tiles ``[tiles, channels, height, width]``, without empty ones.

    Raises:
        EngineError: there are none, or a tile is padded, which the tower does not support.
    """
    pixels = array_of(slot, "pixel_values")
    if pixels.ndim not in (4, 5):
        raise EngineError(f"pixel_values of an image have {pixels.ndim} axes, expected 4 or 5")
    tiles = pixels.reshape(-1, *pixels.shape[-3:])
    if PIXEL_MASK not in slot.inputs:
        return tiles
    mask = array_of(slot, PIXEL_MASK).astype(bool).reshape(len(tiles), -1)
    is_tile = mask.any(axis=1)
    if not np.array_equal(mask.all(axis=1), is_tile):
        raise EngineError("a tile of an image is padded, which this vision tower does not take")
    return tiles[is_tile]
