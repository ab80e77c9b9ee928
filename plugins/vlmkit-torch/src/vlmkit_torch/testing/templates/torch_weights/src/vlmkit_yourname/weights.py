"""Weights of eight bits with a scale for each row."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch.interfaces.torch_weights import WeightReader
from vlmkit_torch.loading.stored_tensors import StoredTensors

INTEGERS, SCALE = "_int8", "_scale"


@dataclass(frozen=True, slots=True)
class RowScaledWeight:
    """One weight: integers ``[out, in]`` times scales ``[out]``.

    Attributes:
        name: of the plain weight.
        stored: the tensors of the checkpoint.
    """

    name: str
    stored: StoredTensors

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the integers."""
        return self.stored.shape(self.name + INTEGERS)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Integers and scales."""
        return (self.name + INTEGERS, self.name + SCALE)

    def dense(self) -> torch.Tensor:
        """Return their product in single precision, which is exact for scales in half precision."""
        integers, scale = (self.stored[name] for name in self.tensors)
        return integers.float() * scale.float()[:, None]


class RowScaledReader(WeightReader):
    """Finds the weights of a checkpoint by the names of its tensors.

    Args:
        checkpoint: the files.

    Raises:
        CheckpointError: a weight has no scales, or scales of another shape.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        stored = StoredTensors(checkpoint)
        names = [name.removesuffix(INTEGERS) for name in stored if name.endswith(INTEGERS)]
        self._weights = {name: RowScaledWeight(name, stored) for name in names}
        for name, weight in self._weights.items():
            if name + SCALE not in stored or stored.shape(name + SCALE) != weight.shape[:1]:
                raise CheckpointError(f"weight {name!r} has no scale for each of its rows")

    def weights(self) -> Mapping[str, RowScaledWeight]:
        """Return them by the names of plain weights."""
        return self._weights
