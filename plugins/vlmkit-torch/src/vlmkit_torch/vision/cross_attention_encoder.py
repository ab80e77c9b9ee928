"""The vision encoder of models whose decoder looks at pictures by cross-attention.

A picture's features are the rows that the decoder makes keys and values of; no row takes a token's
place, so the slot's own row is there for form, and the rest is an extra array.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch.cross_attention.family import STATES, Crossing
from vlmkit_torch.devices import hardware
from vlmkit_torch.loading.weights import LoadedModel
from vlmkit_torch.vision.encoder import TorchVisionEncoder


class CrossingEncoder(TorchVisionEncoder):
    """Computes what a decoder looks at, one picture at a time: towers see all tiles at once."""

    def __init__(
        self, loaded: LoadedModel, files: Checkpoint, max_batch_images: int, crossing: Crossing
    ) -> None:
        super().__init__(loaded, files, max_batch_images)
        self._crossing = crossing

    def _tower_of(self, base: Any) -> Callable[..., torch.Tensor]:
        def tower(
            pixel_values: torch.Tensor,
            aspect_ratio_ids: torch.Tensor,
            aspect_ratio_mask: torch.Tensor,
        ) -> torch.Tensor:
            """Return ``[tiles, rows, hidden]`` of one picture, with those that fill it up."""
            seen = base.vision_model(pixel_values, aspect_ratio_ids, aspect_ratio_mask)
            rows: torch.Tensor = base.multi_modal_projector(seen.last_hidden_state)
            return rows.flatten(0, 2)

        return tower

    @torch.no_grad()
    def _encode_group(self, slots: Sequence[MediaSlot]) -> list[MediaFeatures]:
        return [self._encode_one(slot) for slot in slots]

    def _encode_one(self, slot: MediaSlot) -> MediaFeatures:
        tiles = self._tower(**self._inputs([slot]))[: self._crossing.num_tiles(slot)]
        states = hardware.handed_over(tiles.flatten(0, 1).clone())
        own = states[: slot.num_features].clone()
        num_bytes = (states.numel() + own.numel()) * states.element_size()
        return MediaFeatures(slot.num_features, own, {STATES: states}, num_bytes)
