"""The towers of Gemma 4: patches with positions, pooled cell by cell.

The family's own code pads images to one length, masks the padding and derives the cells from the
positions. Here nothing is padded, and patches are ordered cell by cell, so that pooling is a
reshape.
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from vlmkit_onnx.export.towers.tower import ImageInputs, Tower
from vlmkit_onnx.vision import grid
from vlmkit_onnx.vision.patches import PositionFeeding

SIZES = ((3, 5), (3, 5), (2, 2), (1, 4), (6, 4))  # in cells


class PoolingTower(nn.Module):
    """The tower over images of one grid, and the projector.

    Args:
        base: the family's model without its head.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.tower = base.vision_tower
        self.projector = base.embed_vision
        self.merge: int = base.config.vision_config.pooling_kernel_size

    def forward(self, pixel_values: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Return ``[images, rows, hidden]``.

        Args:
            pixel_values: ``[images, patches, values]``, cell by cell.
            position_ids: ``[patches, 2]``.
        """
        tower = self.tower
        images, patches = pixel_values.shape[:2]
        positions = position_ids[None].expand(images, -1, -1)
        is_padding = torch.zeros_like(positions[..., 0], dtype=torch.bool)
        states = tower.patch_embedder(pixel_values, positions, is_padding)
        rotations = tower.encoder.rotary_emb(states, positions)
        for layer in tower.encoder.layers:
            states = layer(
                states, attention_mask=None, position_embeddings=rotations, position_ids=positions
            )
        cell = self.merge**2
        cells = states.reshape(images, patches // cell, cell, states.shape[-1])
        pooled = cells.mean(2) * tower.pooler.root_hidden_size
        if tower.config.standardize:
            pooled = (pooled - tower.std_bias) * tower.std_scale
        rows: torch.Tensor = self.projector(inputs_embeds=pooled)
        return rows


class UnifiedTower(nn.Module):
    """Replaces a tower in models whose decoder reads the patches itself.

    Args:
        base: the family's model without its head.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.embed = base.embed_vision

    def forward(self, pixel_values: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Return ``[images, rows, hidden]``; see :meth:`PoolingTower.forward`."""
        positions = position_ids[None].expand(pixel_values.shape[0], -1, -1)
        rows: torch.Tensor = self.embed(pixel_values, positions, return_dict=True).pooler_output
        return rows


def gemma4(base: Any) -> Tower:
    """Return the tower of Gemma 4."""
    config = base.config.vision_config
    return _position_tower(PoolingTower(base), config.pooling_kernel_size, 3 * config.patch_size**2)


def gemma4_unified(base: Any) -> Tower:
    """Return the module that replaces the tower in Gemma 4 unified."""
    return _position_tower(UnifiedTower(base), 1, 3 * base.config.vision_config.model_patch_size**2)


def _position_tower(module: nn.Module, merge: int, values: int) -> Tower:
    most = max(height * width for height, width in SIZES) * merge**2

    def sample(random: np.random.Generator, height: int, width: int) -> ImageInputs:
        count = height * width * merge**2
        pixels = np.zeros((1, most, values), np.float32)
        pixels[:, :count] = random.uniform(0, 1, (count, values))
        positions = np.full((1, most, 2), -1)
        positions[0, :count] = grid.positions(height * merge, width * merge, 1)[:, ::-1]
        return {"pixel_values": pixels, "image_position_ids": positions}

    def samples(random: np.random.Generator) -> list[ImageInputs]:
        return [sample(random, height, width) for height, width in SIZES]

    dynamic = {"pixel_values": [0, 1], "position_ids": [0]}
    return Tower(module, PositionFeeding(merge), dynamic, samples)
