"""Calls the kernels of a model, so that ``vlmkit plan`` can measure the memory that they keep.

Libraries keep compiled kernels and buffers, and their code becomes resident when it runs. Layers
have small sizes here: the memory of a compiled kernel does not depend on them. Reads no weights.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from vlmkit_torch.devices.hardware import DTYPES
from vlmkit_torch.engine import packing
from vlmkit_torch.support import onednn

ROWS, WIDTH, HEADS, EDGE, PATCH = 256, 512, 8, 224, 14
STEP = 64  # by which packed layers differ


class Kernels(NamedTuple):
    """What a model calls.

    Attributes:
        dtype: the name of its precision.
        packed_rows: numbers of rows of products with packed weights.
        num_packed: how many sizes of packed layers there are; 0 without packing.
        packing_bytes: the most that packing takes besides the plain weights: those of one group of
            layers joined, and packed.
    """

    dtype: str
    packed_rows: tuple[int, ...]
    num_packed: int
    packing_bytes: int = 0


def kernels_of(
    decoder: nn.Module,
    head: nn.Module,
    dtype: torch.dtype,
    *,
    num_sequences: int,
    max_step_tokens: int,
    is_packed: bool,
) -> Kernels:
    """Return the kernels of a decoder.

    Args:
        decoder: without numbers.
        head: its output layer.
        dtype: of its weights.
        num_sequences: sequences that are decoded at once.
        max_step_tokens: tokens of the largest step; any smaller one has a chunk of a prompt.
        is_packed: whether linear layers are packed.
    """
    sizes = set(packing.packed_sizes(decoder, head)) if is_packed else set()
    decodes = range(1, num_sequences + 1)
    chunks = range(packing.MAX_PADDING, max_step_tokens + 1)
    rows = {packing.num_computed_rows(num) for num in (*decodes, *chunks)}
    packing_bytes = 2 * dtype.itemsize * max((inputs * outs for inputs, outs in sizes), default=0)
    name = str(dtype).removeprefix("torch.")
    return Kernels(name, tuple(sorted(rows)), len(sizes), packing_bytes)


def call(kernels: Kernels) -> None:
    """Call kernels in this thread: libraries free some of their memory when a thread ends."""
    onednn.limit_primitives()
    _call(kernels)


@torch.no_grad()
def _call(kernels: Kernels) -> None:
    dtype = DTYPES[kernels.dtype]
    for rows in (1, ROWS):
        for _ in _results(rows, dtype):
            continue
    for number in range(kernels.num_packed):
        linear = nn.Linear(WIDTH + STEP * number, WIDTH, bias=False).to(dtype)
        packed = packing.PackedWeights([linear])
        for rows in kernels.packed_rows:
            packed.product(0, torch.zeros(1, rows, linear.in_features, dtype=dtype))


def _results(rows: int, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Yield the result of each kind of kernel."""
    x = torch.zeros(rows, WIDTH, dtype=dtype)
    square = torch.zeros(WIDTH, WIDTH, dtype=dtype)
    yield functional.linear(x, square)
    yield torch.addmm(square[0], x, square)
    heads = x.view(1, rows, HEADS, -1).transpose(1, 2)
    mask = torch.zeros(rows, rows, dtype=dtype)
    yield functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    yield functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
    yield heads @ heads.transpose(-1, -2)
    pixels, patches = (torch.zeros(1, 3, edge, edge, dtype=dtype) for edge in (EDGE, PATCH))
    yield functional.conv2d(pixels, patches, stride=PATCH)
    yield functional.layer_norm(x, (WIDTH,))
    yield x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1).to(dtype)
    for activation in (functional.gelu, functional.silu, torch.tanh, torch.cos, torch.sin):
        yield activation(x)
    yield x.softmax(-1, dtype=torch.float32)
    yield x.index_select(0, torch.zeros(rows, dtype=torch.int64))
    yield functional.embedding(torch.zeros(rows, dtype=torch.int64), square)
    yield x.masked_scatter(x > 0, x)
    yield torch.cat([x, x.flip(0)]).isfinite().all().logical_or(x.argmax() > 0)
