"""The memory of the KV cache: addresses are reserved, pages become resident when written."""

import ctypes
import mmap
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st

from vlmkit_torch.cache.int8 import dequantized, quantized
from vlmkit_torch.cache.kv_cache import Int8Pools, KVCache, LayerShape

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
HEADS, HEAD, NUM_SLOTS = 2, 64, 2**14


def resident_bytes(pool: torch.Tensor) -> int:
    """Return the resident bytes of a tensor, as Linux reports them."""
    num_pages = -(-pool.numel() * pool.itemsize // mmap.PAGESIZE)
    pages = (ctypes.c_ubyte * num_pages)()
    start = ctypes.c_void_p(pool.data_ptr())
    assert ctypes.CDLL(None).mincore(start, ctypes.c_size_t(num_pages * mmap.PAGESIZE), pages) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages as Linux tells them")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_become_resident_when_tokens_are_written_to_them(dtype: torch.dtype) -> None:
    shape = LayerShape((HEADS, HEAD), (HEADS, HEAD), dtype)
    cache = KVCache(NUM_SLOTS, CPU, {0: shape}, block_tokens=16)
    pools = keys, values = cache._pools[0]
    assert keys.shape == (NUM_SLOTS + 32, HEADS, HEAD), "and two blocks: zeros, padding"
    row_bytes = HEADS * HEAD * dtype.itemsize
    assert [resident_bytes(pool) for pool in (keys, values)] == [0, 0]

    some = torch.ones(HEADS, 3 * mmap.PAGESIZE // row_bytes, HEAD, dtype=dtype)
    pools.write(torch.arange(some.shape[1]), some, some)
    assert [resident_bytes(pool) for pool in (keys, values)] == [3 * mmap.PAGESIZE] * 2
    assert not keys[cache.zero_slot].any()
    assert not keys[some.shape[1] :].any()


@pytest.mark.skipif(sys.platform != "linux", reason="counts pages as Linux tells them")
def test_memory_returns_to_the_system_when_the_cache_is_freed() -> None:
    cache = KVCache(NUM_SLOTS, CPU, {0: LayerShape((HEADS, HEAD), (HEADS, HEAD), torch.float32)})
    first = cache._pools[0][0].data_ptr()
    cache.free()
    names = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [tuple(int(part, 16) for part in name.split("-")) for name in names]
    assert not any(start <= first < stop for start, stop in ranges)


def test_memory_that_the_system_does_not_reserve_is_a_memory_error() -> None:
    shape = LayerShape((1, 2**20), (1, 2**20), torch.float32)
    with pytest.raises(MemoryError):
        KVCache(2**40, CPU, {0: shape})


@given(
    exponent=st.integers(-44, 38),
    size=st.integers(1, 130),
    name=st.sampled_from(["float32", "bfloat16", "float16"]),
    seed=st.integers(0, 999),
)
def test_integers_are_as_near_as_half_a_step_and_rounding_them_again_changes_nothing(
    exponent: int, size: int, name: str, seed: int
) -> None:
    dtype = getattr(torch, name)
    random = torch.Generator().manual_seed(seed)
    vectors = (torch.randn(5, size, generator=random).double() * 10.0**exponent).to(dtype)
    vectors = vectors.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    integers, scales = quantized(vectors)
    read = dequantized(integers, scales, torch.float32)

    assert integers.abs().max() <= 127
    assert ((read - vectors.float()).abs() <= 0.5001 * scales[:, None]).all()
    again, same_scales = quantized(read)
    assert torch.equal(again, integers)
    torch.testing.assert_close(same_scales, scales)
    assert torch.isfinite(dequantized(integers, scales, dtype)).all(), "the largest fits"


def test_zeros_stay_zeros_and_values_that_are_not_finite_are_read_as_such() -> None:
    vectors = torch.zeros(4, 6)
    vectors[1, 2], vectors[2, 3], vectors[3] = torch.nan, torch.inf, 1.0
    read = dequantized(*quantized(vectors), torch.float32)

    assert not read[0].any()
    assert not torch.isfinite(read[1:3]).any(1).any()
    assert torch.equal(read[3], vectors[3])


def test_an_8_bit_cache_takes_the_bytes_that_its_shapes_state() -> None:
    shape = LayerShape((HEADS, HEAD), (HEADS, HEAD // 2), torch.bfloat16, is_int8=True)
    cache = KVCache(NUM_SLOTS, CPU, {0: shape}, block_tokens=16)
    pools = cache._pools[0]
    assert isinstance(pools, Int8Pools)
    assert shape.token_bytes == HEADS * (HEAD + HEAD // 2) + 2 * HEADS * 4
    assert sum(pool.nbytes for pool in pools[:4]) == (NUM_SLOTS + 32) * shape.token_bytes
