"""Drops the stored form of converted weights from memory, so that weights are not there twice.

A page of a mapped file stays resident after it was read. Linux drops it on request, and reads it
again when needed. Other systems drop pages when memory is short; there, this does nothing.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

MADV_DONTNEED = 4  # Linux's number
MAPS = Path("/proc/self/maps")


class MappedFiles:
    """The address ranges at which files are mapped in this process.

    Args:
        files: must not be written through their mapped memory; such writes would be lost.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        names = {os.fsencode(file.resolve()) for file in files}
        self._ranges = list(_ranges(names)) if sys.platform == "linux" else []
        self._advise = ctypes.CDLL(None).madvise if self._ranges else None

    def hold(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies in one of the files."""
        start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return any(first <= start and stop <= last for first, last in self._ranges)

    def drop(self, tensor: torch.Tensor) -> None:
        """Drop the pages that hold only this tensor, if it lies in one of the files."""
        if self._advise is None or not tensor.is_contiguous() or not self.hold(tensor):
            return
        first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        num_bytes = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if num_bytes > 0:
            self._advise(ctypes.c_void_p(first), ctypes.c_size_t(num_bytes), MADV_DONTNEED)


def _ranges(names: set[bytes]) -> Iterable[tuple[int, int]]:
    for line in MAPS.read_bytes().splitlines():
        bounds, *_, name = line.split(maxsplit=5)
        if name in names:
            start, stop = (int(part, 16) for part in bounds.split(b"-"))
            yield start, stop
