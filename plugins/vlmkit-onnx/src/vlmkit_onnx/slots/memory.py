"""The cache: for each named state one array with a place for every slot.

Room for the longest sequence is reserved in every slot, but only as addresses: a page of memory is
taken when it is first written and can be given back, so the operating system is the pager (but see
``system_memory`` for Windows). Who has which slot is the slot book's business.
"""

import math
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import ConfigError
from vlmkit_onnx.slots import system_memory

TOKEN_AXIS = 1  # of a slot's part of a state that grows: [heads, tokens, width]


@dataclass(frozen=True, slots=True)
class StateShape:
    """What one slot keeps of one state.

    Attributes:
        shape: ``[heads, tokens, width]`` for keys and values, with 0 for the tokens; any shape for
            a state of fixed size.
        dtype: of its numbers.
        grows: whether it has rows for tokens; a state of fixed size cannot be shared by prefix.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    grows: bool = True

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes."""
        if not self.grows:
            return 0
        return math.prod(n for axis, n in enumerate(self.shape) if axis != TOKEN_AXIS) * (
            self.dtype.itemsize
        )


class Place(NamedTuple):
    """Where an array lies, in the order that ONNX Runtime's bindings take it."""

    device: str
    device_number: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    address: int


class Memory(Protocol):
    """What an engine asks of a cache, wherever it lies.

    Attributes:
        copies: whether a prefix can be copied from one slot to another.
        num_slots: how many sequences have a place.
    """

    copies: bool
    num_slots: int

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in all states together."""
        ...

    @property
    def is_shareable(self) -> bool:
        """Whether a prefix of a sequence is a prefix of its memory."""
        ...

    def place(self, name: str, first_slot: int, num_slots: int) -> Place:
        """Return where a state of some neighbouring slots lies, as a binding wants it."""
        ...

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of a slot, and its states of fixed size, to another slot."""
        ...

    def swap(self, slots: tuple[int, int], num_tokens: tuple[int, int]) -> None:
        """Exchange what two slots hold; each has so many tokens."""
        ...

    def discard(self, slot: int) -> None:
        """Give a slot's memory back; what it holds afterwards is undefined, and finite."""
        ...

    def reset(self, slot: int) -> None:
        """Set a slot's states of fixed size to zero: a sequence begins."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class SlotMemory:
    """The states of ``num_slots`` sequences of up to ``slot_tokens`` tokens.

    Args:
        states: what a slot keeps, by name.
        num_slots: how many there are.
        slot_tokens: rows for tokens in each.

    Raises:
        ConfigError: the system reserves not so many addresses.
    """

    copies = True

    def __init__(self, states: Mapping[str, StateShape], num_slots: int, slot_tokens: int) -> None:
        self.states = dict(states)
        self.num_slots = num_slots
        if not system_memory.is_set_aside():
            slot_tokens = _whole_pages(slot_tokens, self.states.values())
        self.slot_tokens = slot_tokens
        self._maps: list[mmap.mmap] = []
        try:
            self._arrays = {name: self._reserve(state) for name, state in self.states.items()}
        except OSError as error:
            raise ConfigError(
                f"the system reserves no room for {num_slots} sequences of {slot_tokens} tokens",
                hint="lower engine.max_sequences or engine.max_sequence_tokens",
            ) from error

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in all states together."""
        return sum(state.token_bytes for state in self.states.values())

    @property
    def is_shareable(self) -> bool:
        """Whether a prefix of a sequence is a prefix of its memory."""
        return all(state.grows for state in self.states.values())

    def rows(self, name: str, first_slot: int, num_slots: int) -> NDArray[Any]:
        """Return a state of some neighbouring slots, ``[slots, ...]``, as a view."""
        return self._arrays[name][first_slot : first_slot + num_slots]

    def place(self, name: str, first_slot: int, num_slots: int) -> Place:
        """Return where a state of some neighbouring slots lies, as a binding wants it."""
        rows = self.rows(name, first_slot, num_slots)
        return Place("cpu", 0, rows.dtype, rows.shape, rows.ctypes.data)

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of a slot, and its states of fixed size, to another slot."""
        for name, state in self.states.items():
            array = self._arrays[name]
            if state.grows:
                array[target, :, :num_tokens] = array[source, :, :num_tokens]
            else:
                array[target] = array[source]

    def swap(self, slots: tuple[int, int], num_tokens: tuple[int, int]) -> None:
        """Exchange what two slots hold; each has so many tokens."""
        for (name, state), pages in zip(self.states.items(), self._maps, strict=True):
            array = self._arrays[name]
            counts = num_tokens if state.grows else (None, None)  # of a fixed state, all
            held = [array[slot, :, :n].copy() for slot, n in zip(slots, counts, strict=True)]
            for slot, new in zip(slots, reversed(held), strict=True):
                _give_back(pages, array, slot)
                array[slot, :, : new.shape[1]] = new

    def discard(self, slot: int) -> None:
        """Give a slot's memory back; what it holds afterwards is undefined, and finite."""
        for array, pages in zip(self._arrays.values(), self._maps, strict=True):
            _give_back(pages, array, slot)

    def reset(self, slot: int) -> None:
        """Set a slot's states of fixed size to zero: a sequence begins."""
        for name, state in self.states.items():
            if not state.grows:
                self._arrays[name][slot] = 0

    def close(self) -> None:
        """Give everything back; no view may be used afterwards."""
        self._arrays.clear()
        self._maps.clear()  # unmapped when the last view of it is gone

    def _reserve(self, state: StateShape) -> NDArray[Any]:
        shape = [self.num_slots, *state.shape]
        if state.grows:
            shape[1 + TOKEN_AXIS] = self.slot_tokens
        num_bytes = math.prod(shape) * state.dtype.itemsize
        # Not numpy's allocator: it asks for huge pages, and those of a few tokens would fill
        # the whole reservation.
        pages = system_memory.reserve(max(1, num_bytes))
        self._maps.append(pages)
        return np.frombuffer(pages, state.dtype, math.prod(shape)).reshape(shape)


def _give_back(pages: mmap.mmap, array: NDArray[Any], slot: int) -> None:
    num_bytes = array[slot].nbytes
    if num_bytes % mmap.PAGESIZE == 0:
        system_memory.give_back(pages, slot * num_bytes, num_bytes)


def _whole_pages(num_tokens: int, states: Iterable[StateShape]) -> int:
    """Return the tokens of a slot, rounded up so that every slot begins at a page."""
    step = 1
    for state in states:
        if state.token_bytes:
            step = math.lcm(step, mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, state.token_bytes))
    return -(-num_tokens // step) * step
