"""The backend ``triton``: decodes by a kernel that reads the blocks of the cache in place.

Each decoding sequence reads its own keys and values, and nothing is gathered or padded. A sequence
is cut at fixed positions into parts, which are computed side by side and then merged in order
(Dao et al., Flash-Decoding, 2023). So a row does not depend on the other rows of a step. Chunks of
prompts are computed as by ``aligned``. Runs on CUDA devices, and in Triton's interpreter.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from vlmkit_torch.attention.key_ranges import KeyRange, chunk_ranges
from vlmkit_torch.attention.layer_kind import LayerKind
from vlmkit_torch.attention.parameters import AttentionParameters
from vlmkit_torch.attention.sdpa import EVERYTHING, attend_chunks
from vlmkit_torch.attention.step import StepTokens
from vlmkit_torch.cache.kv_cache import Int8Pools, Pools
from vlmkit_torch.devices.uploads import Uploads
from vlmkit_torch.interfaces.torch_attention import (
    AttentionCall,
    AttentionCapabilities,
    AttentionNeeds,
)

PART_TOKENS = 256
"""Positions of a sequence that one program reads."""
TILE_TOKENS = 32
MIN_SIZE = 16  # of a side of a product on tensor cores
IS_INTERPRETED = triton.knobs.runtime.interpret
DTYPES = frozenset({"float32", "float16", "bfloat16"})
DEVICES = frozenset({"cuda", "cpu"} if IS_INTERPRETED else {"cuda"})


class Decodes(NamedTuple):
    """What decoding sequences read in layers of one kind.

    Attributes:
        table: ``[sequences, blocks]`` blocks of each sequence.
        first: ``[sequences]`` first position that each new token sees.
        stop: ``[sequences]`` one past the last.
        num_parts: most parts of a sequence.
        block_tokens: tokens in a block.
    """

    table: torch.Tensor
    first: torch.Tensor
    stop: torch.Tensor
    num_parts: int
    block_tokens: int


class Plan(NamedTuple):
    """What a step reads in layers of one kind."""

    decodes: Decodes | None
    chunks: list[KeyRange]


class TritonAttention:
    """Attends with a kernel for decodes, and with torch's own for chunks."""

    @property
    def capabilities(self) -> AttentionCapabilities:
        """All that the engine supports, on devices that Triton supports."""
        return replace(EVERYTHING, devices=DEVICES, dtypes=DTYPES, reads_in_place=True)

    def prepare(self, needs: AttentionNeeds) -> None:
        """Do nothing: the kernel depends on a call alone."""

    def plan(self, step: StepTokens, kind: LayerKind, uploads: Uploads) -> Plan:
        """Return what layers of a kind read."""
        return Plan(_decodes(step, kind, uploads), chunk_ranges(step, kind, uploads))

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Store the new keys and values, and attend: all decodes at once, then chunk by chunk."""
        plan: Plan = call.plan
        call.pools.write(call.step.write_slots, call.key, call.value)
        parts = attend_chunks(call, plan.chunks, aligns=True)
        if plan.decodes is not None:
            query = call.query[:, : call.step.num_decodes]
            parts.insert(0, decode(query, call.pools, plan.decodes, call.parameters))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _decodes(step: StepTokens, kind: LayerKind, uploads: Uploads) -> Decodes | None:
    """Return what the decodes of a step read; None without any."""
    num_decodes = step.num_decodes
    if not num_decodes:
        return None
    ends = step.lengths[:num_decodes]
    seen = kind.first_visible_each(ends - 1)
    if step.has_fixed_shapes:
        num_parts = _most_parts(kind, step.table_tokens)
    else:
        num_parts = int((-(-ends // PART_TOKENS) - seen // PART_TOKENS).max())
    blocks = step.block_table[:num_decodes]
    table, first, stop = (uploads.add(array) for array in (blocks, seen, ends))
    return Decodes(table, first, stop, num_parts, step.block_tokens)


def _most_parts(kind: LayerKind, num_tokens: int) -> int:
    """Return how many parts a sequence of at most ``num_tokens`` may have."""
    seen = [each for each in (kind.window, kind.section) if each is not None]
    most = -(-num_tokens // PART_TOKENS)
    return min([most, *(-(-each // PART_TOKENS) + 1 for each in seen)])


def decode(
    query: torch.Tensor, pools: Pools, reads: Decodes, parameters: AttentionParameters
) -> torch.Tensor:
    """Attend with one query of each sequence, ``[heads, sequences, head]``.

    Returns:
        ``[sequences, heads, value_head]``, of the dtype of the queries.
    """
    (num_heads, num_rows, head_size), (_, num_kv_heads, value_size) = (
        query.shape,
        pools.values.shape,
    )
    query = query.transpose(0, 1).contiguous()
    group = num_heads // num_kv_heads
    is_int8 = isinstance(pools, Int8Pools)
    scales = (
        (pools.key_scales, pools.value_scales) if isinstance(pools, Int8Pools) else (query,) * 2
    )
    sums = query.new_empty(num_rows, num_heads, reads.num_parts, value_size, dtype=torch.float32)
    tops, totals = (
        query.new_empty(num_rows, num_heads, reads.num_parts, dtype=torch.float32) for _ in range(2)
    )
    out = query.new_empty(num_rows, num_heads, value_size)
    value_tile = max(MIN_SIZE, triton.next_power_of_2(value_size))
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        _attend_part[(num_rows, num_kv_heads, reads.num_parts)](
            *(query, pools.keys, pools.values, *scales),
            *(reads.table, reads.first, reads.stop),
            *(sums, tops, totals),
            reads.table.shape[1],
            parameters.scale,
            parameters.softcap or 0.0,
            has_softcap=parameters.softcap is not None,
            is_int8=is_int8,
            num_kv_heads=num_kv_heads,
            group=group,
            group_tile=max(MIN_SIZE, triton.next_power_of_2(group)),
            head_size=head_size,
            head_tile=max(MIN_SIZE, triton.next_power_of_2(head_size)),
            value_size=value_size,
            value_tile=value_tile,
            block_tokens=reads.block_tokens,
            part_tokens=PART_TOKENS,
            tile_tokens=TILE_TOKENS,
            is_interpreted=IS_INTERPRETED,
            enable_fp_fusion=True,
        )
        _merge_parts[(num_rows, num_heads)](
            *(sums, tops, totals, reads.first, reads.stop),
            query if parameters.sinks is None else parameters.sinks,
            out,
            reads.num_parts,
            has_sinks=parameters.sinks is not None,
            num_heads=num_heads,
            value_size=value_size,
            value_tile=value_tile,
            part_tokens=PART_TOKENS,
            enable_fp_fusion=True,
        )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _attend_part(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - a kernel has no objects
    query,
    keys,
    values,
    key_scales,
    value_scales,
    table,
    firsts,
    stops,
    sums,
    tops,
    totals,
    table_width,
    scale,
    softcap,
    has_softcap: tl.constexpr,
    is_int8: tl.constexpr,
    num_kv_heads: tl.constexpr,
    group: tl.constexpr,
    group_tile: tl.constexpr,
    head_size: tl.constexpr,
    head_tile: tl.constexpr,
    value_size: tl.constexpr,
    value_tile: tl.constexpr,
    block_tokens: tl.constexpr,
    part_tokens: tl.constexpr,
    tile_tokens: tl.constexpr,
    is_interpreted: tl.constexpr,
):
    """Attend to one part of a sequence with the heads that share a head of keys.

    Stores the weighted sum of the values, the largest score, and the sum of the weights.
    """
    row, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    first, stop = tl.load(firsts + row), tl.load(stops + row)
    begin = (first // part_tokens + part) * part_tokens
    if begin < stop:
        member, column = tl.arange(0, group_tile), tl.arange(0, head_tile)
        value_column = tl.arange(0, value_tile)
        head = row * num_kv_heads * group + kv_head * group + member
        is_query = (member < group)[:, None] & (column < head_size)[None, :]
        queries = tl.load(
            query + head[:, None] * head_size + column[None, :], mask=is_query, other=0.0
        )
        top = tl.full((group_tile,), float("-inf"), tl.float32)
        total = tl.zeros((group_tile,), tl.float32)
        weighted = tl.zeros((group_tile, value_tile), tl.float32)
        for offset in range(0, part_tokens, tile_tokens):
            position = begin + offset + tl.arange(0, tile_tokens)
            is_seen = (position >= first) & (position < stop)
            at_block = table + row * table_width + position // block_tokens
            slot = tl.load(at_block, mask=is_seen, other=0) * block_tokens + position % block_tokens
            at = slot * num_kv_heads + kv_head
            key = tl.load(
                keys + at[:, None] * head_size + column[None, :],
                mask=is_seen[:, None] & (column < head_size)[None, :],
                other=0,
            )
            value = tl.load(
                values + at[:, None] * value_size + value_column[None, :],
                mask=is_seen[:, None] & (value_column < value_size)[None, :],
                other=0,
            )
            if is_int8:
                key_scale = tl.load(key_scales + at, mask=is_seen, other=0.0)
                value_scale = tl.load(value_scales + at, mask=is_seen, other=0.0)
                key = (key.to(tl.float32) * key_scale[:, None]).to(queries.dtype)
                value = (value.to(tl.float32) * value_scale[:, None]).to(queries.dtype)
            if is_interpreted:  # it cannot multiply bfloat16; these products have the same values
                scores = tl.dot(
                    queries.to(tl.float32), key.to(tl.float32).trans(), input_precision="ieee"
                )
            else:
                scores = tl.dot(queries, key.trans(), input_precision="ieee")
            scores = scores * scale
            if has_softcap:  # tanh, which not every device has
                scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
            scores = tl.where(is_seen[None, :], scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            finite = tl.where(new_top == float("-inf"), 0.0, new_top)
            weights = tl.exp(scores - finite[:, None])
            kept = tl.exp(top - finite)
            total = total * kept + tl.sum(weights, 1)
            if is_interpreted:
                added = tl.dot(weights, value.to(tl.float32), input_precision="ieee")
            else:
                added = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
            weighted = weighted * kept[:, None] + added
            top = new_top
        place = head * tl.num_programs(2) + part
        is_member = member < group
        tl.store(tops + place, top, mask=is_member)
        tl.store(totals + place, total, mask=is_member)
        tl.store(
            sums + place[:, None] * value_size + value_column[None, :],
            weighted,
            mask=is_member[:, None] & (value_column < value_size)[None, :],
        )


@triton.jit  # type: ignore[untyped-decorator]
def _merge_parts(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - a kernel has no objects
    sums,
    tops,
    totals,
    firsts,
    stops,
    sinks,
    out,
    num_parts,
    has_sinks: tl.constexpr,
    num_heads: tl.constexpr,
    value_size: tl.constexpr,
    value_tile: tl.constexpr,
    part_tokens: tl.constexpr,
):
    """Merge the parts of one head of a sequence, in order."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, value_tile)
    is_column = column < value_size
    first, stop = tl.load(firsts + row), tl.load(stops + row)
    own_parts = (stop + part_tokens - 1) // part_tokens - first // part_tokens
    start = (row * num_heads + head) * num_parts
    top = tl.load(tops + start)
    total = tl.load(totals + start)
    weighted = tl.load(sums + start * value_size + column, mask=is_column, other=0.0)
    for part in range(1, own_parts):
        place = start + part
        other = tl.load(tops + place)
        new_top = tl.maximum(top, other)
        kept, added = tl.exp(top - new_top), tl.exp(other - new_top)
        total = total * kept + tl.load(totals + place) * added
        more = tl.load(sums + place * value_size + column, mask=is_column, other=0.0)
        weighted = weighted * kept + more * added
        top = new_top
    if has_sinks:
        sink = tl.load(sinks + head).to(tl.float32)
        new_top = tl.maximum(top, sink)
        kept = tl.exp(top - new_top)
        total = total * kept + tl.exp(sink - new_top)
        weighted = weighted * kept
    at = out + (row * num_heads + head) * value_size + column
    tl.store(at, (weighted / total).to(out.dtype.element_ty), mask=is_column)
