"""Freed memory returns to the system, and long-lived objects are frozen for the collector."""

import ctypes
import gc
import os
import subprocess
import sys
import time
import weakref
from pathlib import Path
from unittest.mock import Mock

import pytest

import vlmkit
from mock_model import script, wait_until
from vlmkit.kit import heap
from vlmkit.running.engine_loop import loop

MIB = 2**20
can_trim = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim")


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not can_trim, reason="this system's heap cannot be asked")
def test_freed_memory_returns_to_the_system():
    blocks = [b"x" * 2**16 for _ in range(2000)]
    last = (
        blocks.pop()
    )  # the end of the heap stays in use, so the allocator returns nothing by itself
    del blocks
    before = resident_bytes()
    heap.trim()

    assert resident_bytes() < before - 100 * MIB
    assert last


def test_collection_resumes_after_a_pause_even_if_the_block_raises():
    seen = []

    def fails():
        with heap.paused_collection():
            seen.append(gc.isenabled())
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_pause_leaves_disabled_collection_disabled():
    gc.disable()
    try:
        with heap.paused_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def resident_after_freeing(num_blocks):
    """Return the resident bytes after blocks of 4 MiB are freed, following larger ones.

    Memory of the larger block may still be resident, and then holds the first of them.
    """
    bytes(16 * MIB)  # teaches the heap to keep blocks of this size
    before = resident_bytes()
    blocks = [b"x" * (4 * MIB) for _ in range(num_blocks)]
    last = blocks.pop()  # the end of the heap stays in use
    del blocks
    assert last
    return resident_bytes() - before


LEFT = """
import sys, threading
from pathlib import Path
from vlmkit.kit import heap

if sys.argv[1] == "limited":
    heap.limit_arenas()
bytes(24 * 2**20)  # teaches the heap to keep blocks of this size
ready, done = threading.Barrier(9), threading.Barrier(9)

def work():
    ready.wait()
    blocks = [b"x" * (4 * 2**20) for _ in range(5)]
    del blocks
    done.wait()
    done.wait()  # threads that end give their heap to others

for _ in range(8):
    threading.Thread(target=work).start()
ready.wait()
done.wait()
heap.trim()
line = next(l for l in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in l)
print(int(line.split()[1]) // 1024)
done.wait()
"""


@pytest.mark.skipif(not can_trim, reason="this system's heap cannot be asked")
def test_memory_freed_by_many_threads_returns_if_they_share_heaps():
    left = {
        kind: int(subprocess.check_output([sys.executable, "-c", LEFT, kind]))
        for kind in ("unlimited", "limited")
    }
    assert left["unlimited"] > left["limited"] + 64  # the control: each thread keeps its own heap


@pytest.mark.skipif(not can_trim, reason="this system's heap cannot be asked")
def test_large_blocks_return_when_freed_if_requested():
    assert resident_after_freeing(20) > 40 * MIB  # the control: by default, they are kept
    heap.trim()
    with heap.returning_large_blocks():
        assert resident_after_freeing(20) < 30 * MIB
    assert resident_after_freeing(20) > 40 * MIB


def test_trim_calls_the_heap_function_of_macos(monkeypatch):
    library = Mock()
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    heap.trim()

    library.malloc_zone_pressure_relief.assert_called_once_with(None, 0)


def test_a_loop_trims_the_heap_once_each_time_it_becomes_idle(monkeypatch):
    calls = []
    monkeypatch.setattr(heap, "trim", lambda: calls.append(None))
    monkeypatch.setattr(loop, "IDLE_S", 0.05)
    with vlmkit.load("mock") as model:
        wait_until(lambda: len(calls) == 2)  # once after loading, once when idle
        for _ in range(2):
            before = len(calls)
            model.submit(model.request(script(text="a b c"))).result()
            wait_until(lambda before=before: len(calls) > before)
        time.sleep(0.2)

    assert len(calls) == 4


@pytest.fixture
def unfrozen():
    """Let the collector look at modules and tests, too."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


class Cycle:
    """A reference cycle, which only the collector frees."""

    def __init__(self):
        self.itself = self


@pytest.mark.usefixtures("unfrozen")
def test_frozen_garbage_is_freed_only_by_collect():
    before, cycle = Cycle(), Cycle()
    was_garbage, is_garbage = weakref.ref(before), weakref.ref(cycle)
    del before
    try:
        heap.settle()
        assert was_garbage() is None
        del cycle
        gc.collect()
        assert is_garbage() is not None, "the collector looks at what is settled"
        heap.collect()
        assert is_garbage() is None
        num_settled = gc.get_freeze_count()
        assert num_settled > 10_000
        kept = [Cycle() for _ in range(10_000)]
        heap.settle_more()
        assert gc.get_freeze_count() > num_settled
        assert kept
    finally:
        heap.unsettle()
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("unfrozen")
def test_collect_does_not_freeze_an_unfrozen_heap():
    cycle = Cycle()
    is_garbage = weakref.ref(cycle)
    del cycle
    heap.collect()
    assert is_garbage() is None
    heap.settle_more()
    assert gc.get_freeze_count() == 0


def test_lists_are_emptied_in_small_pieces(monkeypatch):
    lists, seen = [[*range(3000)], [], [*range(5)]], []
    monkeypatch.setattr(heap.time, "sleep", lambda _: seen.append([len(items) for items in lists]))
    heap.release(lists)
    assert seen == [[1976, 0, 5], [952, 0, 5], [0, 0, 5], [0, 0, 0]]
