"""The memory of keys and values: one pool of slots for each layer.

A pool has the precision of the model, or 8 bits with a scale for each token and head (``int8``).

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
from typing import NamedTuple, TypeAlias

import torch

from vlmkit_torch.cache.int8 import SCALE_DTYPE, dequantized, quantized


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer stores for each token: ``[kv_heads, head]`` of keys and of values.

    Attributes:
        keys: heads of the keys, and their size.
        values: heads of the values, and their size.
        dtype: in which they are read.
        is_int8: whether they are stored in 8 bits, with a scale for each head.
    """

    keys: tuple[int, int]
    values: tuple[int, int]
    dtype: torch.dtype
    is_int8: bool = False

    @property
    def token_bytes(self) -> int:
        """Bytes for each token, scales included."""
        numbers = self.keys[0] * self.keys[1] + self.values[0] * self.values[1]
        if self.is_int8:
            return numbers + (self.keys[0] + self.values[0]) * SCALE_DTYPE.itemsize
        return numbers * self.dtype.itemsize


class KVPools(NamedTuple):
    """The keys and values of one layer: of all blocks, of one of zeros, and of one for padding.

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

    def read_keys(self, slots: torch.Tensor | slice) -> torch.Tensor:
        """Return ``[tokens, kv_heads, head]``; adjacent slots, as a slice, without a copy."""
        return _rows(self.keys, slots)

    def read_values(self, slots: torch.Tensor | slice) -> torch.Tensor:
        """Return ``[tokens, kv_heads, value_head]``; see :meth:`read_keys`."""
        return _rows(self.values, slots)

    def blocks(self, block_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pools as ``[blocks, block_tokens, kv_heads, head]``, without a copy."""
        keys, values = (pool.view(-1, block_tokens, *pool.shape[1:]) for pool in self)
        return keys, values


class Int8Pools(NamedTuple):
    """The keys and values of one layer in 8 bits, with a scale for each token and head.

    A number is its integer times the scale. Slots are those of :class:`KVPools`.

    Attributes:
        keys: int8 ``[slots, kv_heads, head]``, contiguous.
        values: int8 ``[slots, kv_heads, value_head]``, contiguous.
        key_scales: float32 ``[slots, kv_heads]``, contiguous.
        value_scales: float32 ``[slots, kv_heads]``, contiguous.
        dtype: in which keys and values are read.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor
    value_scales: torch.Tensor
    dtype: torch.dtype

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Round and store new keys and values.

        Args:
            slots: ``[tokens]`` slots to write.
            key: ``[kv_heads, tokens, head]``.
            value: ``[kv_heads, tokens, value_head]``.
        """
        self.keys[slots], self.key_scales[slots] = quantized(key.transpose(0, 1))
        self.values[slots], self.value_scales[slots] = quantized(value.transpose(0, 1))

    def read_keys(self, slots: torch.Tensor | slice) -> torch.Tensor:
        """Return ``[tokens, kv_heads, head]`` of ``dtype``."""
        return dequantized(_rows(self.keys, slots), _rows(self.key_scales, slots), self.dtype)

    def read_values(self, slots: torch.Tensor | slice) -> torch.Tensor:
        """Return ``[tokens, kv_heads, value_head]`` of ``dtype``."""
        return dequantized(_rows(self.values, slots), _rows(self.value_scales, slots), self.dtype)

    def of_heads(self, start: int, stop: int) -> "Int8Pools":
        """Return the pools of heads ``[start, stop)`` of keys and values, without a copy."""
        keys, values, key_scales, value_scales = (pool[:, start:stop] for pool in self[:4])
        return Int8Pools(keys, values, key_scales, value_scales, self.dtype)


Pools: TypeAlias = KVPools | Int8Pools


class KVCache:
    """Keys and values of ``num_slots`` tokens, and after them a block of zeros and one for padding.

    Args:
        num_slots: tokens that can be stored, a multiple of ``block_tokens``.
        device: that stores them.
        shapes: what each layer stores; other layers get a pool at their first write.
        block_tokens: tokens in a block.
        is_int8: whether other layers store 8 bits.

    Attributes:
        shapes: what each layer that was computed so far stores for each token.
    """

    def __init__(
        self,
        num_slots: int,
        device: torch.device,
        shapes: Mapping[int, LayerShape] | None = None,
        *,
        block_tokens: int = 1,
        is_int8: bool = False,
    ) -> None:
        self.num_slots = num_slots
        self.device = device
        self._block_tokens = block_tokens
        self._is_int8 = is_int8
        self.shapes = dict(shapes or {})
        self._pools = {index: self._make_pools(shape) for index, shape in self.shapes.items()}

    @property
    def zero_slot(self) -> int:
        """The first slot of the block of zeros, which is never written."""
        return self.num_slots

    @property
    def padding_slot(self) -> int:
        """The slot that padding of a step writes; no sequence reads it."""
        return self.num_slots + self._block_tokens

    def pools(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> Pools:
        """Return the pools of a layer; make them at its first call.

        Args:
            layer: index of the layer.
            key: ``[kv_heads, tokens, head]`` of any tokens, for the shape.
            value: ``[kv_heads, tokens, value_head]``, likewise.
        """
        if layer not in self._pools:
            keys, values = ((new.shape[0], new.shape[2]) for new in (key, value))
            shape = LayerShape(keys, values, key.dtype, self._is_int8)
            self.shapes[layer], self._pools[layer] = shape, self._make_pools(shape)
        return self._pools[layer]

    def free(self) -> None:
        """Free all memory."""
        self._pools.clear()

    def _make_pools(self, shape: LayerShape) -> Pools:
        dtype = torch.int8 if shape.is_int8 else shape.dtype
        keys, values = (self._zeros(row, dtype) for row in (shape.keys, shape.values))
        if not shape.is_int8:
            return KVPools(keys, values)
        key_scales, value_scales = (
            self._zeros(row[:1], SCALE_DTYPE) for row in (shape.keys, shape.values)
        )
        return Int8Pools(keys, values, key_scales, value_scales, shape.dtype)

    def _zeros(self, row: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        shape = (self.num_slots + 2 * self._block_tokens, *row)
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=self.device)
        return _unwritten_zeros(prod(shape) * dtype.itemsize).view(dtype).view(shape)


def _rows(pool: torch.Tensor, slots: torch.Tensor | slice) -> torch.Tensor:
    return pool[slots] if isinstance(slots, slice) else pool.index_select(0, slots)


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
