"""Feeds towers of tiles whose rows are assembled to one image: LLaVA-NeXT and LLaVA-OneVision.

The first tile is the whole image at a small size; the others cover it in a grid. Padding is removed
from the grid, and each of its lines ends with a learned row.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from vlmkit.errors import EngineError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_onnx.vision.feeding import AnyArray, Floats, Group, Pictures, array_of
from vlmkit_onnx.vision.names import FEATURES, NEWLINE
from vlmkit_onnx.vision.tiles import tiles_of

RESAMPLING_RATIO = 1.1  # a grid whose side exceeds the limit by less is not resampled


class AnyresFeeding(msgspec.Struct, frozen=True, tag="anyres", tag_field="kind"):
    """LLaVA-NeXT and LLaVA-OneVision.

    Attributes:
        resolutions: ``(height, width)`` to which images are fitted.
        tile_size: pixels on each side of a tile.
        tile_rows: feature rows on each side of a tile.
        max_tiles: larger grids are resampled to this many tiles; None never resamples.
    """

    resolutions: list[tuple[int, int]]
    tile_size: int
    tile_rows: int
    max_tiles: int | None = None

    def pictures(self, slot: MediaSlot) -> Pictures:
        """Return ``[tiles, channels, height, width]``."""
        tiles = tiles_of(slot)
        return Pictures(tiles, tiles.shape[1:])

    def inputs(self, pixels: AnyArray, group: Group) -> dict[str, AnyArray]:  # noqa: ARG002
        """Return the tiles."""
        return {"pixel_values": pixels}

    def rows(self, slot: MediaSlot, outputs: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the small image's rows, then those of the grid line by line, for each level."""
        newline = outputs[NEWLINE][:1]
        levels = {name: tiles for name, tiles in outputs.items() if name != NEWLINE}
        packed = {name: self._packed(slot, tiles, newline) for name, tiles in levels.items()}
        if FEATURES not in packed:  # all rows are added inside the decoder
            packed[FEATURES] = np.zeros_like(next(iter(packed.values())))
        return packed

    def _packed(self, slot: MediaSlot, tiles: Floats, newline: Floats) -> Floats:
        if len(tiles) == 1:
            return np.concatenate([tiles[0], newline])
        height, width = (int(n) for n in array_of(slot, "image_sizes").reshape(-1)[:2])
        grid = unpad(self._grid(tiles[1:], height, width), height, width)
        lines = self._bounded(grid)
        ends = np.broadcast_to(newline, (len(lines), 1, newline.shape[-1]))
        ended = np.concatenate([lines, ends], axis=1)
        return np.concatenate([tiles[0], ended.reshape(-1, ended.shape[-1])])

    def _grid(self, tiles: Floats, height: int, width: int) -> Floats:
        """Return tiles as a grid ``[lines, rows, hidden]``."""
        fitted = best_resolution(height, width, self.resolutions)
        down, across = (side // self.tile_size for side in fitted)
        side = self.tile_rows
        if tiles.shape[:2] != (down * across, side * side):
            raise EngineError(
                f"an image of {height}x{width} has {len(tiles)} tiles of {tiles.shape[1]} rows, "
                f"expected {down * across} of {side * side}"
            )
        cut = tiles.reshape(down, across, side, side, -1).transpose(0, 2, 1, 3, 4)
        return cut.reshape(down * side, across * side, -1)

    def _bounded(self, grid: Floats) -> Floats:
        if self.max_tiles is None:
            return grid
        height, width, _ = grid.shape
        ratio = float(np.sqrt(height * width / (self.max_tiles * self.tile_rows**2)))
        if ratio <= RESAMPLING_RATIO:
            return grid
        smaller = resample(grid, int(height // ratio))
        return resample(smaller.transpose(1, 0, 2), int(width // ratio)).transpose(1, 0, 2)


def best_resolution(
    height: int, width: int, resolutions: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """Return the resolution that keeps most pixels of an image, and then wastes the fewest."""

    def merit(resolution: tuple[int, int]) -> tuple[int, int]:
        scale = min(resolution[1] / width, resolution[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - resolution[0] * resolution[1]

    return max(resolutions, key=merit)


def unpad(grid: Floats, height: int, width: int) -> Floats:
    """Remove the padding of an image of this size from ``[lines, rows, hidden]``."""
    lines, rows, _ = grid.shape
    if width / height > rows / lines:
        covered = int(round(height * (rows / width), 7))
        border = (lines - covered) // 2
        return grid[border : lines - border]
    covered = int(round(width * (lines / height), 7))
    border = (rows - covered) // 2
    return grid[:, border : rows - border]


def resample(array: Floats, size: int) -> Floats:
    """Resample the first axis linearly, with sample centres at halves."""
    length = len(array)
    place = np.clip((np.arange(size) + 0.5) * (length / size) - 0.5, 0, None)
    below = np.floor(place).astype(np.int64)
    above = np.minimum(below + 1, length - 1)
    weight = (place - below).astype(np.float32).reshape(-1, *[1] * (array.ndim - 1))
    resampled: Floats = array[below] * (1 - weight) + array[above] * weight
    return resampled
