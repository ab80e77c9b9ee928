"""What the weight files of a checkpoint hold, from their headers alone.

Reads the first few kilobytes of safetensors files; never a weight.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint

MAX_HEADER_BYTES = 100_000_000  # the format's own bound


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
        for tensor, facts in header.items():
            if tensor != "__metadata__":
                counts[str(facts["dtype"])] += math.prod(facts["shape"])
                num_bytes = max(num_bytes, begin + int(facts["data_offsets"][1]))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{name!r} of model {checkpoint.name!r} is missing", hint="fetch the model again"
        ) from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{name!r} of model {checkpoint.name!r} is not a safetensors file"
        ) from error
    return counts, num_bytes


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return what a safetensors file says of its tensors, and the byte where their data begins.

    Raises:
        ValueError: it is not a safetensors file.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise ValueError(length)
        header: dict[str, Any] = json.loads(file.read(length))
        return header, 8 + length
