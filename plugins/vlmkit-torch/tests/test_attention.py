"""Attention over the paged cache equals attention written out token by token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from vlmkit_torch.attention import paged
from vlmkit_torch.attention.step import Chunk, DecodeGroup, LayerKind, Step, Visibility
from vlmkit_torch.grouping import FEW_BYTES, MOST_BYTES, MOST_PADDING, batches
from vlmkit_torch.kv_cache import KVCache

pytestmark = pytest.mark.torch

BLOCK, HEADS, KV_HEADS, HEAD, VALUE_HEAD = 4, 4, 2, 8, 6
CPU = torch.device("cpu")


@dataclass
class Owner:
    """One sequence: all its keys and values, its slots, and which tokens are new."""

    first: int
    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor

    @property
    def stop(self) -> int:
        return len(self.slots)


def owners_of(parts: list[tuple[int, int]], random: torch.Generator, blocks: list[int]) -> Any:
    for first, count in parts:
        num_tokens = first + count
        own = [blocks.pop() for _ in range(-(-num_tokens // BLOCK))]
        slots = (torch.tensor(own)[:, None] * BLOCK + torch.arange(BLOCK)).reshape(-1)
        yield Owner(
            first,
            torch.randn(KV_HEADS, num_tokens, HEAD, generator=random),
            torch.randn(KV_HEADS, num_tokens, VALUE_HEAD, generator=random),
            slots[:num_tokens],
        )


def written_out(
    query: torch.Tensor, owner: Owner, visible: Callable[[int, int], bool], more: dict[str, Any]
) -> torch.Tensor:
    """Return ``[count, heads, value_head]`` with a loop over heads and tokens."""
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


@settings(max_examples=60, deadline=None)
@given(
    decodes=st.lists(st.integers(0, 30), max_size=4),
    chunks=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=3),
    window=st.none() | st.integers(1, 12),
    softcap=st.none() | st.just(2.0),
    has_sinks=st.booleans(),
    is_shuffled=st.booleans(),
    num_batches=st.integers(1, 3),
    most_scores=st.sampled_from([1, 99, paged.MOST_SCORES]),
    seed=st.integers(0, 999),
)
def test_a_step_of_any_mixture_equals_attention_written_out(
    decodes: list[int],
    chunks: list[tuple[int, int]],
    window: int | None,
    softcap: float | None,
    has_sinks: bool,
    is_shuffled: bool,
    num_batches: int,
    most_scores: int,
    seed: int,
) -> None:
    parts = [(first, 1) for first in decodes] + chunks
    if not parts:
        return
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(80, generator=random) if is_shuffled else torch.arange(80).flip(0)
    owners = list(owners_of(parts, random, order.tolist()))
    cache = filled(owners)
    module, board = nn.Module(), paged.Board(cache)
    setattr(module, paged.SLOT, paged.Layer(board, 0, LayerKind("any", window)))
    board.step = step_of(owners, len(decodes), num_batches)
    counts = [owner.stop - owner.first for owner in owners]
    query = torch.randn(1, HEADS, sum(counts), HEAD, generator=random)
    new = [torch.cat([getattr(o, n)[:, o.first :] for o in owners], 1)[None] for n in NAMES]
    more = {"softcap": softcap, "s_aux": torch.randn(HEADS) if has_sinks else None}

    with mock.patch.object(paged, "MOST_SCORES", most_scores):
        found, _ = paged.attend(module, query, *new, None, scaling=0.3, **more)

    for rows, own, owner in zip(
        found[0].split(counts), query[0].split(counts, 1), owners, strict=True
    ):
        wanted = written_out(
            own, owner, lambda i, j: j <= i and (window is None or j > i - window), more
        )
        assert (rows - wanted).abs().max() < 1e-4


NAMES = ("keys", "values")


def filled(owners: list[Owner]) -> KVCache:
    """Return a cache of junk that holds what is computed already."""
    cache = KVCache(80 * BLOCK, CPU)
    everything = torch.arange(80 * BLOCK)
    junk = torch.full((KV_HEADS, 80 * BLOCK, 1), 1e3)
    cache.write(0, everything, junk.expand(-1, -1, HEAD), junk.expand(-1, -1, VALUE_HEAD))
    for owner in owners:
        if owner.first:
            done = slice(0, owner.first)
            cache.write(0, owner.slots[done], owner.keys[:, done], owner.values[:, done])
    return cache


def step_of(owners: list[Owner], num_decodes: int, num_batches: int = 1) -> Step:
    """Lay out the owners, the decodes cut into about so many batches."""
    size = max(1, -(-num_decodes // num_batches))
    starts = range(0, num_decodes, size)
    batch_ranges = [(start, min(start + size, num_decodes)) for start in starts]
    writes = torch.cat([owner.slots[owner.first :] for owner in owners])
    groups = []
    for start, stop in batch_ranges:
        own = [owner.slots for owner in owners[start:stop]]
        table = torch.full((len(own), max(map(len, own))), 80 * BLOCK)
        for row, slots in zip(table, own, strict=True):
            row[: len(slots)] = slots
        is_run = len(own) == 1 and bool((own[0].diff() == 1).all())
        run = int(own[0][0]) if is_run else None
        lengths = [len(slots) for slots in own]
        groups.append(DecodeGroup((start, stop), table, lengths, torch.float32, run))
    chunks, row = [], num_decodes
    for owner in owners[num_decodes:]:
        stop = row + owner.stop - owner.first
        chunks.append(Chunk((row, stop), owner.first, owner.slots, torch.float32))
        row = stop
    return Step(writes, tuple(groups), tuple(chunks))


def test_a_mask_of_the_family_replaces_the_causal_one() -> None:
    random = torch.Generator().manual_seed(0)
    [owner] = owners_of([(3, 6)], random, list(range(9)))
    stop = torch.tensor([9, 9, 9, 7, 8, 9])
    start = torch.tensor([0, 1, 2, 0, 0, 5])
    views = {"full_attention": Visibility(start, stop)}
    module, board = nn.Module(), paged.Board(filled([owner]))
    setattr(module, paged.SLOT, paged.Layer(board, 0, LayerKind("full_attention")))
    chunk = Chunk((0, 6), 3, owner.slots, torch.float32, views)
    board.step = Step(owner.slots[3:], (), (chunk,))
    query = torch.randn(1, HEADS, 6, HEAD, generator=random)
    more = {"softcap": None, "s_aux": None}

    new = (owner.keys[None, :, 3:], owner.values[None, :, 3:])
    found, _ = paged.attend(module, query, *new, None, scaling=0.3)
    wanted = written_out(query[0], owner, lambda i, j: start[i - 3] <= j < stop[i - 3], more)

    assert (found[0] - wanted).abs().max() < 1e-5


def test_attention_outside_a_step_is_an_error() -> None:
    module = nn.Module()
    setattr(module, paged.SLOT, paged.Layer(paged.Board(KVCache(4, CPU)), 0, LayerKind("any")))
    row = torch.zeros(1, 1, 1, HEAD)

    with pytest.raises(RuntimeError, match="outside a step"):
        paged.attend(module, row, row, row, None)


@given(lengths=st.lists(st.integers(1, 200_000), max_size=64), token_bytes=st.integers(1, 2**14))
def test_batches_take_all_rows_in_order_and_are_bounded(
    lengths: list[int], token_bytes: int
) -> None:
    lengths = sorted(lengths)
    ranges = batches(lengths, token_bytes)

    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(len(lengths)))
    for start, stop in ranges:
        num_bytes = (stop - start) * lengths[stop - 1] * token_bytes
        assert stop - start == 1 or num_bytes <= MOST_BYTES
        if num_bytes > FEW_BYTES:
            assert lengths[stop - 1] <= MOST_PADDING * lengths[start]


def test_one_long_row_widens_no_others() -> None:
    lengths = [1000] * 63 + [131_072]  # at 4 KiB a token, 32 GiB in one batch

    assert batches(lengths, 4096) == [(0, 63), (63, 64)]
    assert batches([10, 20, 100, 400], 1024) == [(0, 4)], "a small batch is not split"
