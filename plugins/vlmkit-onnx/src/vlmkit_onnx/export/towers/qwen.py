"""Towers of patches of images of any size: Qwen2-VL's, its successors', and EXAONE 4.5's.

The family's own code runs over packed images and finds their borders in cumulative lengths. Here
those lengths are objects that only our attention looks into, and all that depends on the grid
comes from outside.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from vlmkit_onnx.export.towers.tower import ImageInputs, Tower, noise
from vlmkit_onnx.export.vision_attention import Segments
from vlmkit_onnx.vision.names import DEEPSTACK, FEATURES
from vlmkit_onnx.vision.patches import GridFeeding

# In cells of the grid; no two axes are alike, and windows of real models are cut in several ways.
SIZES = ((3, 5), (3, 5), (2, 2), (1, 4), (9, 6))
KNOWN = 1  # a longest length that is asked for and that nobody looks at


class GridTower(nn.Module):
    """A tower over frames of one grid.

    Args:
        base: the family's model without its head.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.visual = base.visual
        self.merge = base.visual.spatial_merge_size

    def forward(
        self,
        pixel_values: torch.Tensor,
        position_ids: torch.Tensor,
        window_order: torch.Tensor | None = None,
        window_gather: torch.Tensor | None = None,
        window_visible: torch.Tensor | None = None,
        window_scatter: torch.Tensor | None = None,
        table_entries: torch.Tensor | None = None,
        table_weights: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """Return ``[frames, rows, hidden]``, then the same of each deepstack level.

        Args:
            pixel_values: ``[frames, patches, values]``.
            position_ids: ``[patches, 2]``.
            window_order: as in :class:`vlmkit_onnx.vision.grid.Windows`, as are the next three.
            window_gather: see there.
            window_visible: see there.
            window_scatter: see there.
            table_entries: ``[patches, 4]`` of the learned table of positions.
            table_weights: ``[patches, 4]`` their weights.
        """
        count, patches = pixel_values.shape[:2]
        frames = torch.arange(count)[:, None]
        known: dict[str, Any] = {
            "position_ids": position_ids.repeat(count, 1),
            "cu_seqlens": Segments(frames * patches + torch.arange(patches)),
            "max_seqlen": KNOWN,
        }
        if (
            window_order is not None
            and window_gather is not None
            and window_visible is not None
            and window_scatter is not None
        ):
            known["window_index"] = _in_each(frames, window_order, patches // self.merge**2)
            known["cu_window_seqlens"] = Segments(
                (window_gather + frames[:, None] * patches).flatten(0, 1),
                window_visible.repeat(count, 1),
                _in_each(frames, window_scatter, window_gather.numel()),
            )
            known["max_window_seqlen"] = KNOWN
        if table_entries is not None and table_weights is not None:
            known["interp_indices"] = table_entries.repeat(count, 1)
            known["interp_weights"] = table_weights.repeat(count, 1)
        levels = self.seen(pixel_values.flatten(0, 1), known)
        cells = patches // self.merge**2
        return [level.reshape(count, cells, level.shape[-1]) for level in levels]

    def seen(self, patches: torch.Tensor, known: dict[str, Any]) -> list[torch.Tensor]:
        """Return the rows ``[cells, hidden]``, and those of each deepstack level.

        Args:
            patches: ``[patches, values]`` of all frames.
            known: of their grids, by the names that the family's code has for it.
        """
        output = self.visual(patches, grid_thw=None, **known)
        return [output.pooler_output, *(output.get("deepstack_features") or ())]


def _in_each(frames: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
    """Return an index into frames of a size that chooses the same in each of them."""
    return (index + frames * size).flatten()


def qwen(base: Any) -> Tower:
    """Return the tower of any of these families."""
    visual, config = base.visual, base.config.vision_config
    merge, size = visual.spatial_merge_size, config.patch_size
    feeding = GridFeeding(
        merge=merge,
        window_cells=visual.window_size // merge // size if _has_windows(visual) else None,
        table_side=getattr(visual, "num_grid_per_side", None),
    )
    num_levels = len(getattr(config, "deepstack_visual_indexes", None) or ())
    outputs = (FEATURES, *(f"{DEEPSTACK}{level}" for level in range(num_levels)))
    patch = (config.in_channels * config.temporal_patch_size * size**2,)
    return of_grids(GridTower(base), feeding, patch, outputs)


def of_grids(
    module: nn.Module,
    feeding: GridFeeding,
    patch: tuple[int, ...],
    outputs: tuple[str, ...] = (FEATURES,),
) -> Tower:
    """Return a tower whose processor gives patches and their grid.

    Args:
        module: takes what the feeding gives.
        feeding: how.
        patch: the shape of one patch.
        outputs: names of the graph's outputs.
    """

    def samples(random: np.random.Generator) -> list[ImageInputs]:
        grids = [(1, height * feeding.merge, width * feeding.merge) for height, width in SIZES]
        return [
            {
                "pixel_values": noise(random, int(np.prod(grid)), *patch),
                "image_grid_thw": np.array([grid]),
            }
            for grid in grids
        ]

    return Tower(module, feeding, _dynamic(feeding), samples, outputs)


def _has_windows(visual: Any) -> bool:
    return hasattr(visual, "window_size")


def _dynamic(feeding: GridFeeding) -> Mapping[str, list[int]]:
    dynamic = {"pixel_values": [0, 1], "position_ids": [0]}
    if feeding.window_cells is not None:
        dynamic |= {"window_order": [0], "window_scatter": [0]}
        dynamic |= {"window_gather": [0, 1], "window_visible": [0, 1]}
    if feeding.table_side is not None:
        dynamic |= {"table_entries": [0], "table_weights": [0]}
    return dynamic
