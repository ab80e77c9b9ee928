"""Feeds towers of patches of images of any size: Qwen-VL, Pixtral and Gemma 4.

Images with equal grids share a call. Each image is then one row of full attention, without padding.
"""

import numpy as np

from vlmkit.errors import EngineError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_onnx.vision import grid
from vlmkit_onnx.vision.feeding import AnyArray, Group, OrderedRows, Pictures, array_of


class GridFeeding(OrderedRows, frozen=True, tag="grid", tag_field="kind"):
    """Qwen-VL, GLM and PaddleOCR: the processor cuts the patches and states their grid.

    Attributes:
        merge: patches on each side of a cell.
        window_cells: cells on each side of a window; None if every layer sees the whole image.
        table_side: side of the learned table of positions; None for a tower without one.
        resampling: of that table.
        is_raster: whether the processor's patches are ordered row by row, not cell by cell.
    """

    merge: int
    window_cells: int | None = None
    table_side: int | None = None
    resampling: grid.Resampling = "corners"
    is_raster: bool = False

    def pictures(self, slot: MediaSlot) -> Pictures:
        """Return ``[frames, patches, values]``; an image has one frame, a video several."""
        pixels = array_of(slot, "pixel_values")
        frames, height, width = (int(n) for n in array_of(slot, "image_grid_thw").reshape(-1)[:3])
        is_whole = height % self.merge == 0 and width % self.merge == 0
        if pixels.ndim < 2 or len(pixels) != frames * height * width or not is_whole:
            raise EngineError(
                f"an image has {pixels.shape} patch values and a grid of {frames}x{height}x{width}"
            )
        patches = pixels.reshape(frames, height * width, -1)
        if self.is_raster:
            patches = patches[:, grid.block_order(height, width, self.merge)]
        return Pictures(patches, (height, width))

    def inputs(self, pixels: AnyArray, group: Group) -> dict[str, AnyArray]:
        """Return the patches and the helper inputs for their grid."""
        height, width = group
        inputs: dict[str, AnyArray] = {
            "pixel_values": pixels,
            "position_ids": grid.positions(height, width, self.merge),
        }
        if self.window_cells is not None:
            cut = grid.windows(height, width, self.merge, self.window_cells)
            inputs |= {f"window_{name}": array for name, array in cut._asdict().items()}
        if self.table_side is not None:
            entries, weights = grid.interpolation(
                height, width, self.merge, self.table_side, self.resampling
            )
            inputs |= {"table_entries": entries, "table_weights": weights}
        return inputs


class CropFeeding(OrderedRows, frozen=True, tag="crop", tag_field="kind"):
    """Pixtral: the processor returns pixels and their size, and this class cuts the patches.

    Attributes:
        merge: patches on each side of a cell.
        patch_size: pixels on each side of a patch.
    """

    merge: int
    patch_size: int

    def pictures(self, slot: MediaSlot) -> Pictures:
        """Return ``[1, patches, values]``, cell by cell."""
        pixels, size = array_of(slot, "pixel_values"), self.patch_size
        height, width = (int(n) // size for n in array_of(slot, "image_sizes").reshape(-1)[:2])
        if pixels.ndim != 4 or len(pixels) != 1 or height % self.merge or width % self.merge:
            raise EngineError(
                f"an image has {pixels.shape} pixel values and a grid of {height}x{width} patches"
            )
        channels = pixels.shape[1]
        kept = pixels[0, :, : height * size, : width * size]
        patches = kept.reshape(channels, height, size, width, size).transpose(1, 3, 0, 2, 4)
        flat = patches.reshape(height * width, -1)
        order = grid.block_order(height, width, self.merge)
        return Pictures(flat[order][None], (height, width))

    def inputs(self, pixels: AnyArray, group: Group) -> dict[str, AnyArray]:
        """Return the patches and their positions."""
        height, width = group
        return {"pixel_values": pixels, "position_ids": grid.positions(height, width, self.merge)}


class PositionFeeding(OrderedRows, frozen=True, tag="places", tag_field="kind"):
    """Gemma 4: the processor states the position of each patch; patches without one are padding.

    Attributes:
        merge: patches on each side of a cell.
    """

    merge: int

    def pictures(self, slot: MediaSlot) -> Pictures:
        """Return ``[1, patches, values]``, cell by cell."""
        pixels = array_of(slot, "pixel_values")
        positions = array_of(slot, "image_position_ids").reshape(-1, 2)
        kept = positions[: int((positions >= 0).all(axis=1).sum())]
        width, height = (int(n) for n in kept.max(axis=0, initial=-1) + 1)
        patches = pixels.reshape(-1, pixels.shape[-1])[: len(kept)]
        is_row_by_row = np.array_equal(kept, grid.positions(height, width, 1)[:, ::-1])
        if not is_row_by_row or not len(kept) or height % self.merge or width % self.merge:
            raise EngineError(
                f"an image has {pixels.shape} patch values, and {len(kept)} patches in a grid of "
                f"{height}x{width}"
            )
        return Pictures(patches[grid.block_order(height, width, self.merge)][None], (height, width))

    def inputs(self, pixels: AnyArray, group: Group) -> dict[str, AnyArray]:
        """Return the patches and their positions, columns first."""
        height, width = group
        positions = grid.positions(height, width, self.merge)[:, ::-1]
        return {"pixel_values": pixels, "position_ids": np.ascontiguousarray(positions)}
