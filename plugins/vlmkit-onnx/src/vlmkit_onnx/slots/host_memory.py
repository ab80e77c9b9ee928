"""The cache in a CPU's memory, with pages that are resident only while they are used.

Every slot reserves addresses for the longest sequence. A page takes memory when it is first
written, and can be returned to the system (except on Windows, see ``system_memory``).
"""

import math
import mmap
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import ConfigError
from vlmkit_onnx.slots import system_memory
from vlmkit_onnx.slots.memory import CPU, ArrayLocation, SlotMemory, StateShape


class HostMemory(SlotMemory):
    """The states of ``num_slots`` sequences of up to ``slot_tokens`` tokens.

    Args:
        states: what a slot stores, by name.
        num_slots: most sequences at once.
        slot_tokens: rows for tokens in each slot; rounded up to whole pages.

    Raises:
        ConfigError: the system cannot reserve so many addresses.
    """

    copies = True

    def __init__(self, states: Mapping[str, StateShape], num_slots: int, slot_tokens: int) -> None:
        if not system_memory.commits_at_once():
            slot_tokens = _whole_pages(slot_tokens, states.values())
        super().__init__(states, num_slots, slot_tokens)
        self._maps: list[mmap.mmap] = []
        try:
            self._arrays = {name: self._reserve(state) for name, state in self.states.items()}
        except OSError as error:
            raise ConfigError(
                f"the system reserves no room for {num_slots} sequences of {slot_tokens} tokens",
                hint="lower engine.max_sequences or engine.max_sequence_tokens",
            ) from error

    def rows(self, name: str, first_slot: int, num_slots: int) -> NDArray[Any]:
        """Return a state of adjacent slots, ``[slots, ...]``, as a view."""
        return self._arrays[name][first_slot : first_slot + num_slots]

    def location(self, name: str, first_slot: int, num_slots: int) -> ArrayLocation:
        """Return where a state of adjacent slots is."""
        rows = self.rows(name, first_slot, num_slots)
        return ArrayLocation(*CPU, rows.dtype, rows.shape, rows.ctypes.data)

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of a slot, and its states of fixed size, to another slot."""
        for name, state in self.states.items():
            array = self._arrays[name]
            if state.grows:
                array[target, :, :num_tokens] = array[source, :, :num_tokens]
            else:
                array[target] = array[source]

    def swap(self, slots: tuple[int, int], num_tokens: tuple[int, int]) -> None:
        """Exchange the contents of two slots, which hold ``num_tokens`` each."""
        for (name, state), pages in zip(self.states.items(), self._maps, strict=True):
            array = self._arrays[name]
            counts = num_tokens if state.grows else (None, None)  # of a fixed state, all
            held = [array[slot, :, :n].copy() for slot, n in zip(slots, counts, strict=True)]
            for slot, new in zip(slots, reversed(held), strict=True):
                _free(pages, array, slot)
                array[slot, :, : new.shape[1]] = new

    def discard(self, slot: int) -> None:
        """Free a slot's memory; its contents are undefined afterwards, and finite."""
        for array, pages in zip(self._arrays.values(), self._maps, strict=True):
            _free(pages, array, slot)

    def reset(self, slot: int) -> None:
        """Set a slot's states of fixed size to zero, for a new sequence."""
        for name, state in self.states.items():
            if not state.grows:
                self._arrays[name][slot] = 0

    def close(self) -> None:
        """Free everything; no view may be used afterwards."""
        self._arrays.clear()
        self._maps.clear()  # unmapped with the last view

    def _reserve(self, state: StateShape) -> NDArray[Any]:
        shape = self.array_shape(state, self.num_slots)
        num_bytes = math.prod(shape) * state.dtype.itemsize
        # Not numpy's allocator: it requests huge pages, and those of a few tokens would fill the
        # whole reservation.
        pages = system_memory.reserve(max(1, num_bytes))
        self._maps.append(pages)
        return np.frombuffer(pages, state.dtype, math.prod(shape)).reshape(shape)


def _free(pages: mmap.mmap, array: NDArray[Any], slot: int) -> None:
    num_bytes = array[slot].nbytes
    if num_bytes % mmap.PAGESIZE == 0:
        system_memory.free(pages, slot * num_bytes, num_bytes)


def _whole_pages(num_tokens: int, states: Iterable[StateShape]) -> int:
    """Return the tokens of a slot, rounded up so that every slot begins at a page."""
    step = 1
    for state in states:
        if state.token_bytes:
            step = math.lcm(step, mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, state.token_bytes))
    return -(-num_tokens // step) * step
