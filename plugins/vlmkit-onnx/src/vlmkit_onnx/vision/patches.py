"""Feeding towers of patches, whose images are of any size: Qwen-VL's, Pixtral's, Gemma 4's.

Images of equal grids share a call, so that each of them is one row of full attention and nothing
is padded.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from vlmkit.errors import EngineError
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_onnx.vision import grid
from vlmkit_onnx.vision.feeding import AnyArray, Floats, Group, Pictures, array_of
from vlmkit_onnx.vision.names import rows_of


class GridFeeding(msgspec.Struct, frozen=True, tag="grid", tag_field="kind"):
    """Qwen-VL, GLM and PaddleOCR: the processor cuts the patches and says how many there are.

    Attributes:
        merge: patches on each side of a cell.
        window_cells: cells on each side of a window; None where every layer sees the whole image.
        table_side: side of the learned table of positions; None for a tower without one.
        resampling: of that table.
        is_raster: the processor's patches stand row by row, not cell by cell.
    """

    merge: int
    window_cells: int | None = None
    table_side: int | None = None
    resampling: grid.Resampling = "corners"
    is_raster: bool = False

    def pictures(self, slot: MediaSlot) -> Pictures:
        """Return ``[frames, patches, values]``; a picture has one frame, a film several."""
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
        """Return the patches, and what the tower must know of their grid."""
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

    def rows(
        self,
        slot: MediaSlot,  # noqa: ARG002
        outputs: Mapping[str, Floats],
    ) -> dict[str, Floats]:
        """Return the frames' rows in order."""
        return rows_of(outputs)


class CropFeeding(msgspec.Struct, frozen=True, tag="crop", tag_field="kind"):
    """Pixtral: an image is pixels and its size, and is cut into patches here.

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
        """Return the patches and their places."""
        height, width = group
        return {"pixel_values": pixels, "position_ids": grid.positions(height, width, self.merge)}

    def rows(
        self,
        slot: MediaSlot,  # noqa: ARG002
        outputs: Mapping[str, Floats],
    ) -> dict[str, Floats]:
        """Return the image's rows."""
        return rows_of(outputs)


class PlaceFeeding(msgspec.Struct, frozen=True, tag="places", tag_field="kind"):
    """Gemma 4: the processor says where each patch is; those that are nowhere fill up.

    Attributes:
        merge: patches on each side of a cell.
    """

    merge: int

    def pictures(self, slot: MediaSlot) -> Pictures:
        """Return ``[1, patches, values]``, cell by cell."""
        pixels = array_of(slot, "pixel_values")
        places = array_of(slot, "image_position_ids").reshape(-1, 2)
        kept = places[: int((places >= 0).all(axis=1).sum())]
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
        """Return the patches and their places, columns first."""
        height, width = group
        places = grid.positions(height, width, self.merge)[:, ::-1]
        return {"pixel_values": pixels, "position_ids": np.ascontiguousarray(places)}

    def rows(
        self,
        slot: MediaSlot,  # noqa: ARG002
        outputs: Mapping[str, Floats],
    ) -> dict[str, Floats]:
        """Return the image's rows."""
        return rows_of(outputs)
