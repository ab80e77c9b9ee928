"""The tower of PaddleOCR-VL: patches row by row, which the projector merges.

The graph gets patches cell by cell, so that merging is a reshape. Attention does not depend on the
order.
"""

from typing import Any

import torch
from torch import nn

from vlmkit_onnx.export.towers.qwen import GridTower, of_grids
from vlmkit_onnx.export.towers.tower import Tower
from vlmkit_onnx.vision.patches import GridFeeding


class MergingTower(GridTower):
    """The tower and the projector behind it.

    Args:
        base: the family's model without its head.
        merge: patches on each side of a cell.
    """

    def __init__(self, base: Any, merge: int) -> None:
        nn.Module.__init__(self)
        self.visual = base.visual.vision_model
        self.projector = base.projector
        self.merge = merge

    def encode(self, patches: torch.Tensor, known: dict[str, Any]) -> list[torch.Tensor]:
        """Return the rows; see :meth:`GridTower.encode`."""
        visual, projector = self.visual, self.projector
        convolution = visual.embeddings.patch_embedding
        states = nn.functional.linear(patches, convolution.weight.flatten(1), convolution.bias)
        entries = visual.embeddings.position_embedding(known["interp_indices"])
        states = states + (entries * known["interp_weights"][..., None]).sum(1)
        rotations = visual.encoder.rotary_pos_emb(states, known["position_ids"])
        for layer in visual.encoder.layers:
            states = layer(
                states,
                cu_seqlens=known["cu_seqlens"],
                max_seqlen=known["max_seqlen"],
                position_embeddings=rotations,
            )
        normed = projector.pre_norm(visual.post_layernorm(states))
        cells = normed.reshape(-1, normed.shape[-1] * self.merge**2)
        return [projector.linear_2(projector.act(projector.linear_1(cells)))]


def paddleocr(base: Any) -> Tower:
    """Return the tower."""
    config, table = base.config.vision_config, base.visual.vision_model.embeddings
    feeding = GridFeeding(
        merge=config.spatial_merge_size,
        table_side=table.num_grid_per_side,
        resampling="linear",
        is_raster=True,
    )
    patch = (config.num_channels, config.patch_size, config.patch_size)
    return of_grids(MergingTower(base, config.spatial_merge_size), feeding, patch)
