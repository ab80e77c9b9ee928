"""Passes the weights of a reader to transformers, one by one, and checks each."""

import threading
from typing import Any

import torch

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch.interfaces.torch_weights import StoredWeight
from vlmkit_torch.loading.packed_layers import PackedLayers
from vlmkit_torch.loading.reader_choice import Reader
from vlmkit_torch.loading.stored_tensors import StoredTensors


class SuppliedWeights:
    """What transformers loads in place of the files.

    Attributes:
        failure: the first error of a weight, which transformers may hide.

    Args:
        checkpoint: the files.
        reader: supplies the quantized weights.
        layers: those that stay packed; None if none does.
    """

    def __init__(
        self, checkpoint: Checkpoint, reader: Reader, layers: PackedLayers | None = None
    ) -> None:
        self._layers = layers
        self.failure: CheckpointError | None = None
        self._name = checkpoint.name
        self._reader = reader
        self._stored = StoredTensors(checkpoint)
        self._lock = threading.Lock()

    def state_dict(self) -> dict[str, Any]:
        """Return each weight as what returns it when it is indexed.

        Raises:
            CheckpointError: the reader contradicts the files.
        """
        weights = self._reader.weights()
        used: dict[str, str] = {}
        for name, weight in weights.items():
            for tensor in self._reader.call("tensors", lambda own=weight: own.tensors):
                if tensor not in self._stored:
                    raise self._error(name, f"consists of {tensor!r}, which the files do not have")
                if tensor in used:
                    raise self._error(name, f"and {used[tensor]!r} consist of {tensor!r}")
                used[tensor] = name
        plain = [name for name in self._stored if name not in used]
        if twice := next((name for name in plain if name in weights), None):
            raise self._error(twice, "is in the files, too")
        supplied = {name: _Lazy(self, name, weight) for name, weight in weights.items()}
        return {name: self._stored.slice(name) for name in plain} | supplied

    def value(self, name: str, weight: StoredWeight) -> torch.Tensor:
        """Return one weight, or a placeholder if it stays packed; one is computed at a time.

        Raises:
            CheckpointError: the reader fails, or returns something else than it must.
        """
        try:
            with self._lock:
                if self._layers is not None:
                    placeholder = self._layers.placeholder(name, weight)
                    if placeholder is not None:
                        return placeholder
                found: object = self._reader.call(f"dense of {name}", weight.dense)
                shape = tuple(self._reader.call("shape", lambda: weight.shape))
            if not isinstance(found, torch.Tensor) or not found.is_floating_point():
                what = found.dtype if isinstance(found, torch.Tensor) else type(found).__name__
                raise self._error(name, f"is {what}, not a tensor of floating-point numbers")
            if tuple(found.shape) != shape:
                raise self._error(name, f"has shape {list(found.shape)} instead of {list(shape)}")
            if not found.isfinite().all():
                raise self._error(name, "has values that are not finite")
        except CheckpointError as error:
            self.failure = self.failure or error
            raise
        return found

    def _error(self, name: str, what: str) -> CheckpointError:
        return CheckpointError(
            f"model {self._name!r}: weight {name!r} {what}, by {self._reader.who}",
            hint="its config.json and its weights may contradict each other",
        )


class _Lazy:
    """A weight that is computed when it is indexed, like a slice of safetensors."""

    def __init__(self, supplied: SuppliedWeights, name: str, weight: StoredWeight) -> None:
        self._supplied = supplied
        self._name = name
        self._weight = weight

    def __getitem__(self, _: object) -> torch.Tensor:
        return self._supplied.value(self._name, self._weight)

    def get_shape(self) -> list[int]:
        """Return the shape, as safetensors does."""
        return list(self._weight.shape)
