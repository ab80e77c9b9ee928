"""The readers of this plugin.

``QuantizedReader`` supplies weights itself. With the others, transformers reads the weights, with
changed settings.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from vlmkit.kit import heap
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_quantized import formats
from vlmkit_quantized.stored import Floats
from vlmkit_quantized.weight import Layout, QuantizedLinear
from vlmkit_torch.interfaces.torch_weights import WeightReader
from vlmkit_torch.loading import decompression
from vlmkit_torch.support import compressed_tensors, quantization

T = TypeVar("T")


class CommonWeight(Protocol):
    """A weight whose values vlmkit-quantized defines."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the plain weight."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors in the files that it consists of."""

    @property
    def layout(self) -> Layout | None:
        """The form of the weight, before its numbers are read; None if it is plain."""

    def packed(self) -> QuantizedLinear:
        """Return the weight in its quantized form; it must have a layout."""

    def dense(self) -> Floats:
        """Return the values in float32."""


@dataclass(frozen=True)
class QuantizedLayer:
    """A weight that vlmkit-quantized reads or rounds.

    Attributes:
        weight: the weight.
    """

    weight: CommonWeight

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the plain weight."""
        return self.weight.shape

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors in the files that it consists of."""
        return self.weight.tensors

    def dense(self) -> torch.Tensor:
        """Return the values in float32."""
        return torch.from_numpy(self.weight.dense())

    def packed(self, pack: Callable[[QuantizedLinear], T | None]) -> T | None:
        """Return what a function makes of the integers; None if it makes nothing of them."""
        return None if self.weight.layout is None else pack(self.weight.packed())


class QuantizedReader(WeightReader):
    """Weights of the formats of vlmkit-quantized, expanded one by one.

    Args:
        checkpoint: the files.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def weights(self) -> Mapping[str, QuantizedLayer]:
        """Return the weights; reads zero points where the format depends on them."""
        found = formats.weights(self._checkpoint)
        return {name: QuantizedLayer(weight) for name, weight in found.items()}

    def reading(self) -> AbstractContextManager[None]:
        """Return what is freed to the system; otherwise a third of the model stays allocated."""
        return heap.returning_large_blocks()


class TransformersReader(WeightReader):
    """Floats of 8 and 4 bits are expanded; packages run the layers of other methods."""

    def transformers_config(self, stated: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the configuration that expands, where the method is one of floats."""
        expanded: Mapping[str, Any] = quantization.expand(stated)
        return expanded


class CompressedTensorsReader(WeightReader):
    """Layers of compressed-tensors with quantized activations, by its package.

    Args:
        checkpoint: the files.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def transformers_config(self, stated: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the configuration in the form of the current tool."""
        expanded: Mapping[str, Any] = quantization.expand(stated)
        return expanded

    def prepare(self, auto: Any, config: Any) -> None:
        """Leave out the layers that the files hold uncompressed."""
        decompression.ignore_plain_layers(self._checkpoint, auto, config)

    def reading(self) -> AbstractContextManager[None]:
        """Hide progress bars and log lines of the package."""
        return decompression.silenced()

    def finish(self, model: Any) -> None:
        """Decompress the layers."""
        decompression.decompress(model)


def own_reader(checkpoint: Checkpoint) -> WeightReader | None:
    """Return the reader of this plugin for a checkpoint; None if it is not quantized."""
    method = quantization.method_of(checkpoint)
    if method is None:
        return None
    if quantization.is_read_here(checkpoint):
        return QuantizedReader(checkpoint)
    if method == compressed_tensors.PACKAGE:
        return CompressedTensorsReader(checkpoint)
    return TransformersReader()
