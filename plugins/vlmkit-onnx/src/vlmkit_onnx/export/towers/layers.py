"""LLaVA's towers: the projector reads selected hidden layers of pictures of one size."""

from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import nn

from vlmkit_onnx.export.towers.tower import ImageInputs, Tower, noise
from vlmkit_onnx.vision.anyres import AnyresFeeding, best_resolution
from vlmkit_onnx.vision.names import FEATURES, NEWLINE
from vlmkit_onnx.vision.tiles import TileFeeding


class LayerTower(nn.Module):
    """A tower, its selected layers, and the projector.

    Args:
        base: the family's model without its head.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.tower = base.vision_tower
        self.projector = base.multi_modal_projector
        self.layers: int | list[int] = base.config.vision_feature_layer
        strategy = getattr(base.config, "vision_feature_select_strategy", "default")
        self.drops_first = strategy == "default"

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return ``[pictures, rows, hidden]``."""
        hidden = self.tower(pixel_values, output_hidden_states=True, return_dict=True).hidden_states
        layers = [self.layers] if isinstance(self.layers, int) else self.layers
        first = 1 if self.drops_first else 0
        chosen = torch.cat([hidden[layer][:, first:] for layer in layers], dim=-1)
        projected: torch.Tensor = self.projector(chosen)
        return projected


class NewlineTower(nn.Module):
    """A layer tower with the learned row that ends a line of rows."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.rows = LayerTower(base)
        self.newline = base.image_newline

    def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows, and ``[pictures, hidden]`` for the ends of lines."""
        newline = self.newline[None].expand(pixel_values.shape[0], -1)
        return self.rows(pixel_values), newline


def llava(base: Any) -> Tower:
    """Return the tower of LLaVA 1.5 or VipLLaVA: one picture for each image."""
    size = base.config.vision_config.image_size

    def samples(random: np.random.Generator) -> list[ImageInputs]:
        return [{"pixel_values": noise(random, 1, 3, size, size)} for _ in range(3)]

    return Tower(LayerTower(base), TileFeeding(), {"pixel_values": [0]}, samples)


def llava_next(base: Any) -> Tower:
    """Return the tower of LLaVA-NeXT and its video sibling: a small picture and tiles."""
    return anyres(base, NewlineTower(base), (FEATURES, NEWLINE))


def llava_onevision(base: Any) -> Tower:
    """Return the tower of LLaVA-OneVision: as LLaVA-NeXT, with a limit on the number of tiles."""
    bound = int(base.config.vision_aspect_ratio.removeprefix("anyres_max_"))
    return anyres(base, NewlineTower(base), (FEATURES, NEWLINE), max_tiles=bound)


def anyres(
    base: Any,
    module: nn.Module,
    outputs: tuple[str, ...],
    *,
    scale: Fraction = Fraction(1),
    max_tiles: int | None = None,
) -> Tower:
    """Return a tower of a small picture and tiles that cover the image.

    Args:
        base: the family's model without its head.
        module: returns the outputs.
        outputs: their names.
        scale: rows on each side of a tile, for each patch.
        max_tiles: see :class:`vlmkit_onnx.vision.anyres.AnyresFeeding`.
    """
    config = base.config
    size = config.vision_config.image_size
    resolutions = [(int(height), int(width)) for height, width in config.image_grid_pinpoints]
    feeding = AnyresFeeding(
        resolutions=resolutions,
        tile_size=size,
        tile_rows=int(size // config.vision_config.patch_size * scale),
        max_tiles=max_tiles,
    )

    def sample(random: np.random.Generator, height: int, width: int) -> ImageInputs:
        fitted = best_resolution(height, width, resolutions)
        tiles = 1 + (fitted[0] // size) * (fitted[1] // size)
        return {
            "pixel_values": noise(random, 1, tiles, 3, size, size),
            "image_sizes": np.array([[height, width]]),
        }

    def samples(random: np.random.Generator) -> list[ImageInputs]:
        sizes = [(size, size), (size, size), (size, 3 * size), (2 * size + 3, size)]
        return [sample(random, height, width) for height, width in sizes]

    return Tower(module, feeding, {"pixel_values": [0]}, samples, outputs)
