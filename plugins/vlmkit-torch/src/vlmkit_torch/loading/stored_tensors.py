"""The tensors of a checkpoint's safetensors files, memory-mapped, by their names."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from safetensors import safe_open

from vlmkit.kit import safetensors_header
from vlmkit.kit.checkpoint import Checkpoint


class StoredTensors(Mapping[str, torch.Tensor]):
    """The tensors of all files; reading one reads it from its file.

    Args:
        checkpoint: the files. Nothing is opened before the first tensor is asked for.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._open: dict[str, Any] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file(name).get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._locations)

    def __len__(self) -> int:
        return len(self._locations)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, by the header of its file."""
        return tuple(self._file(name).get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """Return the dtype of a tensor in the words of safetensors, such as ``I8``."""
        return self._locations[name][1]

    def slice(self, name: str) -> Any:
        """Return what reads a tensor when it is indexed, as transformers expects."""
        return self._file(name).get_slice(name)

    @cached_property
    def _locations(self) -> dict[str, tuple[str, str]]:
        """The file and the dtype of each tensor."""
        places: dict[str, tuple[str, str]] = {}
        for file in safetensors_header.weights_of(self._checkpoint).files:
            header, _ = safetensors_header.read_header(self._checkpoint.path / file)
            places |= {name: (file, tensor.dtype) for name, tensor in header.items()}
        return places

    def _file(self, name: str) -> Any:
        file, _ = self._locations[name]
        if file not in self._open:
            path = self._checkpoint.path / file
            opened: Any = safe_open(path, framework="pt", device="cpu")
            self._open[file] = opened.__enter__()
        return self._open[file]
