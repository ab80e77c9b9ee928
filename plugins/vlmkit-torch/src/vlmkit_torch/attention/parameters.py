"""How a layer's scores become weights: its scale, soft cap and sinks."""

from dataclasses import dataclass

import torch

from vlmkit_torch.attention.layer_kind import LayerKind


@dataclass(frozen=True, slots=True)
class AttentionParameters:
    """How a layer's scores become weights.

    Attributes:
        index: of the layer.
        kind: of the layer.
        scale: of scores.
        softcap: limit of the scores: they are squashed into plus or minus this.
        sinks: ``[heads]`` scores of the attention sinks.
    """

    index: int
    kind: LayerKind
    scale: float
    softcap: float | None
    sinks: torch.Tensor | None

    @property
    def suits_kernel(self) -> bool:
        """Whether torch's own kernel supports them."""
        return self.softcap is None and self.sinks is None
