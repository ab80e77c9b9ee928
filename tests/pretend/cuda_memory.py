"""Simulated memory of a device: it counts the bytes of tensors, and runs out.

As torch's allocator, it keeps memory of freed tensors until ``empty_cache``. Nothing is fragmented.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch


class Memory:
    """The memory of one device.

    Attributes:
        total_bytes: of the device.
        num_bytes: of tensors.
        reserved_bytes: of tensors, and of freed ones that the allocator keeps.
        peak_bytes: the most that was reserved since the last reset.
    """

    def __init__(self, total_bytes: int = 2**33) -> None:
        self.total_bytes = total_bytes
        self.num_bytes = self.reserved_bytes = self.peak_bytes = 0
        self._known: dict[int, int] = {}  # bytes of each storage

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor, unless its memory is counted.

        Raises:
            torch.OutOfMemoryError: the device has too little memory.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        num_bytes = storage.nbytes()
        if self.num_bytes + num_bytes > self.total_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes} bytes")
        self._known[key] = num_bytes
        self.num_bytes += num_bytes
        self.reserved_bytes = max(self.reserved_bytes, self.num_bytes)
        self.peak_bytes = max(self.peak_bytes, self.reserved_bytes)
        weakref.finalize(storage, self._remove, key)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return what replaces functions of ``torch.cuda``, by name."""
        return {
            "mem_get_info": lambda *_: (self.total_bytes - self.reserved_bytes, self.total_bytes),
            "memory_reserved": lambda *_: self.reserved_bytes,
            "max_memory_reserved": lambda *_: self.peak_bytes,
            "reset_peak_memory_stats": self._reset_peak,
            "empty_cache": self._empty,
        }

    def _remove(self, key: int) -> None:
        self.num_bytes -= self._known.pop(key, 0)

    def _empty(self) -> None:
        self.reserved_bytes = self.num_bytes

    def _reset_peak(self, *_: Any) -> None:
        self.peak_bytes = self.reserved_bytes
