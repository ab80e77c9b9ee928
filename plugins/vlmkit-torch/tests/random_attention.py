"""Random steps over layers of every form, for comparing a backend with attention written out."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from vlmkit_torch.attention.layer_kind import LayerKind, Visibility
from vlmkit_torch.interfaces.torch_attention import (
    AttentionBackend,
    AttentionCapabilities,
    LayerNeeds,
)
from vlmkit_torch.testing.attention_case import AttentionCase, Part, needs_of, plain_layer

CPU = torch.device("cpu")
KINDS = (
    LayerKind("full_attention"),
    LayerKind("sliding_attention", window=5),
    LayerKind("sliding_attention", window=40),
    LayerKind("chunked_attention", section=7),
)
HEADS = ((4, 2), (4, 4), (6, 2), (8, 1))
SIZES = ((8, 8), (20, 12), (64, 64))
TABLE_BLOCKS = 32
TOLERANCE = 2e-5


def agree_on_random_steps(make: Callable[[], AttentionBackend], num_steps: int, seed: int) -> None:
    """Compare a backend with attention that is written out, over what it states."""
    dice = random.Random(seed)
    for number in range(num_steps):
        backend = make()
        stated = backend.capabilities
        layer = random_layer(dice, stated)
        has_int8_cache = stated.int8_cache and dice.random() < 0.3
        has_spans = stated.image_spans and dice.random() < 0.3
        parts, num_decodes = random_step(dice, has_spans=has_spans)
        backend.prepare(
            needs_of([layer], CPU, has_image_spans=has_spans, has_int8_cache=has_int8_cache)
        )
        case = AttentionCase(
            *(layer, parts, CPU),
            num_decodes=num_decodes,
            stale=torch.nan,
            seed=number,
            has_int8_cache=has_int8_cache,
        )
        if stated.fixed_shapes and num_decodes == len(parts) and dice.random() < 0.5:
            case.widen(TABLE_BLOCKS)
        found = case.run(backend).double()
        torch.testing.assert_close(found, case.written_out(), atol=TOLERANCE, rtol=0)


def random_layer(dice: random.Random, stated: AttentionCapabilities) -> LayerNeeds:
    """Return a layer that a backend supports."""
    heads, kv_heads = dice.choice(HEADS)
    head_size, value_size = dice.choice(SIZES)
    return replace(
        plain_layer(torch.float32, head_size),
        kind=dice.choice([kind for kind in KINDS if supports(stated, kind)]),
        num_heads=heads,
        num_kv_heads=kv_heads,
        value_head_size=value_size if stated.unequal_head_sizes else head_size,
        softcap=dice.choice((None, 0.7)) if stated.softcaps else None,
        has_sinks=stated.sinks and dice.random() < 0.3,
    )


def supports(stated: AttentionCapabilities, kind: LayerKind) -> bool:
    """Return whether a backend computes layers of a kind."""
    return (kind.window is None or stated.sliding_windows) and (
        kind.section is None or stated.chunked_attention
    )


def random_step(dice: random.Random, *, has_spans: bool) -> tuple[list[Part], int]:
    """Return up to three decodes and a chunk, and how many are decodes."""
    decodes = [Part(dice.randrange(1, 60), 1) for _ in range(dice.randrange(4))]
    chunks = [random_chunk(dice, has_spans=has_spans) for _ in range(dice.randrange(2))]
    return [*decodes, *chunks] or [Part(9, 1)], len(decodes) if decodes or chunks else 1


def random_chunk(dice: random.Random, *, has_spans: bool) -> Part:
    """Return a chunk whose tokens may see each other, or may not see some earlier ones."""
    first, count = dice.randrange(20), dice.randrange(1, 12)
    if not has_spans:
        return Part(first, count)
    length = first + count
    begin = dice.randrange(first, length)
    end = dice.randrange(begin, length) + 1
    index = np.arange(length)
    stop = np.where((index >= begin) & (index < end), end, index + 1)
    dense = None
    if dice.random() < 0.5:
        dense = torch.rand(length, length, generator=torch.Generator().manual_seed(first)) > 0.3
        dense |= torch.eye(length, dtype=torch.bool)
    view = Visibility(np.zeros(length, dtype=np.int64), stop, dense)
    return Part(first, count, {"full_attention": view.cut(first, length)})
