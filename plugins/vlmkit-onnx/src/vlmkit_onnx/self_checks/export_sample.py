"""Checks at load that a vision graph computes the same rows as when it was exported.

The exporter writes the arrays of two images, and their rows by the model's own code, beside the
graph. A graph that was correct at export may be wrong with another ONNX Runtime, device or CPU.
"""

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import CheckpointError
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot
from vlmkit_onnx.folder.manifest import TowerPrecision

FILE = "vision_sample.npz"
MAX_BYTES = 2**28


class Bound(NamedTuple):
    """The largest difference of an image's rows from those of the model's own code.

    Attributes:
        at_export: on the machine that exports.
        at_load: on any other machine, where kernels and rounding differ.
    """

    at_export: float
    at_load: float


# float32: relative to the largest number; convolutions in TF32 reach a thousandth. w8a8: the root
# mean square of the differences, relative to that of the rows.
BOUNDS: Mapping[TowerPrecision, Bound] = MappingProxyType(
    {"fp32": Bound(1e-4, 1e-2), "w8a8": Bound(0.15, 0.25)}
)
Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Encode: TypeAlias = Callable[[Sequence[MediaSlot]], list[MediaFeatures]]


@runtime_checkable
class HasExportSample(Protocol):
    """An encoder whose graph may have a sample file beside it."""

    def refuse_unlike_export(self) -> None:
        """Compare the two images; see :func:`refuse_unlike`."""
        ...


def write(folder: Path, images: Sequence[tuple[Arrays, Arrays]]) -> None:
    """Write images beside a graph: a processor's arrays, and rows by the graph's names."""
    named = {
        f"{number}/{kind}/{name}": array
        for number, pair in enumerate(images)
        for kind, arrays in zip(("in", "out"), pair, strict=True)
        for name, array in arrays.items()
    }
    np.savez(folder / FILE, allow_pickle=False, **named)


def refuse_unlike(encode: Encode, folder: Path, main: str, precision: TowerPrecision) -> None:
    """Encode the images beside a graph, if there are any, and compare their rows.

    Args:
        encode: runs the graph.
        folder: of the graph.
        main: the name of the rows that are not extra ones.
        precision: of the graph.

    Raises:
        CheckpointError: the rows differ by more than rounding, or the file is broken.
    """
    for arrays, rows in _images(folder / FILE):
        count = len(rows[main])
        (features,) = encode([MediaSlot(0, count, b"", arrays, count)])
        made = {main: features.embeddings, **features.extra}
        if not difference(made, rows, precision) <= BOUNDS[precision].at_load:
            raise CheckpointError(
                f"{folder.name!r} has a vision graph that does not compute here what it computed "
                "when it was exported",
                hint="export the model again here: vlmkit export MODEL DIR",
            )


def difference(made: Mapping[str, Any], wanted: Arrays, precision: TowerPrecision) -> float:
    """Return the difference of an image's rows in the measure of the precision; see ``BOUNDS``."""
    if made.keys() != wanted.keys():
        return float("inf")
    return max(_distance(np.asarray(made[name]), wanted[name], precision) for name in wanted)


def _distance(found: NDArray[Any], wanted: NDArray[Any], precision: TowerPrecision) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    away = np.abs(found - wanted)
    if precision == "w8a8":
        off, size = float(np.linalg.norm(away)), float(np.linalg.norm(wanted))
    else:
        off, size = float(away.max()), float(np.abs(wanted).max())
    return off / max(size, 1e-6) if np.isfinite(off) else float("inf")


def _images(path: Path) -> list[tuple[Arrays, Arrays]]:
    if not path.is_file():
        return []
    try:
        with zipfile.ZipFile(path) as parts:
            if sum(part.file_size for part in parts.infolist()) > MAX_BYTES:
                raise ValueError("too large")
        with np.load(path, allow_pickle=False) as stored:
            images: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
            for key in stored.files:
                number, kind, name = key.split("/")
                images.setdefault(number, ({}, {}))[kind == "out"][name] = stored[key]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"{FILE!r} is not what an export has beside its vision graph",
            hint="export the model again: vlmkit export MODEL DIR",
        ) from error
    return list(images.values())
