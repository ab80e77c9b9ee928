"""Copies the index arrays of a step to the device in one transfer.

On a GPU, the cost of a transfer is mostly independent of its size.
"""

import numpy as np
import torch

BUFFER_NUMBERS = 2**16  # enough for most steps; a larger array gets its own buffer


class Uploads:
    """The arrays of one step.

    Args:
        device: the target.
        keeps_addresses: whether the arrays of the next step get the tensors of this one, as far as
            their sizes are equal; for devices other than the CPU.

    Attributes:
        shapes: of the arrays that were added for this step; empty on the CPU.
    """

    def __init__(self, device: torch.device, *, keeps_addresses: bool = False) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self._device = device
        self._keeps_addresses = keeps_addresses
        self._buffers: list[_Buffer] = []
        self._num_used = 0  # buffers of this step; more may be there from the last one

    def add(self, array: np.ndarray) -> torch.Tensor:
        """Return an int64 array's tensor on the device; ``send`` fills it."""
        if self._device.type == "cpu":
            return torch.from_numpy(array)
        self.shapes.append(array.shape)
        while not (self._num_used and self._buffers[self._num_used - 1].has_room(array.size)):
            if self._num_used == len(self._buffers):
                self._buffers.append(_Buffer(max(BUFFER_NUMBERS, array.size), self._device))
            self._num_used += 1
        return self._buffers[self._num_used - 1].put(array)

    def send(self) -> None:
        """Start the transfer of all added arrays; the host does not wait for it."""
        for buffer in self._buffers[: self._num_used]:
            buffer.send()
        if not self._keeps_addresses:
            self._buffers.clear()
        self._num_used = 0
        self.shapes = []


class _Buffer:
    """Memory on the device, and the arrays to copy there; empty again once they are sent."""

    def __init__(self, num_numbers: int, device: torch.device) -> None:
        self._target = torch.empty(num_numbers, dtype=torch.int64, device=device)
        self._arrays: list[np.ndarray] = []
        self._num_used = 0

    def has_room(self, num_numbers: int) -> bool:
        return self._num_used + num_numbers <= len(self._target)

    def put(self, array: np.ndarray) -> torch.Tensor:
        start = self._num_used
        self._num_used += array.size
        self._arrays.append(array.reshape(-1))
        return self._target[start : self._num_used].view(array.shape)

    def send(self) -> None:
        source = torch.from_numpy(np.concatenate(self._arrays))
        if self._target.is_cuda:  # a copy from unpinned memory waits for the device
            source = source.pin_memory()
        self._target[: self._num_used].copy_(source, non_blocking=True)
        self._arrays.clear()
        self._num_used = 0
