"""Towers of patches of images of any size: Qwen-VL, EXAONE 4.5, GLM-4V and GLM-OCR.

The family's own code runs over packed images and finds their borders in cumulative lengths. Here
those lengths are objects that only our attention reads, and everything that depends on the grid is
an input.
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

# In cells of the grid; axes differ, and windows of real models are cut in several ways.
SIZES = ((3, 5), (3, 5), (2, 2), (1, 4), (9, 6))
UNUSED_LENGTH = 1  # a maximum length that the family's code requires and our attention ignores


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
            "max_seqlen": UNUSED_LENGTH,
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
            known["max_window_seqlen"] = UNUSED_LENGTH
        if table_entries is not None and table_weights is not None:
            known["interp_indices"] = table_entries.repeat(count, 1)
            known["interp_weights"] = table_weights.repeat(count, 1)
        levels = self.encode(pixel_values.flatten(0, 1), known)
        cells = patches // self.merge**2
        return [level.reshape(count, cells, level.shape[-1]) for level in levels]

    def encode(self, patches: torch.Tensor, known: dict[str, Any]) -> list[torch.Tensor]:
        """Return the rows ``[cells, hidden]``, and those of each deepstack level.

        Args:
            patches: ``[patches, values]`` of all frames.
            known: facts about their grids, by the family's argument names.
        """
        output = self.visual(patches, grid_thw=None, **known)
        return [output.pooler_output, *(output.get("deepstack_features") or ())]


def _in_each(frames: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
    """Return an index that selects the same entries in each frame of a size."""
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


class TableTower(GridTower):
    """GLM-4V's tower, with the entries of its position table as an input.

    The family's own code resamples the table inside the tower, which depends on the grid.
    """

    def encode(self, patches: torch.Tensor, known: dict[str, Any]) -> list[torch.Tensor]:
        """Return the rows; see :meth:`GridTower.encode`."""
        visual = self.visual
        states = visual.post_conv_layernorm(visual.patch_embed(patches))
        entries = visual.embeddings.position_embedding(known["interp_indices"])
        rotations = visual.rotary_pos_emb(states, known["position_ids"])
        states = states + (entries * known["interp_weights"][..., None]).sum(1)
        for block in visual.blocks:
            states = block(
                states,
                cu_seqlens=known["cu_seqlens"],
                max_seqlen=known["max_seqlen"],
                position_embeddings=rotations,
            )
        cells = visual.post_layernorm(states).unflatten(0, (-1, self.merge, self.merge))
        merged = visual.downsample(cells.permute(0, 3, 1, 2)).flatten(1)
        return [visual.merger(merged)]


def glm4v(base: Any) -> Tower:
    """Return the tower of GLM-4V."""
    side = round(base.visual.embeddings.num_positions**0.5)
    return _glm(base, TableTower(base), table_side=side, resampling="cubic")


def glm_ocr(base: Any) -> Tower:
    """Return the tower of GLM-OCR, which has no position table."""
    return _glm(base, GridTower(base))


def _glm(base: Any, module: GridTower, **table: Any) -> Tower:
    config = base.config.vision_config
    feeding = GridFeeding(merge=module.merge, **table)
    return of_grids(
        module, feeding, (config.in_channels * config.temporal_patch_size * config.patch_size**2,)
    )


def of_grids(
    module: nn.Module,
    feeding: GridFeeding,
    patch: tuple[int, ...],
    outputs: tuple[str, ...] = (FEATURES,),
) -> Tower:
    """Return a tower whose processor returns patches and their grid.

    Args:
        module: takes the inputs of the feeding.
        feeding: of its graph.
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
