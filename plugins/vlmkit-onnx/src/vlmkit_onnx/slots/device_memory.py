"""The cache on a device with its own memory: one array for each state, allocated at once.

A device cannot return single pages, and ONNX Runtime copies nothing within a device. A slot
therefore keeps its memory, and a prefix is reused in the slot that holds it.
"""

import math
from collections.abc import Mapping

from vlmkit.errors import CheckpointError, ConfigError
from vlmkit_onnx.sessions.runtime import onnxruntime
from vlmkit_onnx.slots.host_memory import HostMemory
from vlmkit_onnx.slots.memory import CPU, ArrayLocation, CacheSize, Device, SlotMemory, StateShape


def allocate(states: Mapping[str, StateShape], size: CacheSize) -> SlotMemory:
    """Return a cache on the device that runs the graph.

    Raises:
        CheckpointError: a state has a fixed size, which only a CPU supports.
        ConfigError: there is too little memory.
    """
    if size.device == CPU:
        return HostMemory(states, size.num_slots, size.slot_tokens)
    return DeviceMemory(states, size.num_slots, size.slot_tokens, size.device)


class DeviceMemory(SlotMemory):
    """The states of all slots on a device.

    Args:
        states: what a slot stores, by name.
        num_slots: most sequences at once.
        slot_tokens: rows for tokens in each slot.
        device: kind and number.

    Raises:
        CheckpointError: a state has a fixed size.
        ConfigError: the device has too little memory.
    """

    copies = False

    def __init__(
        self, states: Mapping[str, StateShape], num_slots: int, slot_tokens: int, device: Device
    ) -> None:
        super().__init__(states, num_slots, slot_tokens)
        self._device = device
        if not self.is_shareable:
            raise CheckpointError("states of fixed size are kept on a CPU only")
        try:
            self._values = {name: self._allocate(state) for name, state in self.states.items()}
        except RuntimeError as error:
            raise ConfigError(
                f"the memory of {device[0]!r} is not enough for {num_slots} sequences of "
                f"{slot_tokens} tokens",
                hint="lower engine.max_sequences or engine.max_sequence_tokens",
            ) from error

    def location(self, name: str, first_slot: int, num_slots: int) -> ArrayLocation:
        """Return where a state of adjacent slots is."""
        state = self.states[name]
        shape = self.array_shape(state, num_slots)
        slot_bytes = math.prod(shape[1:]) * state.dtype.itemsize
        address = self._values[name].data_ptr() + first_slot * slot_bytes
        return ArrayLocation(*self._device, state.dtype, shape, address)

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Refuse; see ``copies``."""
        raise RuntimeError(f"{num_tokens} tokens cannot be copied from slot {source} to {target}")

    def swap(self, slots: tuple[int, int], num_tokens: tuple[int, int]) -> None:
        """Refuse; see ``copies``."""
        raise RuntimeError(f"{num_tokens} tokens of slots {slots} cannot be exchanged")

    def discard(self, slot: int) -> None:
        """Do nothing: the slot's next sequence overwrites its memory."""

    def reset(self, slot: int) -> None:
        """Do nothing: there are no states of fixed size."""

    def close(self) -> None:
        """Free everything."""
        self._values.clear()

    def _allocate(self, state: StateShape) -> onnxruntime.OrtValue:
        shape = self.array_shape(state, self.num_slots)
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            shape, state.dtype.type, *self._device
        )
