"""What the weight files of a checkpoint hold, from their headers alone.

Reads the first few kilobytes of safetensors files; never a weight.
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

MAX_HEADER_BYTES = 100_000_000  # the format's own bound
MAX_TENSORS = 200_000
NOTES = "__metadata__"
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits of a number of each data type; a type that is not here is the reading library's matter."""

Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class StoredTensor(msgspec.Struct, frozen=True):
    """What a header says of a tensor.

    Attributes:
        dtype: of its numbers, such as ``BF16``.
        shape: its axes.
        data_offsets: its first byte, and one past its last, behind the header.
    """

    dtype: Annotated[str, Meta(max_length=32)]
    shape: Annotated[tuple[Size, ...], Meta(max_length=32)]
    data_offsets: tuple[Size, Size]

    @property
    def num_numbers(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def is_consistent(self) -> bool:
        """Whether its bytes are as many as its numbers take."""
        begin, end = self.data_offsets
        bits = BITS.get(self.dtype)
        return begin <= end and (bits is None or (end - begin) * 8 == self.num_numbers * bits)


_TENSORS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TENSOR = msgspec.json.Decoder(StoredTensor)


@dataclass(frozen=True, slots=True)
class Weights:
    """What the weight files add up to.

    Attributes:
        files: their names, in order.
        num_bytes: size of the files, of a preview what they will have.
        num_by_dtype: how many numbers are stored in each data type, most first.
    """

    files: tuple[str, ...]
    num_bytes: int
    num_by_dtype: dict[str, int]

    @property
    def num_parameters(self) -> int:
        """How many numbers are stored; packed quantised weights count as they are packed."""
        return sum(self.num_by_dtype.values())


def weights_of(checkpoint: Checkpoint) -> Weights:
    """Add up the safetensors files that a checkpoint is loaded from; none gives zeros.

    Raises:
        CheckpointError: a file is not a safetensors file, or the index names one that is absent.
    """
    index = checkpoint.read_json("model.safetensors.index.json").get("weight_map", {})
    names = sorted(set(index.values())) if isinstance(index, dict) else []
    if not names and (checkpoint.path / "model.safetensors").is_file():
        names = ["model.safetensors"]
    names = names or sorted(path.name for path in checkpoint.path.glob("*.safetensors"))
    counts: Counter[str] = Counter()
    num_bytes = 0
    for name in names:
        own, stated_bytes = _count(checkpoint, name)
        counts.update(own)
        size = (checkpoint.path / name).stat().st_size
        num_bytes += stated_bytes if checkpoint.is_preview else size
    return Weights(tuple(names), num_bytes, dict(counts.most_common()))


def _count(checkpoint: Checkpoint, name: str) -> tuple[Counter[str], int]:
    """Return how many numbers of each data type one file holds, and its bytes by its header."""
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
    """Return what a safetensors file says of its tensors, and the byte where their data begins.

    Raises:
        ValueError: it is not a safetensors file.
        OSError: it cannot be read.
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
