"""The attention function that transformers calls in every layer of a decoder.

Writes the new keys and values into the paged cache and reads back what each token may see. One
batched attention for decoding sequences of like length, one for each prefill chunk. Knows soft caps
and attention sinks; refuses arguments that it does not know rather than ignore them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface

from vlmkit.errors import CheckpointError
from vlmkit_torch import hardware
from vlmkit_torch.attention.step import LayerKind, Reach, Step
from vlmkit_torch.kv_cache import KVCache

IMPLEMENTATION = "vlmkit_paged"  # not registered for masks: the models then build none
HARMLESS = frozenset({"position_ids", "cache_position"})
SLOT = "vlmkit_layer"
MOST_SCORES = 2**25  # of a chunk in one layer at once; an eighth of a GiB in single precision


@dataclass(slots=True)
class Board:
    """Where an engine pins what its layers need; one for each engine, so engines never mix."""

    cache: KVCache
    step: Step | None = None


class Layer:
    """One layer's attention: its cache, and which tokens it sees."""

    def __init__(self, board: Board, index: int, kind: LayerKind) -> None:
        self.board = board
        self.index = index
        self.kind = kind
        self._kinds: dict[int | None, LayerKind] = {None: kind}

    def kind_with(self, window: int | None) -> LayerKind:
        """Return the layer's kind; a window that the family's code passes counts."""
        if window not in self._kinds:
            self._kinds[window] = self.kind._replace(window=window)
        return self._kinds[window]


def install() -> None:
    """Make the function known to transformers; harmless to repeat."""
    AttentionInterface.register(IMPLEMENTATION, attend)


def bind(decoder: nn.Module, board: Board, kinds: list[LayerKind]) -> None:
    """Tell every attention module of a decoder which layer of which engine it is."""
    for module in decoder.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and 0 <= index < len(kinds):
            setattr(module, SLOT, Layer(board, index, kinds[index]))


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute one layer's attention over a step; called by transformers.

    Args:
        module: the family's attention module.
        query: ``[1, heads, tokens, head]``, or ``[tokens, heads, 1, head]``.
        key: ``[1, kv_heads, tokens, head]``, or with the axes swapped likewise.
        value: ``[1, kv_heads, tokens, value_head]``, likewise.
        attention_mask: must be None; the step knows what is visible.
        scaling: of the scores; None is one over the square root of ``head``.
        sliding_window: the layer's window, if the family's code passes one.
        softcap: scores are squashed into plus or minus this.
        s_aux: ``[heads]`` scores of the attention sinks.
        others: further arguments, of no use here; an unknown tensor among them is refused.

    Returns:
        ``[1, tokens, heads, value_head]``, or with those axes swapped, and None.
    """
    _refuse_unknown(attention_mask, others)
    layer: Layer = getattr(module, SLOT)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rule = _Rule(layer.kind_with(sliding_window or None), scale, softcap, s_aux)
    if query.shape[0] == 1:
        return _attend_step(layer, query, key, value, rule)[None], None
    # One token of each sequence in a column, as recurrent layers want them.
    query, key, value = (rows.transpose(0, 2) for rows in (query, key, value))
    return _attend_step(layer, query, key, value, rule)[:, None], None


@dataclass(frozen=True, slots=True)
class _Rule:
    """How scores become weights."""

    kind: LayerKind
    scale: float
    softcap: float | None
    sinks: torch.Tensor | None

    @property
    def is_plain(self) -> bool:
        return self.softcap is None and self.sinks is None


def _attend_step(
    layer: Layer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: _Rule
) -> torch.Tensor:
    """Keep the new keys and values, and attend: decodes in batches, then chunk by chunk.

    Returns:
        ``[tokens, heads, value_head]``.
    """
    step = layer.board.step
    if step is None:
        raise RuntimeError("attention was called outside a step")
    cached = layer.board.cache.write(layer.index, step.write_slots, key[0], value[0])
    parts = []
    for group in step.decodes:
        rows = query[0, :, slice(*group.rows)]
        parts.append(_decode(rows, cached, group.reach(rule.kind), rule))
    for chunk in step.chunks:
        start, stop = chunk.rows
        rows = query[:, :, start:stop]
        if chunk.is_plain(rule.kind) and rule.is_plain:
            fresh = (key[:, :, start:stop], value[:, :, start:stop])
            parts.append(_start_of_sequence(rows, *fresh, rule.scale))
        else:
            parts.append(_chunk(rows, cached, chunk.reach(rule.kind), rule))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(
    query: torch.Tensor,
    cached: tuple[torch.Tensor, torch.Tensor],
    reach: Reach,
    rule: _Rule,
) -> torch.Tensor:
    """Attend with one query for each sequence: ``[heads, batch, head]`` -> ``[batch, ...]``.

    The heads that share keys stand as queries of one head, so that no key is repeated.
    """
    batch = query.shape[1]
    keys, values = (_read(pool, reach.slots, batch) for pool in cached)
    kv_heads = keys.shape[1]
    grouped = query.transpose(0, 1).reshape(batch, kv_heads, -1, query.shape[-1])
    if rule.is_plain:
        out = _attention(grouped, keys, values, attn_mask=reach.mask, scale=rule.scale)
    else:
        out = _explicit(grouped[:, :, :, None], keys, values, reach.mask, rule)[:, :, :, 0]
    return out.reshape(batch, query.shape[0], -1)


def _start_of_sequence(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend causally among the chunk's own tokens; the cache is not read."""
    shares_keys = query.shape[1] != key.shape[1]
    out = _attention(query, key, value, is_causal=True, scale=scale, enable_gqa=shares_keys)
    return out[0].transpose(0, 1)


def _chunk(
    query: torch.Tensor,
    cached: tuple[torch.Tensor, torch.Tensor],
    reach: Reach,
    rule: _Rule,
) -> torch.Tensor:
    """Attend with several queries of one sequence: ``[1, heads, count, head]``.

    The queries are taken a few at a time where many would have too many scores at once.
    """
    keys, values = (_read(pool, reach.slots, 1) for pool in cached)
    count = step = query.shape[2]
    if not rule.is_plain or query.device.type != "cpu":  # the CPU's own kernel keeps no scores
        step = max(1, MOST_SCORES // (query.shape[1] * keys.shape[2]))
    parts = []
    for start in range(0, count, step):
        some = slice(start, start + step)
        mask = None if reach.mask is None else reach.mask[some]
        parts.append(_some_of_chunk(query[:, :, some], keys, values, mask, rule))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _some_of_chunk(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    rule: _Rule,
) -> torch.Tensor:
    """Attend with queries ``[1, heads, count, head]``; return ``[count, heads, value_head]``."""
    heads, kv_heads = query.shape[1], keys.shape[1]
    if rule.is_plain:
        out = _attention(
            query,
            keys,
            values,
            attn_mask=mask,
            scale=rule.scale,
            enable_gqa=heads != kv_heads,
        )
    else:
        grouped = query.reshape(1, kv_heads, heads // kv_heads, *query.shape[2:])
        out = _explicit(grouped, keys, values, mask, rule).reshape(1, heads, query.shape[2], -1)
    return out[0].transpose(0, 1)


def _attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **how: Any
) -> torch.Tensor:
    """Attend with torch's own kernel; on MPS it has misread views more than once."""
    if hardware.is_mps(query.device):
        query, keys, values = query.contiguous(), keys.contiguous(), values.contiguous()
    return functional.scaled_dot_product_attention(query, keys, values, **how)


def _read(pool: torch.Tensor, slots: torch.Tensor | slice, batch: int) -> torch.Tensor:
    """Return the rows of slots as ``[batch, kv_heads, width, head]``."""
    rows = pool[slots] if isinstance(slots, slice) else pool.index_select(0, slots)
    return rows.view(batch, -1, *pool.shape[1:]).transpose(1, 2)


def _explicit(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    rule: _Rule,
) -> torch.Tensor:
    """Attend step by step, for soft caps and sinks.

    Args:
        query: ``[batch, kv_heads, group, count, head]``.
        keys: ``[batch, kv_heads, width, head]``.
        values: ``[batch, kv_heads, width, value_head]``.
        mask: additive, broadcast to ``[batch, kv_heads, group, count, width]``.
        rule: cap, sinks and scale.
    """
    batch, kv_heads, group, count, head = query.shape
    scores = query.reshape(batch, kv_heads, group * count, head) @ keys.transpose(-1, -2)
    scores = scores.view(batch, kv_heads, group, count, -1).mul_(rule.scale)
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    if mask is not None:
        scores = scores + (mask[:, :, None] if mask.ndim == 4 else mask)
    width = scores.shape[-1]
    if rule.sinks is not None:
        sinks = rule.sinks.view(kv_heads, group, 1, 1).expand(batch, -1, -1, count, -1)
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    weights = scores.softmax(-1, dtype=torch.float32)[..., :width].to(values.dtype)
    out = weights.reshape(batch, kv_heads, group * count, width) @ values
    return out.view(batch, kv_heads, group, count, -1)


def _refuse_unknown(mask: torch.Tensor | None, others: dict[str, Any]) -> None:
    if mask is not None:
        raise CheckpointError("the model builds an attention mask of its own, not supported")
    for name, value in others.items():
        if isinstance(value, torch.Tensor) and name not in HARMLESS:
            raise CheckpointError(f"the model's attention needs {name!r}, not supported")
