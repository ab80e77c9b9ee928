"""Brings the index arrays of a step to the device, all of them in one transfer.

Every transfer costs a GPU's host more than the numbers in it. Knows nothing of what they mean.
"""

import numpy as np
import torch

BOX_NUMBERS = 2**16  # of most steps all; what does not fit goes in a box of its own


class Uploads:
    """The arrays of one step.

    Args:
        device: where they go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._boxes: list[_Box] = []

    def add(self, array: np.ndarray) -> torch.Tensor:
        """Return the place of an int64 array on the device; what it holds comes with ``send``."""
        if self._device.type == "cpu":
            return torch.from_numpy(array)
        if not self._boxes or not self._boxes[-1].has_room(array.size):
            self._boxes.append(_Box(max(BOX_NUMBERS, array.size), self._device))
        return self._boxes[-1].put(array)

    def send(self) -> None:
        """Bring over what was added; the host does not wait for it."""
        for box in self._boxes:
            box.send()
        self._boxes.clear()


class _Box:
    """Room on the device, and what is to go there."""

    def __init__(self, num_numbers: int, device: torch.device) -> None:
        self._there = torch.empty(num_numbers, dtype=torch.int64, device=device)
        self._arrays: list[np.ndarray] = []
        self._num_used = 0

    def has_room(self, num_numbers: int) -> bool:
        return self._num_used + num_numbers <= len(self._there)

    def put(self, array: np.ndarray) -> torch.Tensor:
        start = self._num_used
        self._num_used += array.size
        self._arrays.append(array.reshape(-1))
        return self._there[start : self._num_used].view(array.shape)

    def send(self) -> None:
        here = torch.from_numpy(np.concatenate(self._arrays))
        if self._there.is_cuda:  # a copy from other memory waits for what the device has to do
            here = here.pin_memory()
        self._there[: self._num_used].copy_(here, non_blocking=True)
