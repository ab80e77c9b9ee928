"""Towers whose projector reads chosen hidden layers, of pictures of one fixed size: LLaVA's."""

from typing import Any

import numpy as np
import torch
from torch import nn

from vlmkit_onnx.export.towers.tower import ImageInputs, Tower
from vlmkit_onnx.vision.names import FEATURES


class LayerTower(nn.Module):
    """A tower, the choice of its layers, and the projector.

    Args:
        base: the family's model without its head.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.tower = base.vision_tower
        self.projector = base.multi_modal_projector
        self.layers: int | list[int] = base.config.vision_feature_layer
        self.drops_first = base.config.vision_feature_select_strategy == "default"

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return ``[pictures, rows, hidden]``."""
        hidden = self.tower(pixel_values, output_hidden_states=True, return_dict=True).hidden_states
        layers = [self.layers] if isinstance(self.layers, int) else self.layers
        first = 1 if self.drops_first else 0
        chosen = torch.cat([hidden[layer][:, first:] for layer in layers], dim=-1)
        projected: torch.Tensor = self.projector(chosen)
        return projected


def llava(base: Any) -> Tower:
    """Return the tower of LLaVA 1.5: one picture for an image."""
    size = base.config.vision_config.image_size

    def samples(random: np.random.Generator) -> list[ImageInputs]:
        return [{"pixel_values": pixels(random, 1, size)} for _ in range(3)]

    return Tower(LayerTower(base), (FEATURES,), {"pixel_values": [0]}, samples)


def pixels(random: np.random.Generator, count: int, height: int, width: int = 0) -> Any:
    """Return ``[count, 3, height, width]`` as after normalisation; square if no width is given."""
    shape = (count, 3, height, width or height)
    return random.uniform(-1.8, 2.2, shape).astype(np.float32)
