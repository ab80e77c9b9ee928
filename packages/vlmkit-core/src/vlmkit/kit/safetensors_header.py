"""The tensors in a checkpoint's weight files, from the headers of safetensors files.

Reads the first few kilobytes of each file, and never a weight.
"""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint

MAX_HEADER_BYTES = 100_000_000  # the limit of the format
MAX_TENSORS = 200_000
NOTES = "__metadata__"
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits per number of each data type; the size of other types is not checked."""

Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor in a header.

    Attributes:
        dtype: its data type, such as ``BF16``.
        shape: the sizes of its axes.
        data_offsets: the range ``[first, last + 1]`` of its bytes, counted from the header's end.
    """

    dtype: Annotated[str, Meta(max_length=32)]
    shape: Annotated[tuple[Size, ...], Meta(max_length=32)]
    data_offsets: tuple[Size, Size]

    @property
    def num_numbers(self) -> int:
        """Number of its elements."""
        return math.prod(self.shape)

    @property
    def is_consistent(self) -> bool:
        """Whether its number of bytes matches its shape and data type."""
        begin, end = self.data_offsets
        bits = BITS.get(self.dtype)
        return begin <= end and (bits is None or (end - begin) * 8 == self.num_numbers * bits)


_TENSORS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TENSOR = msgspec.json.Decoder(StoredTensor)


@dataclass(frozen=True, slots=True)
class Weights:
    """The totals of the weight files.

    Attributes:
        files: the names of the files, in order.
        num_bytes: size of the files in bytes; for a preview, the size after the download.
        num_by_dtype: number of elements by data type, most frequent first.
    """

    files: tuple[str, ...]
    num_bytes: int
    num_by_dtype: dict[str, int]

    @property
    def num_parameters(self) -> int:
        """Number of stored elements; packed quantised weights count in packed form."""
        return sum(self.num_by_dtype.values())


def weights_of(checkpoint: Checkpoint) -> Weights:
    """Return the totals of a checkpoint's safetensors files; zeros if there are none.

    Raises:
        CheckpointError: a file is not a safetensors file, or a file in the index is missing.
    """
    index = checkpoint.read_json("model.safetensors.index.json").get("weight_map", {})
    names = sorted(set(index.values())) if isinstance(index, dict) else []
    if not names and (checkpoint.path / "model.safetensors").is_file():
        names = ["model.safetensors"]
    names = names or sorted(path.name for path in checkpoint.path.glob("*.safetensors"))
    counts: Counter[str] = Counter()
    num_bytes = 0
    for name in names:
        file_counts, stated_bytes = _count(checkpoint, name)
        counts.update(file_counts)
        size = (checkpoint.path / name).stat().st_size
        num_bytes += stated_bytes if checkpoint.is_preview else size
    return Weights(tuple(names), num_bytes, dict(counts.most_common()))


def _count(checkpoint: Checkpoint, name: str) -> tuple[Counter[str], int]:
    """Return the number of elements by data type of one file, and its bytes by its header."""
    try:
        header, begin = read_header(checkpoint.path / name)
        counts: Counter[str] = Counter()
        num_bytes = begin
        for tensor in header.values():
            counts[tensor.dtype] += tensor.num_numbers
            num_bytes = max(num_bytes, begin + tensor.data_offsets[1])
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{name!r} of model {checkpoint.name!r} is missing", hint="fetch the model again"
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{name!r} of model {checkpoint.name!r} is not a safetensors file"
        ) from error
    return counts, num_bytes


def read_header(path: Path) -> tuple[dict[str, StoredTensor], int]:
    """Return the tensors in the header of a safetensors file, and the offset of their data.

    Raises:
        ValueError: the file is not a safetensors file.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise ValueError(length)
        content = file.read(length)
    if len(content) < length:
        raise ValueError(len(content))
    try:
        stated = _TENSORS.decode(content)
        stated.pop(NOTES, None)
        if len(stated) > MAX_TENSORS:
            raise ValueError(len(stated))
        tensors = {name: _TENSOR.decode(facts) for name, facts in stated.items()}
    except RecursionError:
        raise ValueError(length) from None
    if not all(tensor.is_consistent for tensor in tensors.values()):
        raise ValueError(length)
    return tensors, 8 + length
