"""The readers of this plugin: transformers reads the weights, with changed settings."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_torch.interfaces.torch_weights import WeightReader
from vlmkit_torch.loading import decompression
from vlmkit_torch.support import compressed_tensors, quantization


class TransformersReader(WeightReader):
    """Floats of 8 and 4 bits are expanded; packages run the layers of other methods."""

    def transformers_config(self, stated: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the configuration that expands, where the method is one of floats."""
        expanded: Mapping[str, Any] = quantization.expand(stated)
        return expanded


class CompressedTensorsReader(WeightReader):
    """Layers of compressed-tensors, decompressed after transformers read them.

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
    if method == compressed_tensors.PACKAGE:
        return CompressedTensorsReader(checkpoint)
    return TransformersReader()
