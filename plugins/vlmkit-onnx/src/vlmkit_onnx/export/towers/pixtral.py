"""The Pixtral tower of Mistral 3 and of some LLaVA models: images of any size as patches.

Cutting an image into patches turns the first convolution into a matrix product. Ordering patches
cell by cell turns the merging of adjacent patches into a reshape.
"""

from typing import Any

import numpy as np
import torch
from torch import nn

from vlmkit_onnx.export.towers.tower import ImageInputs, Tower, noise
from vlmkit_onnx.vision.patches import CropFeeding

SIZES = ((3, 5), (3, 5), (2, 2), (1, 4), (6, 4))  # in cells


class PatchTower(nn.Module):
    """The tower over images of one grid, its selected layers, and the projector.

    Args:
        base: the family's model without its head.
        merge: patches on each side of a cell.
    """

    def __init__(self, base: Any, merge: int) -> None:
        super().__init__()
        self.tower = base.vision_tower
        self.projector = base.multi_modal_projector
        self.layers: int | list[int] = base.config.vision_feature_layer
        self.merge = merge

    def forward(self, pixel_values: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Return ``[images, rows, hidden]``.

        Args:
            pixel_values: ``[images, patches, values]``, cell by cell.
            position_ids: ``[patches, 2]``.
        """
        hidden = self._hidden(pixel_values, position_ids)
        layers = [self.layers] if isinstance(self.layers, int) else self.layers
        chosen = torch.cat([hidden[layer] for layer in layers], dim=-1)
        return self._projected(chosen)

    def _hidden(self, pixels: torch.Tensor, position_ids: torch.Tensor) -> list[torch.Tensor]:
        weight = self.tower.patch_conv.weight
        states = self.tower.ln_pre(nn.functional.linear(pixels, weight.flatten(1)))
        rotations = self.tower.patch_positional_embedding(states, position_ids)
        hidden = [states]
        for layer in self.tower.transformer.layers:
            hidden.append(layer(hidden[-1], None, position_embeddings=rotations))
        return hidden

    def _projected(self, chosen: torch.Tensor) -> torch.Tensor:
        projector: Any = self.projector
        if not hasattr(projector, "patch_merger"):
            rows: torch.Tensor = projector(chosen)
            return rows
        normed = projector.norm(chosen)
        images, patches, width = normed.shape
        cell = self.merge**2
        cells = normed.reshape(images, patches // cell, cell, width).transpose(2, 3)
        merged = projector.patch_merger.merging_layer(
            cells.reshape(images, patches // cell, width * cell)
        )
        projected: torch.Tensor = projector.linear_2(projector.act(projector.linear_1(merged)))
        return projected


def mistral3(base: Any) -> Tower:
    """Return the tower of Mistral 3."""
    return _patches(base, base.config.spatial_merge_size)


def llava(base: Any) -> Tower:
    """Return the Pixtral tower of a LLaVA model."""
    return _patches(base, 1)


def _patches(base: Any, merge: int) -> Tower:
    size = base.vision_tower.patch_size

    def sample(random: np.random.Generator, height: int, width: int) -> ImageInputs:
        pixels = (height * merge * size, width * merge * size)
        return {
            "pixel_values": noise(random, 1, 3, *pixels),
            "image_sizes": np.array([pixels]),
        }

    def samples(random: np.random.Generator) -> list[ImageInputs]:
        return [sample(random, height, width) for height, width in SIZES]

    dynamic = {"pixel_values": [0, 1], "position_ids": [0]}
    return Tower(PatchTower(base, merge), CropFeeding(merge, size), dynamic, samples)
