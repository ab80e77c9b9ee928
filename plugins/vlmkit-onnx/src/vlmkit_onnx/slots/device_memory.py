"""The cache on a device with memory of its own: one array for each state, allocated whole.

There are no pages to give back, and ONNX Runtime copies nothing within a device, so a slot keeps
its memory and a prefix is reused in the slot that holds it.
"""

import math
from collections.abc import Mapping

from vlmkit.errors import CheckpointError, ConfigError
from vlmkit_onnx.sessions.runtime import onnxruntime
from vlmkit_onnx.slots.memory import TOKEN_AXIS, Memory, Place, SlotMemory, StateShape

Device = tuple[str, int]
"""Kind and number."""
CPU: Device = ("cpu", 0)


def memory_on(
    device: Device, states: Mapping[str, StateShape], num_slots: int, slot_tokens: int
) -> Memory:
    """Return a cache where the graph runs.

    Raises:
        CheckpointError: a state is of fixed size, which only a CPU keeps.
        ConfigError: there is not so much memory.
    """
    if device == CPU:
        return SlotMemory(states, num_slots, slot_tokens)
    return DeviceMemory(states, num_slots, slot_tokens, device)


class DeviceMemory:
    """A :class:`vlmkit_onnx.slots.memory.Memory` on a device.

    Args:
        states: what a slot keeps, by name.
        num_slots: how many there are.
        slot_tokens: rows for tokens in each.
        device: kind and number.

    Raises:
        CheckpointError: a state is of fixed size.
        ConfigError: the device has not so much memory.
    """

    copies = False

    def __init__(
        self,
        states: Mapping[str, StateShape],
        num_slots: int,
        slot_tokens: int,
        device: Device,
    ) -> None:
        self.states = dict(states)
        self.num_slots = num_slots
        self.slot_tokens = slot_tokens
        self._device = device
        if not all(state.grows for state in self.states.values()):
            raise CheckpointError("states of fixed size are kept on a CPU only")
        try:
            self._values = {name: self._allocate(state) for name, state in self.states.items()}
        except RuntimeError as error:
            raise ConfigError(
                f"the memory of {device[0]!r} is not enough for {num_slots} sequences of "
                f"{slot_tokens} tokens",
                hint="lower engine.max_sequences or engine.max_sequence_tokens",
            ) from error

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes in all states together."""
        return sum(state.token_bytes for state in self.states.values())

    @property
    def is_shareable(self) -> bool:
        """Whether a prefix of a sequence is a prefix of its memory."""
        return True

    def place(self, name: str, first_slot: int, num_slots: int) -> Place:
        """Return where a state of some neighbouring slots lies, as a binding wants it."""
        state = self.states[name]
        shape = self._shape(state, num_slots)
        slot_bytes = math.prod(shape[1:]) * state.dtype.itemsize
        address = self._values[name].data_ptr() + first_slot * slot_bytes
        return Place(*self._device, state.dtype, shape, address)

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Refuse: see ``copies``."""
        raise RuntimeError(f"{num_tokens} tokens cannot be copied from slot {source} to {target}")

    def swap(self, slots: tuple[int, int], num_tokens: tuple[int, int]) -> None:
        """Refuse: see ``copies``."""
        raise RuntimeError(f"{num_tokens} tokens of slots {slots} cannot change places")

    def discard(self, slot: int) -> None:
        """Keep the memory; the next owner writes over it."""

    def reset(self, slot: int) -> None:
        """Begin a sequence; there are no states of fixed size."""

    def close(self) -> None:
        """Give everything back."""
        self._values.clear()

    def _shape(self, state: StateShape, num_slots: int) -> tuple[int, ...]:
        shape = [num_slots, *state.shape]
        shape[1 + TOKEN_AXIS] = self.slot_tokens
        return tuple(shape)

    def _allocate(self, state: StateShape) -> onnxruntime.OrtValue:
        shape = self._shape(state, self.num_slots)
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            shape, state.dtype.type, *self._device
        )
