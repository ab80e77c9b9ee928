"""The towers of GLM-4V and its successors, and of GLM-OCR.

They are fed as Qwen-VL's are. GLM-4V resamples its table of positions inside, which depends on the
grid: here that comes from outside, as with the others.
"""

from typing import Any

import torch

from vlmkit_onnx.export.towers.qwen import GridTower, of_grids
from vlmkit_onnx.export.towers.tower import Tower
from vlmkit_onnx.vision.patches import GridFeeding


class TableTower(GridTower):
    """GLM-4V's tower, given the entries of its table."""

    def seen(self, patches: torch.Tensor, known: dict[str, Any]) -> list[torch.Tensor]:
        """Return the rows; see the class that this one is of."""
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
    return _tower(base, TableTower(base), table_side=side, resampling="cubic")


def glm_ocr(base: Any) -> Tower:
    """Return the tower of GLM-OCR, which has no table."""
    return _tower(base, GridTower(base))


def _tower(base: Any, module: GridTower, **table: Any) -> Tower:
    config = base.config.vision_config
    feeding = GridFeeding(merge=module.merge, **table)
    return of_grids(
        module, feeding, (config.in_channels * config.temporal_patch_size * config.patch_size**2,)
    )
