"""Keeps converted weights from being in memory twice: as stored, and as computed with.

A page of a mapped file stays resident after it was read. Linux drops it when told, and reads it
again if it is needed; elsewhere nothing is done, and the system drops pages when memory is short.
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
    """Where some files are mapped in this process now.

    Args:
        files: that nobody wrote to by their mapped memory, for what was written would be lost.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        names = {os.fsencode(file.resolve()) for file in files}
        self._ranges = list(_ranges(names)) if sys.platform == "linux" else []
        self._advise = ctypes.CDLL(None).madvise if self._ranges else None

    def hold(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor lies in one of the files."""
        start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return any(first <= start and stop <= last for first, last in self._ranges)

    def drop(self, tensor: torch.Tensor) -> None:
        """Drop the pages that hold nothing but a tensor, if it lies in one of the files."""
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
