"""The memory of the cache, for engines: one array for each named state, with a row for every slot.

Assigns no slots to sequences (``slot_manager`` does) and allocates nothing itself.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

TOKEN_AXIS = 1  # of a slot's part of a state that grows: [heads, tokens, width]

Device = tuple[str, int]
"""Kind and number."""
CPU: Device = ("cpu", 0)


@dataclass(frozen=True, slots=True)
class StateShape:
    """What one slot stores of one state.

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


class CacheSize(NamedTuple):
    """The size of a cache, and the device that stores it.

    Attributes:
        num_slots: most sequences at once.
        slot_tokens: longest sequence.
        device: kind and number.
    """

    num_slots: int
    slot_tokens: int
    device: Device = CPU


class ArrayLocation(NamedTuple):
    """Where an array is, in the order of the arguments of ONNX Runtime's bindings."""

    device: str
    device_number: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    address: int


class SlotMemory(ABC):
    """The states of all slots.

    Attributes:
        copies: whether a prefix can be copied from one slot to another.
        states: what a slot stores, by name.
        num_slots: most sequences at once.
        slot_tokens: rows for tokens in each slot.
    """

    copies: bool

    def __init__(self, states: Mapping[str, StateShape], num_slots: int, slot_tokens: int) -> None:
        self.states = dict(states)
        self.num_slots = num_slots
        self.slot_tokens = slot_tokens

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in all states together."""
        return sum(state.token_bytes for state in self.states.values())

    @property
    def is_shareable(self) -> bool:
        """Whether a prefix of a sequence is a prefix of its memory."""
        return all(state.grows for state in self.states.values())

    def array_shape(self, state: StateShape, num_slots: int) -> tuple[int, ...]:
        """Return the shape of a state of ``num_slots`` slots."""
        shape = [num_slots, *state.shape]
        if state.grows:
            shape[1 + TOKEN_AXIS] = self.slot_tokens
        return tuple(shape)

    @abstractmethod
    def location(self, name: str, first_slot: int, num_slots: int) -> ArrayLocation:
        """Return where a state of adjacent slots is."""

    @abstractmethod
    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of a slot, and its states of fixed size, to another slot."""

    @abstractmethod
    def swap(self, slots: tuple[int, int], num_tokens: tuple[int, int]) -> None:
        """Exchange the contents of two slots, which hold ``num_tokens`` each."""

    @abstractmethod
    def discard(self, slot: int) -> None:
        """Free a slot's memory; its contents are undefined afterwards, and finite."""

    @abstractmethod
    def reset(self, slot: int) -> None:
        """Set a slot's states of fixed size to zero, for a new sequence."""

    @abstractmethod
    def close(self) -> None:
        """Free everything."""
