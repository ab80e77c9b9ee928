"""The attention function that transformers calls in every layer of a decoder.

Writes the new keys and values into the paged cache and reads back what each token may see. One
batched attention for decoding sequences of like length, one for each long one and for each prefill
chunk. Knows soft caps and attention sinks; refuses arguments that it does not know rather than
ignore them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface

from vlmkit_torch.attention.arguments import refuse_unknown
from vlmkit_torch.attention.eager import Rule, explicit
from vlmkit_torch.attention.key_ranges import Reach
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.step import Step
from vlmkit_torch.cache.kv_cache import KVCache
from vlmkit_torch.devices import hardware

IMPLEMENTATION = "vlmkit_paged"  # not registered for masks: the models then build none
SLOT = "vlmkit_layer"
MOST_SCORES = 2**25  # of a chunk in one layer at once; an eighth of a GiB in single precision


@dataclass(slots=True)
class Board:
    """Where an engine pins what its layers need; one for each engine, so engines never mix.

    Attributes:
        cache: keys and values.
        step: the forward pass that runs.
        kinds: of all layers that were computed so far.
    """

    cache: KVCache
    step: Step | None = None
    kinds: set[LayerKind] = field(default_factory=set)


Look = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Rule], torch.Tensor]
"""The attention of a layer that looks at pictures and not at tokens; see ``crossing``."""


class Layer:
    """One layer's attention: its cache, and which tokens it sees; or how it looks at pictures."""

    def __init__(self, board: Board, index: int, kind: LayerKind, look: Look | None = None) -> None:
        self.board = board
        self.index = index
        self.kind = kind
        self.look = look
        self._kinds: dict[int | None, LayerKind] = {}

    def kind_with(self, window: int | None) -> LayerKind:
        """Return the layer's kind; a window that the family's code passes counts."""
        if window not in self._kinds:
            kind = self.kind if window is None else self.kind._replace(window=window)
            self._kinds[window] = kind
            self.board.kinds.add(kind)
        return self._kinds[window]


def install() -> None:
    """Make the function known to transformers; harmless to repeat."""
    AttentionInterface.register(IMPLEMENTATION, attend)


def bind(
    decoder: nn.Module,
    board: Board,
    kinds: list[LayerKind],
    looks: Mapping[int, Look] | None = None,
) -> None:
    """Tell every attention module of a decoder which layer of which engine it is.

    Args:
        decoder: of one model.
        board: of one engine.
        kinds: of its layers.
        looks: the attention of those layers that look at pictures.
    """
    looks = looks or {}
    for module in decoder.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and 0 <= index < len(kinds):
            setattr(module, SLOT, Layer(board, index, kinds[index], looks.get(index)))


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
    refuse_unknown(attention_mask, others)
    layer: Layer = getattr(module, SLOT)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if layer.look is not None:
        return layer.look(query, key, value, Rule(layer.kind, scale, softcap, s_aux))[None], None
    rule = Rule(layer.kind_with(sliding_window or None), scale, softcap, s_aux)
    if query.shape[0] == 1:
        return _attend_step(layer, query, key, value, rule)[None], None
    # One token of each sequence in a column, as recurrent layers want them.
    query, key, value = (rows.transpose(0, 2) for rows in (query, key, value))
    return _attend_step(layer, query, key, value, rule)[:, None], None


def _attend_step(
    layer: Layer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
) -> torch.Tensor:
    """Keep the new keys and values, and attend: decodes in batches, then chunk by chunk.

    Returns:
        ``[tokens, heads, value_head]``.
    """
    step = layer.board.step
    if step is None:
        raise RuntimeError("attention was called outside a step")
    cached = layer.board.cache.write(layer.index, step.write_slots, key[0], value[0])
    reaches = step.reaches(rule.kind)
    parts = [
        _decode(query[0, :, slice(*reach.rows)], cached, reach, rule) for reach in reaches.decodes
    ]
    for reach in reaches.chunks:
        start, stop = reach.rows
        rows = query[:, :, start:stop]
        if reach.is_start and rule.is_plain:
            fresh = (key[:, :, start:stop], value[:, :, start:stop])
            parts.append(_start_of_sequence(rows, *fresh, rule.scale))
        else:
            parts.append(_chunk(rows, cached, reach, rule))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(
    query: torch.Tensor,
    cached: tuple[torch.Tensor, torch.Tensor],
    reach: Reach,
    rule: Rule,
) -> torch.Tensor:
    """Attend with one query for each sequence: ``[heads, batch, head]`` -> ``[batch, ...]``.

    The heads that share keys stand as queries of one head, so that no key is repeated.
    """
    (heads, batch, head), kv_heads = query.shape, cached[0].shape[1]
    grouped = query.transpose(0, 1).reshape(batch, kv_heads, -1, head)
    mask = reach.mask(query.dtype)
    if mask is not None:
        mask = mask[:, None, None]
    if rule.is_plain and len(reach.parts) == 1:
        key, value = (_read(pool, reach.parts[0], batch) for pool in cached)
        out = _attention(grouped, key, value, attn_mask=mask, scale=rule.scale)
    else:
        keys, values = (_read_each(pool, reach.parts, batch) for pool in cached)
        out = explicit(grouped[:, :, :, None], keys, values, mask, rule)[:, :, :, 0]
    return out.reshape(batch, heads, -1)


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
    rule: Rule,
) -> torch.Tensor:
    """Attend with several queries of one sequence: ``[1, heads, count, head]``."""
    keys, values = (_read(pool, reach.parts[0], 1) for pool in cached)
    return attend_to(query, keys, values, reach.mask(query.dtype), rule)


def attend_to(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    rule: Rule,
) -> torch.Tensor:
    """Attend with queries ``[1, heads, count, head]``; return ``[count, heads, value_head]``.

    The queries are taken a few at a time where many would have too many scores at once.

    Args:
        query: of tokens that share their keys.
        keys: ``[1, kv_heads, width, head]``.
        values: ``[1, kv_heads, width, value_head]``.
        mask: additive, ``[count, width]``; None masks nothing.
        rule: of the layer.
    """
    count = step = query.shape[2]
    if not rule.is_plain or query.device.type != "cpu":  # the CPU's own kernel keeps no scores
        step = max(1, MOST_SCORES // (query.shape[1] * keys.shape[2]))
    parts = []
    for start in range(0, count, step):
        some = slice(start, start + step)
        own = None if mask is None else mask[some]
        parts.append(_some_of_chunk(query[:, :, some], keys, values, own, rule))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _some_of_chunk(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    rule: Rule,
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
        out = explicit(grouped, [keys], [values], mask, rule)
        out = out.reshape(1, heads, query.shape[2], -1)
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


def _read_each(
    pool: torch.Tensor, parts: Iterable[torch.Tensor | slice], batch: int
) -> Iterator[torch.Tensor]:
    """Yield the rows of each part, so that one copy at a time is in memory."""
    for slots in parts:
        yield _read(pool, slots, batch)
