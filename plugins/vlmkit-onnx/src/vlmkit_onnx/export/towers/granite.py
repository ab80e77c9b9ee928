"""The tower of Granite 4 Vision: tiles like LLaVA-NeXT, and rows for numbered layers only."""

from fractions import Fraction
from typing import Any

import torch
from torch import nn

from vlmkit.errors import CheckpointError
from vlmkit_onnx.export.deepstack import numbered_layers
from vlmkit_onnx.export.towers.layers import anyres
from vlmkit_onnx.export.towers.tower import Tower
from vlmkit_onnx.vision.names import DEEPSTACK, NEWLINE


class StackTower(nn.Module):
    """A tower, and a projector for each layer of the decoder that receives rows.

    Args:
        base: the family's model without its head.

    Raises:
        CheckpointError: the config names more layers than there are projectors.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        config = base.config
        targets, projectors = config.spatial_target_layers, base.spatial_projectors
        if len(targets) > len(projectors):
            raise CheckpointError(
                f"'spatial_target_layers' in config.json names {len(targets)} layers, and model "
                f"type {config.model_type!r} has projectors for {len(projectors)}",
                hint="compare it with that of the model's authors",
            )
        self.tower = base.vision_tower
        self.newline = base.image_newline
        self.drops_first = config.vision_feature_select_strategy == "default"
        # The family uses the last of several entries for one layer.
        found = {
            layer: (hidden_layer, projector)
            for (hidden_layer, layer), projector in zip(
                config.deepstack_layer_map, base.layerwise_projectors, strict=True
            )
        }
        found |= {
            layer: (config.spatial_vision_layer, projector)
            for layer, projector in zip(targets, projectors, strict=False)  # the others are unused
        }
        self.hidden_layers = [found[layer][0] for layer in numbered_layers(config)]
        self.projectors = nn.ModuleList([found[layer][1] for layer in numbered_layers(config)])

    def forward(self, pixel_values: torch.Tensor) -> list[torch.Tensor]:
        """Return ``[tiles, rows, hidden]`` of each layer, and ``[tiles, hidden]`` for line ends."""
        hidden = self.tower(pixel_values, output_hidden_states=True, return_dict=True).hidden_states
        first = 1 if self.drops_first else 0
        levels = [
            projector(hidden[layer][:, first:])
            for layer, projector in zip(self.hidden_layers, self.projectors, strict=True)
        ]
        return [*levels, self.newline[None].expand(pixel_values.shape[0], -1)]


def granite4(base: Any) -> Tower:
    """Return the tower."""
    num_levels = len(numbered_layers(base.config))
    outputs = (*(f"{DEEPSTACK}{level}" for level in range(num_levels)), NEWLINE)
    scale = Fraction(base.config.downsample_rate)
    return anyres(base, StackTower(base), outputs, scale=scale)
