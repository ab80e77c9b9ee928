"""The memory of keys and values: one pool of slots for each layer.

A slot stores one token. The block pool assigns slots to sequences, a block (page) of adjacent slots
at a time. A sequence reads only slots that it wrote or shares, and those of a block of zeros. It
must never read stale slots: a masked slot still takes part in the arithmetic, and zero times
infinity is not zero.

On a CPU the memory is reserved but not written: a page becomes resident when a token is written.
"""

import mmap
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer stores for each token: ``[kv_heads, head]`` of keys and of values."""

    keys: tuple[int, int]
    values: tuple[int, int]
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes for each token."""
        numbers = self.keys[0] * self.keys[1] + self.values[0] * self.values[1]
        return numbers * self.dtype.itemsize


class KVPools(NamedTuple):
    """The keys and values of one layer, of all blocks and of a last block of zeros.

    Attributes:
        keys: ``[slots, kv_heads, head]``, contiguous.
        values: ``[slots, kv_heads, value_head]``, contiguous.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store new keys and values.

        Args:
            slots: ``[tokens]`` slots to write.
            key: ``[kv_heads, tokens, head]``.
            value: ``[kv_heads, tokens, value_head]``.
        """
        self.keys[slots] = key.transpose(0, 1)
        self.values[slots] = value.transpose(0, 1)

    def blocks(self, block_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pools as ``[blocks, block_tokens, kv_heads, head]``, without a copy."""
        keys, values = (pool.view(-1, block_tokens, *pool.shape[1:]) for pool in self)
        return keys, values


class KVCache:
    """Keys and values of ``num_slots`` tokens, and one block of zeros after them.

    Args:
        num_slots: tokens that can be stored, a multiple of ``block_tokens``.
        device: that stores them.
        shapes: what each layer stores; other layers get a pool at their first write.
        block_tokens: tokens in a block.
    """

    def __init__(
        self,
        num_slots: int,
        device: torch.device,
        shapes: Mapping[int, LayerShape] | None = None,
        *,
        block_tokens: int = 1,
    ) -> None:
        self.num_slots = num_slots
        self.device = device
        self._block_tokens = block_tokens
        self._pools: dict[int, KVPools] = {
            index: KVPools(
                self._make_pool(shape.keys, shape.dtype),
                self._make_pool(shape.values, shape.dtype),
            )
            for index, shape in (shapes or {}).items()
        }

    @property
    def zero_slot(self) -> int:
        """The first slot of the block of zeros, which is never written."""
        return self.num_slots

    @property
    def shapes(self) -> dict[int, LayerShape]:
        """What each layer that was computed so far stores for each token."""
        return {
            index: LayerShape((k.shape[1], k.shape[2]), (v.shape[1], v.shape[2]), k.dtype)
            for index, (k, v) in self._pools.items()
        }

    def pools(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> KVPools:
        """Return the pools of a layer; make them at its first call.

        Args:
            layer: index of the layer.
            key: ``[kv_heads, tokens, head]`` of any tokens, for the shape.
            value: ``[kv_heads, tokens, value_head]``, likewise.
        """
        if layer not in self._pools:
            self._pools[layer] = KVPools(
                self._make_pool((key.shape[0], key.shape[2]), key.dtype),
                self._make_pool((value.shape[0], value.shape[2]), value.dtype),
            )
        return self._pools[layer]

    def free(self) -> None:
        """Free all memory."""
        self._pools.clear()

    def _make_pool(self, row: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        shape = (self.num_slots + self._block_tokens, *row)
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=self.device)
        return _unwritten_zeros(prod(shape) * dtype.itemsize).view(dtype).view(shape)


def _unwritten_zeros(num_bytes: int) -> torch.Tensor:
    """Return zeros whose pages are not resident; ``torch.zeros`` writes every page.

    The pages belong to no heap, so they return to the system when the tensor is freed.

    Raises:
        MemoryError: the system cannot reserve that much.
    """
    try:
        if sys.platform == "win32":
            pages = mmap.mmap(-1, num_bytes)
        else:
            # The default on POSIX is shared memory, which containers limit separately.
            pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes} bytes for keys and values: {error.strerror}") from error
    return torch.frombuffer(pages, dtype=torch.uint8)
