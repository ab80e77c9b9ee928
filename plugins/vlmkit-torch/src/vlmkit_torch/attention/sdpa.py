"""The backend ``sdpa``: torch's ``scaled_dot_product_attention``, on every device.

Computes one batched attention for decoding sequences of similar length, one for each long sequence,
and one for each prefill chunk. Supports soft caps, attention sinks and masks of the family.

Of an 8-bit cache, it reads what the cache holds, also of the tokens of the step: an answer must not
depend on how a prompt was cut into chunks. It expands keys and values of a few tokens or heads at a
time.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from vlmkit_torch.attention.eager import eager_attention
from vlmkit_torch.attention.grouping import MAX_BATCH_BYTES, ReadCosts
from vlmkit_torch.attention.key_ranges import KeyRange, KeyRanges, key_ranges
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.parameters import AttentionParameters
from vlmkit_torch.attention.step import StepTokens
from vlmkit_torch.cache.kv_cache import Int8Pools, KVPools, Pools
from vlmkit_torch.devices import hardware
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import (
    AttentionCall,
    AttentionCapabilities,
    AttentionNeeds,
)

MAX_SCORES = 2**25  # of a chunk in one layer at once; an eighth of a GiB in single precision
EVERYTHING = AttentionCapabilities(
    unequal_head_sizes=True,
    sliding_windows=True,
    chunked_attention=True,
    softcaps=True,
    sinks=True,
    image_spans=True,
    int8_cache=True,
    fixed_shapes=True,
)


class SdpaAttention:
    """Attends with torch's own kernel, and step by step where it has none.

    Args:
        costs: of reading keys and values, before a model is known.

    Attributes:
        aligns_chunks: whether later chunks attend without a mask; see :func:`attend_chunks`.
    """

    aligns_chunks = False

    def __init__(self, costs: ReadCosts | None = None) -> None:
        self._costs = costs or ReadCosts(1, 1, may_split=False)

    @property
    def capabilities(self) -> AttentionCapabilities:
        """All that the engine supports."""
        return EVERYTHING

    def prepare(self, needs: AttentionNeeds) -> None:
        """Derive the costs of reading from the model and the device."""
        self._costs = ReadCosts(
            token_bytes=max(layer.token_bytes for layer in needs.layers),
            call_bytes=hardware.call_bytes(needs.device),
            # Torch's kernel keeps scores more precisely than products in half precision.
            may_split=needs.dtype == torch.float32 or needs.has_int8_cache,
            reads_in_place=not needs.has_int8_cache,
        )

    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> KeyRanges:
        """Return what layers of a kind read."""
        return key_ranges(step, kind, self._costs, uploads)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Store the new keys and values, and attend: decodes in batches, then chunk by chunk."""
        ranges: KeyRanges = call.plan
        call.pools.write(call.step.write_slots, call.key, call.value)
        parts = attend_decodes(call, ranges.decodes)
        parts += attend_chunks(call, ranges.chunks, aligns=self.aligns_chunks)
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class AlignedAttention(SdpaAttention):
    """Attends as ``sdpa``, but to the earlier tokens of a chunk without a mask of all scores."""

    aligns_chunks = True

    @property
    def capabilities(self) -> AttentionCapabilities:
        """Plain causal layers on CUDA devices, where a kernel of torch aligns the last tokens."""
        devices = frozenset({"cuda"})
        return AttentionCapabilities(devices=devices, unequal_head_sizes=True, fixed_shapes=True)


def attend_decodes(call: AttentionCall, decodes: Iterable[KeyRange]) -> list[torch.Tensor]:
    """Return the rows of each batch of decodes; their keys and values are stored."""
    return [
        _decode(call.query[:, slice(*read.rows)], call.pools, read, call.parameters)
        for read in decodes
    ]


def attend_chunks(
    call: AttentionCall, chunks: Iterable[KeyRange], *, aligns: bool = False
) -> list[torch.Tensor]:
    """Return the rows of each chunk; its keys and values are stored.

    Args:
        call: of the layer.
        chunks: what they read.
        aligns: whether a chunk whose tokens see all earlier ones is given to torch's kernel as
            causal, with the last query at the last key, and without a mask.
    """
    parts = []
    aligns = aligns and call.parameters.suits_kernel and isinstance(call.pools, KVPools)
    for read in chunks:
        query = call.query[None, :, slice(*read.rows)]
        if read.is_start and call.parameters.suits_kernel:
            new = _new_tokens(call, read)
            parts.append(_start_of_sequence(query, *new, call.parameters.scale))
        elif aligns and read.is_aligned:
            keys, values = read_slots(call.pools, read.parts[0], 1)
            parts.append(_end_of_sequence(query, keys, values, call.parameters.scale))
        else:
            parts.append(_chunk(query, call.pools, read, call.parameters))
    return parts


def _decode(
    query: torch.Tensor, cached: Pools, read: KeyRange, parameters: AttentionParameters
) -> torch.Tensor:
    """Attend with one query for each sequence: ``[heads, batch, head]`` -> ``[batch, ...]``.

    Heads that share keys become queries of one head, so that no key is repeated.
    """
    (heads, batch, head), kv_heads = query.shape, cached.keys.shape[1]
    grouped = query.transpose(0, 1).reshape(batch, kv_heads, -1, head)
    mask = read.mask(query.dtype)
    if mask is not None:
        mask = mask[:, None, None]
    if parameters.suits_kernel and len(read.parts) == 1:
        key, value = read_slots(cached, read.parts[0], batch)
        out = _attention(grouped, key, value, attn_mask=mask, scale=parameters.scale)
    else:
        if isinstance(cached, Int8Pools):  # single precision costs little beside expanding
            wide = torch.promote_types(query.dtype, torch.float32)
            grouped, cached = grouped.to(wide), cached._replace(dtype=wide)
        keys, values = (
            _read_each(side, read.parts, batch) for side in (cached.read_keys, cached.read_values)
        )
        out = eager_attention(grouped[:, :, :, None], keys, values, mask, parameters)[:, :, :, 0]
    return out.reshape(batch, heads, -1).to(query.dtype)


def _new_tokens(call: AttentionCall, read: KeyRange) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``[1, kv_heads, count, head]`` of the first tokens of a sequence, as they are read."""
    if isinstance(call.pools, Int8Pools):
        return read_slots(call.pools, read.parts[0], 1)
    rows = slice(*read.rows)
    return call.key[None, :, rows], call.value[None, :, rows]


def _start_of_sequence(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend causally among the chunk's own tokens, without reading the cache."""
    shares_keys = query.shape[1] != key.shape[1]
    out = _attention(query, key, value, is_causal=True, scale=scale, enable_gqa=shares_keys)
    return out[0].transpose(0, 1)


def _end_of_sequence(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attend causally with the last tokens of the keys, a few at a time.

    Where the device has no kernel for it, torch masks all scores.
    """
    (_, heads, count, _), width = query.shape, keys.shape[2]
    step = max(1, MAX_SCORES // (heads * width))
    parts = []
    for start in range(0, count, step):
        some = query[:, :, start : start + step]
        stop = width - count + start + some.shape[2]
        out = _attention(
            some,
            keys[:, :, :stop],
            values[:, :, :stop],
            attn_mask=causal_lower_right(some.shape[2], stop),
            scale=scale,
            enable_gqa=heads != keys.shape[1],
        )
        parts.append(out[0].transpose(0, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _chunk(
    query: torch.Tensor, cached: Pools, read: KeyRange, parameters: AttentionParameters
) -> torch.Tensor:
    """Attend with several queries of one sequence: ``[1, heads, count, head]``."""
    mask = read.mask(query.dtype)
    parts = [
        attend_to(query[:, rows], *read_slots(some, read.parts[0], 1), mask, own)
        for rows, some, own in _groups_of_heads(cached, read, query.shape[1], parameters)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _groups_of_heads(
    cached: Pools, read: KeyRange, num_heads: int, parameters: AttentionParameters
) -> Iterator[tuple[slice, Pools, AttentionParameters]]:
    """Yield heads whose expanded keys and values are in memory together: all of a dense cache.

    Yields:
        The rows of the queries, the pools of their keys and values, and their parameters.
    """
    if not isinstance(cached, Int8Pools):
        yield slice(0, num_heads), cached, parameters
        return
    kv_heads = cached.keys.shape[1]
    head_bytes = sum(pool.shape[-1] for pool in cached[:2]) * cached.dtype.itemsize
    num = max(1, MAX_BATCH_BYTES // (read.num_slots * head_bytes))
    for start in range(0, kv_heads, num):
        stop = min(start + num, kv_heads)
        rows = slice(*(end * num_heads // kv_heads for end in (start, stop)))
        own = parameters
        if own.sinks is not None:
            own = replace(own, sinks=own.sinks[rows])
        yield rows, cached.of_heads(start, stop), own


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


def read_slots(
    cached: Pools, slots: torch.Tensor | slice, batch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of slots as ``[batch, kv_heads, width, head]`` each."""
    return _in_batch(cached.read_keys(slots), batch), _in_batch(cached.read_values(slots), batch)


def _read_each(
    side: Callable[[torch.Tensor | slice], torch.Tensor],
    parts: Iterable[torch.Tensor | slice],
    batch: int,
) -> Iterator[torch.Tensor]:
    """Yield the rows of each part, so that only one copy is in memory at a time."""
    for slots in parts:
        yield _in_batch(side(slots), batch)


def _in_batch(rows: torch.Tensor, batch: int) -> torch.Tensor:
    """Return the rows of slots as ``[batch, kv_heads, width, head]``."""
    return rows.view(batch, -1, *rows.shape[1:]).transpose(1, 2)
