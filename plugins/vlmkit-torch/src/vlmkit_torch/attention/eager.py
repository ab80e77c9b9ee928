"""Attention computed step by step, for what torch's own kernel does not support.

Torch's kernel supports neither soft caps nor sinks, and takes keys in one piece only. Where keys
and values come from is decided by ``paged``.
"""

from collections.abc import Iterable

import torch

from vlmkit_torch.attention.parameters import AttentionParameters


def eager_attention(
    query: torch.Tensor,
    keys: Iterable[torch.Tensor],
    values: Iterable[torch.Tensor],
    mask: torch.Tensor | None,
    parameters: AttentionParameters,
) -> torch.Tensor:
    """Attend step by step: with soft caps and sinks, and to keys in several parts.

    Args:
        query: ``[batch, kv_heads, group, count, head]``.
        keys: ``[batch, kv_heads, width, head]`` of each part.
        values: ``[batch, kv_heads, width, value_head]``, likewise.
        mask: additive, broadcast to ``[batch, kv_heads, group, count, width]`` of all parts.
        parameters: cap, sinks and scale.

    Returns:
        ``[batch, kv_heads, group, count, value_head]``.
    """
    batch, kv_heads, group, count, head = query.shape
    flat = query.reshape(batch, kv_heads, group * count, head)
    scores = _concatenated([flat @ part.transpose(-1, -2) for part in keys])
    scores = scores.view(batch, kv_heads, group, count, -1).mul_(parameters.scale)
    if parameters.softcap is not None:
        scores = torch.tanh(scores / parameters.softcap) * parameters.softcap
    if mask is not None:
        scores = scores + (mask[:, :, None] if mask.ndim == 4 else mask)
    width = scores.shape[-1]
    if parameters.sinks is not None:
        sinks = parameters.sinks.view(kv_heads, group, 1, 1).expand(batch, -1, -1, count, -1)
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    weights = scores.softmax(-1, dtype=torch.float32)[..., :width]
    out = _weighted_sum(weights.reshape(batch, kv_heads, group * count, width), values)
    return out.view(batch, kv_heads, group, count, -1)


def _concatenated(scores: list[torch.Tensor]) -> torch.Tensor:
    return scores[0] if len(scores) == 1 else torch.cat(scores, -1)


def _weighted_sum(weights: torch.Tensor, values: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the weighted sum of the values of all parts."""
    out, start = None, 0
    for part in values:
        stop = start + part.shape[2]
        some = weights[..., start:stop].to(part.dtype) @ part
        out, start = some if out is None else out.add_(some), stop
    assert out is not None  # noqa: S101 - a query sees itself
    return out
