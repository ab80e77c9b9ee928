"""The tensors of a checkpoint's safetensors files as arrays, memory-mapped one at a time.

Validates the headers. Has no torch, so bfloat16 and 8-bit floats arrive in other types.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmkit.kit import safetensors_header
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.safetensors_header import StoredTensor
from vlmkit_quantized.errors import FormatError

Floats = NDArray[np.float32]

# Types of NumPy for those of safetensors; those without one arrive as unsigned integers.
TYPES = {
    "U8": "u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "BOOL": "?",
    "I8": "i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "BF16": "<u2",
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0"), "u1"),
}
FLOATS = frozenset({"F16", "BF16", "F32"})


@dataclass(frozen=True, slots=True)
class StoredArray:
    """A tensor in a file.

    Attributes:
        file: the file.
        begin: the offset of its first byte in the file.
        dtype: its type in the words of safetensors, such as ``BF16``.
        shape: the sizes of its axes.
    """

    file: Path
    begin: int
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> NDArray[Any]:
        """Return the numbers, mapped from the file and read-only.

        Raises:
            FormatError: they have a type without an equivalent in NumPy.
        """
        if (dtype := TYPES.get(self.dtype)) is None:
            raise FormatError(f"its weights have numbers of the unknown type {self.dtype!r}")
        if not all(self.shape):
            return np.zeros(self.shape, dtype)
        return np.memmap(self.file, dtype, "r", self.begin, self.shape or (1,)).reshape(self.shape)

    def floats(self) -> Floats:
        """Return floating-point numbers as float32, exactly.

        Raises:
            FormatError: they are none of 16 or 32 bits.
        """
        if self.dtype not in FLOATS:
            raise FormatError(f"its weights have numbers of {self.dtype!r} in place of floats")
        return widened(self.read(), self.dtype)


def widened(numbers: NDArray[Any], dtype: str) -> Floats:
    """Return floating-point numbers as float32, exactly.

    Args:
        numbers: of the type that :data:`TYPES` has for their type.
        dtype: their type, which must be one of :data:`FLOATS`.
    """
    if dtype == "BF16":
        wide = numbers.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return numbers.astype(np.float32)


class StoredArrays(Mapping[str, StoredArray]):
    """The tensors of all files of a checkpoint; reads headers only.

    Args:
        checkpoint: the files. Nothing is opened before the first name is looked up.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __getitem__(self, name: str) -> StoredArray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @cached_property
    def layers(self) -> dict[str, dict[str, StoredArray]]:
        """The tensors by the layer that they belong to, and then by the rest of their names."""
        found: dict[str, dict[str, StoredArray]] = {}
        for name, array in self.items():
            layer, _, part = name.rpartition(".")
            found.setdefault(layer, {})[part] = array
        return found

    @cached_property
    def _arrays(self) -> dict[str, StoredArray]:
        arrays: dict[str, StoredArray] = {}
        for name in safetensors_header.weights_of(self._checkpoint).files:
            file = self._checkpoint.path / name
            header, begin = safetensors_header.read_header(file)
            num_bytes = None if self._checkpoint.is_preview else file.stat().st_size - begin
            _validate(header, name, num_bytes)
            if twice := arrays.keys() & header.keys():
                raise FormatError(f"two of its files have a tensor {min(twice)!r}")
            for key, tensor in header.items():
                offset = begin + tensor.data_offsets[0]
                arrays[key] = StoredArray(file, offset, tensor.dtype, tensor.shape)
        return arrays


def _validate(header: Mapping[str, StoredTensor], file: str, num_bytes: int | None) -> None:
    """Require that tensors lie one behind the other up to the end, as the format demands.

    Args:
        header: the tensors.
        file: the name of their file.
        num_bytes: the size of the file without its header; None if the rest is not here yet.

    Raises:
        FormatError: some overlap, there is a gap, or the file ends elsewhere.
    """
    end = 0
    for begin, next_begin in sorted(tensor.data_offsets for tensor in header.values()):
        if begin != end:
            raise FormatError(f"its file {file!r} has tensors that overlap, or gaps between them")
        end = next_begin
    if num_bytes not in (None, end):
        raise FormatError(f"its file {file!r} ends elsewhere than its header states")
