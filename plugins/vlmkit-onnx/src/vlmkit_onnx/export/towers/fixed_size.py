"""The tower of Idefics3 and SmolVLM: square tiles, all of them full."""

from typing import Any

import numpy as np
import torch
from torch import nn

from vlmkit_onnx.export.towers.tower import ImageInputs, Tower, noise
from vlmkit_onnx.vision.tiles import PIXEL_MASK, TileFeeding


class SquareTower(nn.Module):
    """The tower for full tiles, whose positions are then always the same, and the connector.

    Args:
        base: the family's model without its head.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.patch_embedding = base.vision_model.embeddings.patch_embedding
        self.encoder = base.vision_model.encoder
        self.norm = base.vision_model.post_layernorm
        self.connector = base.connector
        self.register_buffer("positions", _positions(base.vision_model))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return ``[tiles, rows, hidden]``."""
        patches = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        hidden = self.encoder(inputs_embeds=patches + self.positions, attention_mask=None)
        rows: torch.Tensor = self.connector(self.norm(hidden.last_hidden_state))
        return rows


def square(base: Any) -> Tower:
    """Return the tower."""
    size = base.config.vision_config.image_size

    def sample(random: np.random.Generator, count: int) -> ImageInputs:
        return {
            "pixel_values": noise(random, 1, count, 3, size, size),
            PIXEL_MASK: np.ones((1, count, size, size), np.int64),
        }

    def samples(random: np.random.Generator) -> list[ImageInputs]:
        return [sample(random, count) for count in (1, 1, 5, 3)]

    return Tower(SquareTower(base), TileFeeding(), {"pixel_values": [0]}, samples)


def _positions(tower: Any) -> torch.Tensor:
    """Return what the family adds to the patches of a full tile, ``[1, patches, hidden]``."""
    kept: list[torch.Tensor] = []
    embeddings = tower.embeddings
    hook = embeddings.position_embedding.register_forward_hook(
        lambda _module, _args, output: kept.append(output)
    )
    side = embeddings.num_patches_per_side
    with torch.no_grad():
        pixels = torch.zeros(1, 3, embeddings.image_size, embeddings.image_size)
        embeddings(pixels, torch.ones(1, side, side, dtype=torch.bool))
    hook.remove()
    return kept[0]
