"""Towers whose family code can be traced as it stands: of pictures of one size."""

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

from vlmkit_onnx.export.towers.tower import ImageInputs, Tower, noise
from vlmkit_onnx.vision.tiles import TileFeeding


class WholeTower(nn.Module):
    """The family's ``get_image_features``, without the language model.

    Args:
        base: the family's model without its head.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.seeing = without_language(base)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return ``[pictures, rows, hidden]``."""
        output = self.seeing.get_image_features(pixel_values=pixel_values, return_dict=True)
        rows: torch.Tensor = output.pooler_output
        return rows


def without_language(base: Any) -> Any:
    """Return a shallow copy of a model that has no language model; weights are shared."""
    seeing = copy.copy(base)
    modules = base._modules  # noqa: SLF001 - where a module keeps its parts
    seeing._modules = {k: v for k, v in modules.items() if k != "language_model"}  # noqa: SLF001
    return seeing


def picture(base: Any) -> Tower:
    """Return a tower of one picture for an image."""
    return _whole(base, [1, 1, 1])


def tiles(base: Any) -> Tower:
    """Return a tower of several tiles for an image."""
    return _whole(base, [1, 1, 4, 3])


def _whole(base: Any, counts: list[int]) -> Tower:
    size = base.config.vision_config.image_size
    height, width = (size, size) if isinstance(size, int) else size

    def samples(random: np.random.Generator) -> list[ImageInputs]:
        return [{"pixel_values": noise(random, count, 3, height, width)} for count in counts]

    return Tower(WholeTower(base), TileFeeding(), {"pixel_values": [0]}, samples)
