"""The memory of the cache: resident when written, freed when a slot is discarded."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from vlmkit.errors import ConfigError
from vlmkit_onnx.slots.host_memory import HostMemory
from vlmkit_onnx.slots.memory import StateShape

FLOAT = np.dtype(np.float32)


def memory(num_slots=3, slot_tokens=100, **states):
    both = dict.fromkeys(("key", "value"), StateShape((2, 0, 16), FLOAT))
    shapes = states or both
    return HostMemory(shapes, num_slots, slot_tokens)


class MemoryWithoutAdvice(mmap.mmap):
    """Memory like that of macOS: discarded pages keep their content."""

    def madvise(self, *_):
        pass


@pytest.fixture(params=["linux", "darwin"])
def system(request, monkeypatch):
    if sys.platform == "win32":
        pytest.skip("Windows takes no memory back")
    if request.param == "darwin":
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(mmap, "mmap", MemoryWithoutAdvice)
    return request.param


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_slot_has_room_for_the_longest_sequence():
    made = memory()
    assert made.slot_tokens >= 100
    assert made.rows("key", 1, 2).shape == (2, 2, made.slot_tokens, 16)
    assert made.token_bytes == 2 * 2 * 16 * 4


def test_a_prefix_is_copied_in_every_state():
    made = memory()
    for name in ("key", "value"):
        made.rows(name, 0, 1)[...] = 1.5
    made.copy(0, 2, 7)
    for name in ("key", "value"):
        assert (made.rows(name, 2, 1)[0, :, :7] == 1.5).all()
        assert (made.rows(name, 2, 1)[0, :, 7:] == 0).all()


def test_swapped_slots_exchange_their_tokens_and_zero_the_rest(system):
    fixed = StateShape((2, 5, 16), FLOAT, grows=False)
    made = memory(slot_tokens=4096, key=StateShape((2, 0, 16), FLOAT), conv=fixed)
    for slot in range(3):
        for name in ("key", "conv"):
            made.rows(name, slot, 1)[...] = slot + 1
    made.swap((0, 2), (3, 9))
    keys = made.rows("key", 0, 3)
    assert (keys[0, :, :9] == 3).all()
    assert (keys[2, :, :3] == 1).all()
    assert (keys[1] == 2).all()
    assert (made.rows("conv", 0, 3)[:, 0, 0, 0] == [3, 2, 1]).all()
    assert not keys[0, :, 9:].any()
    assert not keys[2, :, 3:].any()


def test_a_discarded_slot_is_empty_and_its_neighbours_are_not():
    made = memory()
    for slot in range(3):
        made.rows("key", slot, 1)[...] = slot + 1
    made.discard(1)
    assert (made.rows("key", 0, 1) == 1).all()
    assert (made.rows("key", 2, 1) == 3).all()
    assert np.isfinite(made.rows("key", 1, 1)).all()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_reserving_takes_no_memory_and_discarding_frees_it(system):
    before = resident_bytes()
    made = memory(num_slots=64, slot_tokens=32768, key=StateShape((8, 0, 64), FLOAT))
    assert made.rows("key", 0, 64).nbytes == 2**32
    assert resident_bytes() - before < 2**24
    made.rows("key", 5, 1)[:, :, :8192] = 1
    assert resident_bytes() - before > 2**23
    made.discard(5)
    assert resident_bytes() - before < 2**24 // 2


def test_a_state_of_fixed_size_starts_from_zero_and_is_not_shared():
    made = memory(conv=StateShape((4, 3), FLOAT, grows=False), key=StateShape((1, 0, 8), FLOAT))
    assert not made.is_shareable
    made.rows("conv", 1, 1)[...] = 2
    made.copy(1, 0, 0)
    assert (made.rows("conv", 0, 1) == 2).all()
    made.reset(1)
    assert (made.rows("conv", 1, 1) == 0).all()
    assert made.token_bytes == 8 * 4


@pytest.mark.skipif(sys.platform != "linux", reason="asks for more addresses than Linux has")
def test_too_large_a_reservation_is_refused_with_a_hint():
    with pytest.raises(ConfigError, match="no room for 4096 sequences of 1000000000 tokens"):
        memory(num_slots=4096, slot_tokens=10**9)
