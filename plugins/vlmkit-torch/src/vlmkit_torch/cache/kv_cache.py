"""The memory of keys and values: one pool of slots for each layer.

A slot stores one token. The block pool assigns slots to sequences. A sequence reads only slots that
it wrote or shares, and the slot of zeros. It must never read stale slots: a masked slot still takes
part in the arithmetic, and zero times infinity is not zero.

On a CPU the memory is reserved but not written: a page becomes resident when a token is written.
"""

import mmap
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

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


class KVCache:
    """Keys and values of ``num_slots`` tokens, and one slot of zeros after them.

    Args:
        num_slots: tokens that can be stored.
        device: that stores them.
        shapes: what each layer stores; other layers get a pool at their first write.
    """

    def __init__(
        self, num_slots: int, device: torch.device, shapes: Mapping[int, LayerShape] | None = None
    ) -> None:
        self.num_slots = num_slots
        self.device = device
        self._pools: dict[int, tuple[torch.Tensor, torch.Tensor]] = {
            index: (
                self._make_pool(shape.keys, shape.dtype),
                self._make_pool(shape.values, shape.dtype),
            )
            for index, shape in (shapes or {}).items()
        }

    @property
    def zero_slot(self) -> int:
        """The slot of zeros, which is never written."""
        return self.num_slots

    @property
    def shapes(self) -> dict[int, LayerShape]:
        """What each layer that was computed so far stores for each token."""
        return {
            index: LayerShape((k.shape[1], k.shape[2]), (v.shape[1], v.shape[2]), k.dtype)
            for index, (k, v) in self._pools.items()
        }

    def write(
        self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values; return the layer's pools ``[slots, kv_heads, head]``.

        Args:
            layer: index of the layer.
            slots: ``[tokens]`` slots to write.
            key: ``[kv_heads, tokens, head]``.
            value: ``[kv_heads, tokens, value_head]``.
        """
        if layer not in self._pools:
            self._pools[layer] = (
                self._make_pool((key.shape[0], key.shape[2]), key.dtype),
                self._make_pool((value.shape[0], value.shape[2]), value.dtype),
            )
        keys, values = self._pools[layer]
        keys[slots] = key.transpose(0, 1)
        values[slots] = value.transpose(0, 1)
        return keys, values

    def free(self) -> None:
        """Free all memory."""
        self._pools.clear()

    def _make_pool(self, row: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        shape = (self.num_slots + 1, *row)
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
