"""Moves the weights of an open session to huge pages, from which a CPU reads them faster.

A decoder reads all its weights for each token. Systems give huge pages only on request, and the
allocators of ONNX Runtime and of most C libraries do not ask. Works on Linux from 6.1 on, and has
no effect elsewhere. The contents of memory do not change.
"""

import contextlib
import ctypes
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = 2 * 2**20
MIN_BYTES = 2 * PAGE_BYTES  # a smaller area may hold no whole page
MIN_WEIGHTS_BYTES = 16 * PAGE_BYTES  # smaller models are read from a CPU's caches
MIN_RESIDENT = 0.95  # of an area: filling the rest of its pages costs memory
MADV_COLLAPSE = 25  # the mmap module of Python 3.11 does not name it
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
AREAS = Path("/proc/self/smaps")


class Area(NamedTuple):
    """Adjacent private memory of this process without a file: an address, and sizes in bytes."""

    start: int
    size: int
    resident: int
    in_huge_pages: int


def move_resident() -> int:
    """Move large resident areas of this process to huge pages; return how many bytes they have.

    Copies memory, which takes a second for some gigabytes. Areas that the system has excluded, and
    systems whose administrator has disabled huge pages, are left unchanged.
    """
    if not _is_allowed():
        return 0
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    num_bytes = 0
    with contextlib.suppress(OSError), AREAS.open() as lines:  # a container may hide the file
        for start, size in [*map(_whole_pages, filter(_is_worth_it, areas(lines)))]:
            if advise(start, size, MADV_COLLAPSE) == 0:  # otherwise some stay in small pages
                num_bytes += size
    return num_bytes


def areas(lines: Iterable[str]) -> Iterator[Area]:
    """Yield the areas that are listed in the format of ``/proc/PID/smaps``."""
    start = end = 0
    sizes: dict[str, int] = {}
    for line in lines:
        first, *rest = line.split()
        if first.endswith(":"):
            if first in {"Rss:", "AnonHugePages:"}:
                sizes[first] = int(rest[0]) * 1024
            if first == "VmFlags:" and end:
                yield Area(start, end - start, sizes["Rss:"], sizes["AnonHugePages:"])
        else:
            is_private = rest[0] == "rw-p" and len(rest) == 4  # without the name of a file
            start, end = (int(text, 16) for text in first.split("-")) if is_private else (0, 0)


def _is_allowed() -> bool:
    try:
        return "[never]" not in SETTING.read_text()
    except OSError:  # another system, or a kernel without huge pages
        return False


def _is_worth_it(area: Area) -> bool:
    is_large = area.size >= MIN_BYTES and area.resident >= MIN_RESIDENT * area.size
    return is_large and area.in_huge_pages < MIN_RESIDENT * area.resident


def _whole_pages(area: Area) -> tuple[int, int]:
    start = -(-area.start // PAGE_BYTES) * PAGE_BYTES
    end = (area.start + area.size) // PAGE_BYTES * PAGE_BYTES
    return start, end - start
