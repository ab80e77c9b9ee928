"""Heap tuning for long-running processes: returns freed memory and avoids repeated GC passes.

The heaps of glibc and macOS keep freed memory, and can be told to return it to the system. On other
systems the functions do nothing. Long-lived objects are excluded from garbage collection. Caches
are not touched.
"""

import gc
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

MIB = 2**20
NUM_AT_ONCE = 1024  # items with their contents, which take a millisecond to free
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # from glibc's malloc.h
MAX_ARENAS = 2


def trim() -> None:
    """Return freed memory to the system; takes milliseconds, and slows down later allocations."""
    if give_back := _library("linux", "malloc_trim"):
        give_back(0)
    if relieve := _library("darwin", "malloc_zone_pressure_relief"):
        import ctypes

        relieve.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        relieve(None, 0)  # all zones, as much as possible


def limit_arenas() -> None:
    """Limit new threads to two shared heaps, so that :func:`trim` returns their freed memory.

    By default glibc creates a heap for each thread. It keeps the free end of all but the first: up
    to 64 MiB each, after blocks of that size were freed.
    """
    if adjust := _library("linux", "mallopt"):
        adjust(M_ARENA_MAX, MAX_ARENAS)


@contextmanager
def paused_collection() -> Iterator[None]:
    """Collect no garbage meanwhile; for imports, which create many objects and few cycles.

    Otherwise the collections take a tenth of the time in which a server starts.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def settle() -> None:
    """Exclude all present objects from garbage collection: modules, code and models.

    Otherwise each full collection traverses them while every running answer waits: 10 ms for a
    server alone, 150 ms with the imports of torch and transformers. Present garbage is freed first.
    """
    gc.collect()
    gc.freeze()


def settle_more() -> None:
    """Exclude newer objects, too; does nothing unless :func:`settle` was called."""
    if gc.get_freeze_count():
        settle()


def unsettle() -> None:
    """Include all objects in garbage collection again."""
    gc.unfreeze()


def collect() -> None:
    """Free garbage among all objects, excluded ones too; they stay excluded afterwards."""
    is_settled = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if is_settled:
        gc.freeze()


def release(lists: Iterable[list[Any]]) -> None:
    """Empty lists in small pieces: freeing millions of objects at once blocks all threads."""
    for items in lists:
        while items:
            del items[-NUM_AT_ONCE:]
            time.sleep(0)


@contextmanager
def returning_large_blocks() -> Iterator[None]:
    """Return blocks over 1 MiB to the system when they are freed, while weights are converted.

    By default glibc raises its threshold with each freed block, and a converted model is in memory
    twice for a while. Afterwards the threshold is 32 MiB, its usual maximum.
    """
    adjust = _library("linux", "mallopt") or (lambda *_: None)
    adjust(M_MMAP_THRESHOLD, MIB)
    try:
        yield
    finally:
        adjust(M_MMAP_THRESHOLD, 32 * MIB)
        adjust(M_TRIM_THRESHOLD, 64 * MIB)


def _library(system: str, name: str) -> Any:
    """Return a function of a system's C library; None on other systems or if it is missing."""
    if sys.platform != system:
        return None
    import ctypes

    return getattr(ctypes.CDLL(None), name, None)
