"""Attention over the paged cache equals attention computed token by token."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from vlmkit_torch.attention import key_ranges, paged, sdpa
from vlmkit_torch.attention.grouping import MAX_BATCH_BYTES, ReadCosts
from vlmkit_torch.attention.layer_kind import LayerKind, Visibility
from vlmkit_torch.attention.step import NewTokens, Step, step_tokens
from vlmkit_torch.cache.int8 import dequantized, quantized
from vlmkit_torch.cache.kv_cache import KVCache
from vlmkit_torch.devices.uploads import Uploads

pytestmark = pytest.mark.torch

BLOCK, HEADS, KV_HEADS, HEAD, VALUE_HEAD = 4, 4, 2, 8, 6
CPU = torch.device("cpu")


@dataclass
class Owner:
    """A sequence: its keys and values, its slots and its new tokens."""

    first: int
    keys: torch.Tensor
    values: torch.Tensor
    slots: np.ndarray

    @property
    def stop(self) -> int:
        return len(self.slots)

    @property
    def source(self) -> NewTokens:
        return NewTokens(self.first, self.slots)

    def as_stored(self, is_int8: bool) -> "Owner":
        """Return the sequence with all its keys and values as the cache holds them."""
        if not is_int8:
            return self
        keys, values = (
            dequantized(*quantized(each), torch.float32) for each in (self.keys, self.values)
        )
        return replace(self, keys=keys, values=values)


def owners_of(parts: list[tuple[int, int]], random: torch.Generator, blocks: list[int]) -> Any:
    for first, count in parts:
        num_tokens = first + count
        own = [blocks.pop() for _ in range(-(-num_tokens // BLOCK))]
        slots = (np.array(own)[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)
        yield Owner(
            first,
            torch.randn(KV_HEADS, num_tokens, HEAD, generator=random),
            torch.randn(KV_HEADS, num_tokens, VALUE_HEAD, generator=random),
            slots[:num_tokens],
        )


def written_out(
    query: torch.Tensor, owner: Owner, visible: Callable[[int, int], bool], more: dict[str, Any]
) -> torch.Tensor:
    """Return ``[count, heads, value_head]``, computed by a loop over heads and tokens."""
    rows = []
    for offset in range(owner.stop - owner.first):
        index = owner.first + offset
        seen = [j for j in range(owner.stop) if visible(index, j)]
        heads = []
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = owner.keys[group, seen] @ query[head, offset] * 0.3
            if more["softcap"] is not None:
                scores = torch.tanh(scores / more["softcap"]) * more["softcap"]
            if more["s_aux"] is not None:
                scores = torch.cat([scores, more["s_aux"][head : head + 1]])
            weights = scores.softmax(-1)[: len(seen)]
            heads.append(weights @ owner.values[group, seen])
        rows.append(torch.stack(heads))
    return torch.stack(rows)


@settings(max_examples=120)
@given(
    decodes=st.lists(st.integers(0, 30), max_size=4),
    chunks=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=3),
    window=st.none() | st.integers(1, 12),
    softcap=st.none() | st.just(2.0),
    has_sinks=st.booleans(),
    order=st.sampled_from(["ascending", "descending", "shuffled", "nearly ascending"]),
    call_tokens=st.integers(1, 40),
    may_split=st.booleans(),
    most_scores=st.sampled_from([1, 99, sdpa.MAX_SCORES]),
    is_int8=st.booleans(),
    most_bytes=st.sampled_from([1, MAX_BATCH_BYTES]),
    seed=st.integers(0, 999),
)
def test_a_step_of_any_mixture_equals_attention_written_out(
    decodes: list[int],
    chunks: list[tuple[int, int]],
    window: int | None,
    softcap: float | None,
    has_sinks: bool,
    order: str,
    call_tokens: int,
    may_split: bool,
    most_scores: int,
    is_int8: bool,
    most_bytes: int,
    seed: int,
) -> None:
    parts = [(first, 1) for first in sorted(decodes)] + chunks
    if not parts:
        return
    random = torch.Generator().manual_seed(seed)
    owners = list(owners_of(parts, random, blocks_in(order, random)))
    cache = filled(owners, is_int8=is_int8)
    costs = ReadCosts(1, call_tokens, may_split or is_int8, reads_in_place=not is_int8)
    backend = sdpa.SdpaAttention(costs)
    module, context = nn.Module(), paged.AttentionContext(cache, backend)
    setattr(module, paged.LAYER_ATTRIBUTE, paged.Layer(context, 0, LayerKind("any", window)))
    context.step = step_of(owners, len(decodes), backend)
    counts = [owner.stop - owner.first for owner in owners]
    query = torch.randn(1, HEADS, sum(counts), HEAD, generator=random)
    new = [torch.cat([getattr(o, n)[:, o.first :] for o in owners], 1)[None] for n in NAMES]
    more = {"softcap": softcap, "s_aux": torch.randn(HEADS) if has_sinks else None}

    with mock.patch.multiple(sdpa, MAX_SCORES=most_scores, MAX_BATCH_BYTES=most_bytes):
        found, _ = paged.attend(module, query, *new, None, scaling=0.3, **more)

    for rows, own, owner in zip(
        found[0].split(counts), query[0].split(counts, 1), owners, strict=True
    ):
        wanted = written_out(
            own,
            owner.as_stored(is_int8),
            lambda i, j: j <= i and (window is None or j > i - window),
            more,
        )
        assert (rows - wanted).abs().max() < 1e-4


NAMES = ("keys", "values")


def filled(owners: list[Owner], *, is_int8: bool = False) -> KVCache:
    """Return a cache with the computed keys and values, and NaN elsewhere."""
    cache = KVCache(80 * BLOCK, CPU, block_tokens=BLOCK, is_int8=is_int8)
    everything = torch.arange(80 * BLOCK)
    junk = torch.full((KV_HEADS, 80 * BLOCK, 1), torch.nan)
    new = (junk.expand(-1, -1, HEAD), junk.expand(-1, -1, VALUE_HEAD))
    cache.pools(0, *new).write(everything, *new)
    for owner in owners:
        if owner.first:
            done, slots = slice(0, owner.first), torch.from_numpy(owner.slots)
            new = (owner.keys[:, done], owner.values[:, done])
            cache.pools(0, *new).write(slots[done], *new)
    return cache


def blocks_in(order: str, random: torch.Generator) -> list[int]:
    """Return the blocks of a pool so that ``pop`` returns them in a given order."""
    blocks: list[int] = torch.randperm(80, generator=random).tolist()
    if order != "shuffled":
        blocks.sort(reverse=order != "descending")
    if order == "nearly ascending":
        blocks[-9], blocks[-2] = blocks[-2], blocks[-9]
    return blocks


def step_of(owners: list[Owner], num_decodes: int, backend: sdpa.SdpaAttention) -> Step:
    sources = [owner.source for owner in owners]
    return step_with(sources[:num_decodes], sources[num_decodes:], backend)


def step_with(
    decodes: list[NewTokens], chunks: list[NewTokens], backend: sdpa.SdpaAttention
) -> Step:
    return Step(step_tokens(decodes, chunks, BLOCK, 80 * BLOCK, Uploads(CPU)), backend)


def test_a_mask_of_the_family_replaces_the_causal_one() -> None:
    random = torch.Generator().manual_seed(0)
    [owner] = owners_of([(3, 6)], random, list(range(9)))
    stop = np.array([9, 9, 9, 7, 8, 9])
    start = np.array([0, 1, 2, 0, 0, 5])
    views = {"full_attention": Visibility(start, stop)}
    backend = sdpa.SdpaAttention(ReadCosts(1, 1, may_split=True))
    module, context = nn.Module(), paged.AttentionContext(filled([owner]), backend)
    setattr(module, paged.LAYER_ATTRIBUTE, paged.Layer(context, 0, LayerKind("full_attention")))
    source = NewTokens(3, owner.slots, views)
    context.step = step_with([], [source], backend)
    query = torch.randn(1, HEADS, 6, HEAD, generator=random)
    more = {"softcap": None, "s_aux": None}

    new = (owner.keys[None, :, 3:], owner.values[None, :, 3:])
    found, _ = paged.attend(module, query, *new, None, scaling=0.3)
    wanted = written_out(query[0], owner, lambda i, j: start[i - 3] <= j < stop[i - 3], more)

    assert (found[0] - wanted).abs().max() < 1e-5


def test_attention_outside_a_step_is_an_error() -> None:
    module = nn.Module()
    setattr(
        module,
        paged.LAYER_ATTRIBUTE,
        paged.Layer(
            paged.AttentionContext(KVCache(4, CPU), sdpa.SdpaAttention()), 0, LayerKind("any")
        ),
    )
    row = torch.zeros(1, 1, 1, HEAD)

    with pytest.raises(RuntimeError, match="outside a step"):
        paged.attend(module, row, row, row, None)


@given(
    lengths=st.lists(st.integers(1, 200_000), max_size=64),
    token_bytes=st.integers(1, 2**14),
    call_bytes=st.integers(1, 2**24),
)
def test_batches_take_all_rows_in_order_and_are_bounded(
    lengths: list[int], token_bytes: int, call_bytes: int
) -> None:
    costs = ReadCosts(token_bytes, call_bytes, may_split=True)
    ranges = costs.batches(sorted(lengths))

    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(len(lengths)))
    padding = 0
    for start, stop in ranges:
        rows = sorted(lengths)[start:stop]
        assert stop - start == 1 or len(rows) * rows[-1] * token_bytes <= MAX_BATCH_BYTES
        padding += len(rows) * rows[-1] - sum(rows)
    assert padding <= len(ranges) * costs.call_tokens, "no more than as many calls would cost"


def test_a_batch_of_8_bits_is_as_large_as_a_cpu_holds_in_its_cache() -> None:
    costs = ReadCosts(512, 2**19, may_split=True, reads_in_place=False)

    assert costs.batches([250] * 8) == [(0, 8)]
    assert costs.batches([1000] * 8) == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_one_long_row_does_not_widen_the_others() -> None:
    on_cpu, on_gpu = ReadCosts(4096, 2**19, may_split=True), ReadCosts(4096, 2**24, may_split=False)
    lengths = [100] * 63 + [131_072]  # at 4 KiB a token, 32 GiB in one batch

    assert on_cpu.batches(lengths) == on_gpu.batches(lengths) == [(0, 63), (63, 64)]
    assert on_gpu.batches([10, 20, 100, 400]) == [(0, 4)], "a small batch is not split"
    assert on_cpu.batches([400, 400, 400]) == [(0, 1), (1, 2), (2, 3)], "each is read in place"


def read_by(
    first: int, slots: list[int], kind: LayerKind, call_tokens: int = 8, *, in_place: bool = True
) -> list[Any]:
    """Return the reads of a single decoding sequence: slices and lists of gathered slots."""
    costs = ReadCosts(1, call_tokens, may_split=True, reads_in_place=in_place)
    [own] = key_ranges.decode_ranges(
        kind, [NewTokens(first, np.array(slots))], costs, 999, Uploads(CPU)
    )
    return [part if isinstance(part, slice) else part.tolist() for part in own.parts]


def test_adjacent_slots_are_read_in_place_in_any_order() -> None:
    full = LayerKind("full")
    ascending, behind = [*range(40, 60)], [*range(20, 40)]

    assert read_by(19, ascending, full) == [slice(40, 60)]
    assert read_by(39, [*ascending, *behind], full) == [slice(20, 60)]
    assert read_by(24, [*ascending, 80, 81, 7, 8, 9], full) == [slice(40, 60), [7, 8, 9, 80, 81]]
    assert read_by(19, ascending, LayerKind("window", window=5)) == [slice(55, 60)]


def test_scattered_slots_are_gathered_a_few_at_a_time() -> None:
    apart = [*range(0, 60, 3)]

    assert read_by(19, apart, LayerKind("full"), call_tokens=4) == [
        apart[:8],
        apart[8:16],
        apart[16:],
    ]


def test_slots_of_8_bits_are_expanded_a_few_at_a_time() -> None:
    adjacent, apart = [*range(40, 60)], [*range(0, 60, 3)]

    pieces = [slice(40, 48), slice(48, 56), slice(56, 60)]
    assert read_by(19, adjacent, LayerKind("full"), 4, in_place=False) == pieces
    pieces = [apart[:8], apart[8:16], apart[16:]]
    assert read_by(19, apart, LayerKind("full"), 4, in_place=False) == pieces
