"""Heap settings of a long-running process: return freed memory, and collect garbage seldom.

The heaps of glibc and of macOS keep freed memory; they are asked to return it to the system.
Elsewhere nothing is done. Objects that stay are exempt from garbage collection. Caches are not
touched: memory in use stays.
"""

import ctypes
import gc
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

MIB = 2**20
NUM_AT_ONCE = 1024  # items with what they hold, which takes a millisecond
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # glibc's numbers, in its malloc.h
MAX_ARENAS = 2


def trim() -> None:
    """Give back what is freed; takes milliseconds, and what is used next is asked for anew."""
    if give_back := _library("linux", "malloc_trim"):
        give_back(0)
    if relieve := _library("darwin", "malloc_zone_pressure_relief"):
        relieve.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        relieve(None, 0)  # of all zones, as much as there is


def limit_arenas() -> None:
    """Have all threads that come share two heaps, so that :func:`trim` returns what they freed.

    By default glibc makes a heap for each thread. It keeps the free end of all but the first: up to
    64 MiB each, once blocks of that size were freed.
    """
    if adjust := _library("linux", "mallopt"):
        adjust(M_ARENA_MAX, MAX_ARENAS)


def settle() -> None:
    """Have the garbage collector pass over all that is there now: modules, code and models.

    It would look at them whenever enough is new, and every running answer would wait: 10 ms for a
    server alone, 150 ms with what torch and transformers import. What is garbage already is freed.
    """
    gc.collect()
    gc.freeze()


def settle_more() -> None:
    """Settle what came since; nothing, where nothing is settled."""
    if gc.get_freeze_count():
        settle()


def unsettle() -> None:
    """Have the garbage collector look at everything again."""
    gc.unfreeze()


def collect() -> None:
    """Free what only cycles hold, and what is settled as well; that stays settled otherwise."""
    is_settled = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if is_settled:
        gc.freeze()


def release(lists: Iterable[list[Any]]) -> None:
    """Empty lists a little at a time: to free millions of objects at once holds all threads up."""
    for items in lists:
        while items:
            del items[-NUM_AT_ONCE:]
            time.sleep(0)


@contextmanager
def returning_large_blocks() -> Iterator[None]:
    """Give blocks over 1 MiB back when they are freed, while weights are being converted.

    Left alone, glibc keeps ever larger blocks the more of them are freed, and a converted model is
    in memory twice for a while. Afterwards it keeps blocks up to 32 MiB, as it would in the end.
    """
    adjust = _library("linux", "mallopt") or (lambda *_: None)
    adjust(M_MMAP_THRESHOLD, MIB)
    try:
        yield
    finally:
        adjust(M_MMAP_THRESHOLD, 32 * MIB)
        adjust(M_TRIM_THRESHOLD, 64 * MIB)


def _library(system: str, name: str) -> Any:
    """Return a function of a system's C library; None elsewhere, and where it has none so named."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == system else None
