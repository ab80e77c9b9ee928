"""Towers of images or tiles of one size.

Idefics3 and SmolVLM, and families whose own code can be traced unchanged.
"""

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

from vlmkit_onnx.export.towers.tower import ImageInputs, Tower, noise
from vlmkit_onnx.vision.tiles import PIXEL_MASK, TileFeeding


class SquareTower(nn.Module):
    """The tower of Idefics3 for full tiles, whose positions are constant, and the connector.

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
    """Return the positions that the family adds to a full tile, ``[1, patches, hidden]``."""
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


class WholeTower(nn.Module):
    """The family's ``get_image_features``, without the language model.

    Args:
        base: the family's model without its head.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = without_language(base)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return ``[pictures, rows, hidden]``."""
        output = self.base.get_image_features(pixel_values=pixel_values, return_dict=True)
        rows: torch.Tensor = output.pooler_output
        return rows


def without_language(base: Any) -> Any:
    """Return a shallow copy of a model without its language model; weights are shared."""
    without = copy.copy(base)
    modules = base._modules  # noqa: SLF001 - where a module keeps its parts
    without._modules = {k: v for k, v in modules.items() if k != "language_model"}  # noqa: SLF001
    return without


def picture(base: Any) -> Tower:
    """Return a tower with one picture for each image."""
    return _whole(base, [1, 1, 1])


def tiles(base: Any) -> Tower:
    """Return a tower with several tiles for each image."""
    return _whole(base, [1, 1, 4, 3])


def _whole(base: Any, counts: list[int]) -> Tower:
    size = base.config.vision_config.image_size
    height, width = (size, size) if isinstance(size, int) else size

    def samples(random: np.random.Generator) -> list[ImageInputs]:
        return [{"pixel_values": noise(random, count, 3, height, width)} for count in counts]

    return Tower(WholeTower(base), TileFeeding(), {"pixel_values": [0]}, samples)
