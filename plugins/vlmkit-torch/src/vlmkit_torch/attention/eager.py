"""What turns scores into weights in some families, written out step by step.

Torch's own kernel knows no soft caps and no sinks, and takes keys in one piece only. Where keys
come from is not known here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from vlmkit_torch.attention.layer_kind import LayerKind


@dataclass(frozen=True, slots=True)
class Rule:
    """How scores become weights.

    Attributes:
        kind: of the layer.
        scale: of scores.
        softcap: scores are squashed into plus or minus this.
        sinks: ``[heads]`` scores of the attention sinks.
    """

    kind: LayerKind
    scale: float
    softcap: float | None
    sinks: torch.Tensor | None

    @property
    def is_plain(self) -> bool:
        """Whether torch's own kernel knows it."""
        return self.softcap is None and self.sinks is None


def explicit(
    query: torch.Tensor,
    keys: Iterable[torch.Tensor],
    values: Iterable[torch.Tensor],
    mask: torch.Tensor | None,
    rule: Rule,
) -> torch.Tensor:
    """Attend step by step: for soft caps and sinks, and where keys come in several parts.

    Args:
        query: ``[batch, kv_heads, group, count, head]``.
        keys: ``[batch, kv_heads, width, head]`` of each part.
        values: ``[batch, kv_heads, width, value_head]``, likewise.
        mask: additive, broadcast to ``[batch, kv_heads, group, count, width]`` of all parts.
        rule: cap, sinks and scale.
    """
    batch, kv_heads, group, count, head = query.shape
    flat = query.reshape(batch, kv_heads, group * count, head)
    scores = _joined([flat @ part.transpose(-1, -2) for part in keys])
    scores = scores.view(batch, kv_heads, group, count, -1).mul_(rule.scale)
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    if mask is not None:
        scores = scores + (mask[:, :, None] if mask.ndim == 4 else mask)
    width = scores.shape[-1]
    if rule.sinks is not None:
        sinks = rule.sinks.view(kv_heads, group, 1, 1).expand(batch, -1, -1, count, -1)
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    weights = scores.softmax(-1, dtype=torch.float32)[..., :width]
    out = _weighted(weights.reshape(batch, kv_heads, group * count, width), values)
    return out.view(batch, kv_heads, group, count, -1)


def _joined(scores: list[torch.Tensor]) -> torch.Tensor:
    return scores[0] if len(scores) == 1 else torch.cat(scores, -1)


def _weighted(weights: torch.Tensor, values: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the sum of all parts' values, each as its weight."""
    out, start = None, 0
    for part in values:
        stop = start + part.shape[2]
        some = weights[..., start:stop].to(part.dtype) @ part
        out, start = some if out is None else out.add_(some), stop
    assert out is not None  # noqa: S101 - a query sees itself
    return out
