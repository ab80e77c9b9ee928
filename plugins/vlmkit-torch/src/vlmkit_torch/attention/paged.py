"""The attention function that transformers calls in every layer of a decoder.

Writes new keys and values into the paged cache and reads what each token may see. Computes one
batched attention for decoding sequences of similar length, one for each long sequence, and one for
each prefill chunk. Supports soft caps and attention sinks. Refuses unknown arguments, because
ignoring them would give wrong answers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface

from vlmkit_torch.attention.eager import AttentionParameters, eager_attention
from vlmkit_torch.attention.interface import AttentionFunction, AttentionOptions, Projections
from vlmkit_torch.attention.key_ranges import KeyRange
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.step import Step
from vlmkit_torch.cache.kv_cache import KVCache
from vlmkit_torch.devices import hardware

IMPLEMENTATION = "vlmkit_paged"  # not registered for masks: the models then build none
LAYER_ATTRIBUTE = "vlmkit_layer"
MAX_SCORES = 2**25  # of a chunk in one layer at once; an eighth of a GiB in single precision


@dataclass(slots=True)
class AttentionContext:
    """The state of one engine that its attention layers share.

    Attributes:
        cache: keys and values.
        step: the current forward pass.
        kinds: of all layers that were computed so far.
    """

    cache: KVCache
    step: Step | None = None
    kinds: set[LayerKind] = field(default_factory=set)


CrossAttentionFunction = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, AttentionParameters], torch.Tensor
]
"""The attention of a layer that attends to images, not tokens; see ``cross_attention``."""


class Layer:
    """One layer's attention: over the cache, or to images by its own function."""

    def __init__(
        self,
        context: AttentionContext,
        index: int,
        kind: LayerKind,
        cross_attention: CrossAttentionFunction | None = None,
    ) -> None:
        self.context = context
        self.index = index
        self.kind = kind
        self.cross_attention = cross_attention
        self._kinds: dict[int | None, LayerKind] = {}

    def kind_with(self, window: int | None) -> LayerKind:
        """Return the layer's kind, with the window that the family's code passes, if any."""
        if window not in self._kinds:
            kind = self.kind if window is None else self.kind._replace(window=window)
            self._kinds[window] = kind
            self.context.kinds.add(kind)
        return self._kinds[window]


def install() -> None:
    """Register the function with transformers; repeated calls have no effect."""
    AttentionInterface.register(IMPLEMENTATION, attend)


def bind(
    decoder: nn.Module,
    context: AttentionContext,
    kinds: list[LayerKind],
    cross_attention: Mapping[int, CrossAttentionFunction] | None = None,
) -> None:
    """Attach layer and context to every attention module of a decoder.

    Args:
        decoder: of one model.
        context: of one engine.
        kinds: of its layers.
        cross_attention: the functions of the layers that attend to images, by index.
    """
    functions = cross_attention or {}
    for module in decoder.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and 0 <= index < len(kinds):
            layer = Layer(context, index, kinds[index], functions.get(index))
            setattr(module, LAYER_ATTRIBUTE, layer)


class PagedAttention(AttentionFunction):
    """Computes one layer's attention over the current step.

    Accepts one row with all tokens of the step, or one row of one token for each sequence.
    """

    def _attend(
        self, module: nn.Module, states: Projections, options: AttentionOptions
    ) -> torch.Tensor:
        query, key, value = states
        layer: Layer = getattr(module, LAYER_ATTRIBUTE)
        scores = (options.scale, options.softcap, options.sinks)
        if layer.cross_attention is not None:
            parameters = AttentionParameters(layer.kind, *scores)
            return layer.cross_attention(query, key, value, parameters)[None]
        parameters = AttentionParameters(layer.kind_with(options.window), *scores)
        if query.shape[0] == 1:
            return _attend_step(layer, query, key, value, parameters)[None]
        # One token of each sequence in a column, as recurrent layers expect.
        query, key, value = (rows.transpose(0, 2) for rows in states)
        return _attend_step(layer, query, key, value, parameters)[:, None]


attend = PagedAttention()


def _attend_step(
    layer: Layer,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    parameters: AttentionParameters,
) -> torch.Tensor:
    """Store the new keys and values, and attend: decodes in batches, then chunk by chunk.

    Returns:
        ``[tokens, heads, value_head]``.
    """
    step = layer.context.step
    if step is None:
        raise RuntimeError("attention was called outside a step")
    cached = layer.context.cache.write(layer.index, step.write_slots, key[0], value[0])
    ranges = step.key_ranges(parameters.kind)
    parts = [
        _decode(query[0, :, slice(*read.rows)], cached, read, parameters) for read in ranges.decodes
    ]
    for read in ranges.chunks:
        start, stop = read.rows
        rows = query[:, :, start:stop]
        if read.is_start and parameters.suits_kernel:
            fresh = (key[:, :, start:stop], value[:, :, start:stop])
            parts.append(_start_of_sequence(rows, *fresh, parameters.scale))
        else:
            parts.append(_chunk(rows, cached, read, parameters))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decode(
    query: torch.Tensor,
    cached: tuple[torch.Tensor, torch.Tensor],
    read: KeyRange,
    parameters: AttentionParameters,
) -> torch.Tensor:
    """Attend with one query for each sequence: ``[heads, batch, head]`` -> ``[batch, ...]``.

    Heads that share keys become queries of one head, so that no key is repeated.
    """
    (heads, batch, head), kv_heads = query.shape, cached[0].shape[1]
    grouped = query.transpose(0, 1).reshape(batch, kv_heads, -1, head)
    mask = read.mask(query.dtype)
    if mask is not None:
        mask = mask[:, None, None]
    if parameters.suits_kernel and len(read.parts) == 1:
        key, value = (_read(pool, read.parts[0], batch) for pool in cached)
        out = _attention(grouped, key, value, attn_mask=mask, scale=parameters.scale)
    else:
        keys, values = (_read_each(pool, read.parts, batch) for pool in cached)
        out = eager_attention(grouped[:, :, :, None], keys, values, mask, parameters)[:, :, :, 0]
    return out.reshape(batch, heads, -1)


def _start_of_sequence(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend causally among the chunk's own tokens, without reading the cache."""
    shares_keys = query.shape[1] != key.shape[1]
    out = _attention(query, key, value, is_causal=True, scale=scale, enable_gqa=shares_keys)
    return out[0].transpose(0, 1)


def _chunk(
    query: torch.Tensor,
    cached: tuple[torch.Tensor, torch.Tensor],
    read: KeyRange,
    parameters: AttentionParameters,
) -> torch.Tensor:
    """Attend with several queries of one sequence: ``[1, heads, count, head]``."""
    keys, values = (_read(pool, read.parts[0], 1) for pool in cached)
    return attend_to(query, keys, values, read.mask(query.dtype), parameters)


def attend_to(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    parameters: AttentionParameters,
) -> torch.Tensor:
    """Attend with queries ``[1, heads, count, head]``; return ``[count, heads, value_head]``.

    Takes a few queries at a time if all of them would have too many scores at once.

    Args:
        query: of tokens that share their keys.
        keys: ``[1, kv_heads, width, head]``.
        values: ``[1, kv_heads, width, value_head]``.
        mask: additive, ``[count, width]``; None masks nothing.
        parameters: of the layer.
    """
    count = step = query.shape[2]
    if (
        not parameters.suits_kernel or query.device.type != "cpu"
    ):  # the CPU's kernel keeps no scores
        step = max(1, MAX_SCORES // (query.shape[1] * keys.shape[2]))
    parts = []
    for start in range(0, count, step):
        some = slice(start, start + step)
        own = None if mask is None else mask[some]
        parts.append(_attend_at_once(query[:, :, some], (keys, values), own, parameters))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_at_once(
    query: torch.Tensor,
    cached: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    parameters: AttentionParameters,
) -> torch.Tensor:
    keys, values = cached
    heads, kv_heads = query.shape[1], keys.shape[1]
    if parameters.suits_kernel:
        out = _attention(
            query,
            keys,
            values,
            attn_mask=mask,
            scale=parameters.scale,
            enable_gqa=heads != kv_heads,
        )
    else:
        grouped = query.reshape(1, kv_heads, heads // kv_heads, *query.shape[2:])
        out = eager_attention(grouped, [keys], [values], mask, parameters)
        out = out.reshape(1, heads, query.shape[2], -1)
    return out[0].transpose(0, 1)


def _attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **how: Any
) -> torch.Tensor:
    """Attend with torch's own kernel. On MPS it misreads some views, so they are copied."""
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
    """Yield the rows of each part, so that only one copy is in memory at a time."""
    for slots in parts:
        yield _read(pool, slots, batch)
