"""The difference of two encoders' features for the same images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Array

if TYPE_CHECKING:
    import numpy as np

EMBEDDINGS = "embeddings"

Levels = Mapping[str, "np.ndarray[Any, Any]"]
"""Rows ``[rows, width]`` float64 of one image: its embeddings, and each extra array by name."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference of one level of two encoders' features over all images.

    Attributes:
        level: ``embeddings``, or the name of an extra array.
        largest_absolute: of any two values.
        largest_relative: length of a row's difference, over the longer of the two rows.
        least_cosine: of any two rows.
        problem: why the level cannot be compared; the numbers are meaningless then.
    """

    level: str
    largest_absolute: float = 0.0
    largest_relative: float = 0.0
    least_cosine: float = 1.0
    problem: str | None = None

    def is_within(self, tolerance: float) -> bool:
        """Whether the level was compared and no row differs by more than this part of its size."""
        return self.problem is None and self.largest_relative <= tolerance


def levels_of(features: MediaFeatures) -> dict[str, "np.ndarray[Any, Any]"]:
    """Return an image's rows on the host, in a precision that loses nothing."""
    arrays = {EMBEDDINGS: features.embeddings, **features.extra}
    return {name: _host_rows(array) for name, array in arrays.items()}


def differences(one: Sequence[Levels], other: Sequence[Levels]) -> list[Difference]:
    """Compare two encoders' features of the same images, level by level."""
    names = dict.fromkeys(name for levels in (*one, *other) for name in levels)
    return [_difference(name, one, other) for name in names]


def _difference(name: str, one: Sequence[Levels], other: Sequence[Levels]) -> Difference:
    found = [
        _image_difference(name, a.get(name), b.get(name)) for a, b in zip(one, other, strict=True)
    ]
    problem = next((d.problem for d in found if d.problem), None)
    return Difference(
        name,
        max(d.largest_absolute for d in found),
        max(d.largest_relative for d in found),
        min(d.least_cosine for d in found),
        problem,
    )


def _image_difference(name: str, a: Any, b: Any) -> Difference:
    import numpy as np

    if a is None or b is None:
        return Difference(name, problem="only one of the two has it")
    if a.shape != b.shape:
        shapes = f"{list(a.shape)} and {list(b.shape)}"
        return Difference(name, problem=f"the shapes differ: {shapes}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return Difference(name, problem="some values are not finite")
    if not a.size:
        return Difference(name)
    gap = a - b
    sizes = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    longest = np.maximum(*sizes)
    relative = _ratio(np.linalg.norm(gap, axis=1), longest, of_nothing=0.0)
    cosine = _ratio((a * b).sum(axis=1), sizes[0] * sizes[1], of_nothing=1.0)
    cosine = np.where((longest > 0) & (np.minimum(*sizes) == 0), 0.0, cosine)
    return Difference(
        name, float(np.abs(gap).max()), float(relative.max()), float(min(cosine.min(), 1.0))
    )


def _ratio(above: Any, below: Any, *, of_nothing: float) -> Any:
    """Divide, with a defined value for a row of zeros."""
    import numpy as np

    return np.where(below > 0, above / np.where(below > 0, below, 1.0), of_nothing)


def _host_rows(array: Array) -> "np.ndarray[Any, Any]":
    """Return any library's array as float64 rows on the host."""
    import array_api_compat
    import numpy as np

    value: Any = array
    try:
        xp = array_api_compat.array_namespace(value)
    except TypeError:  # some other library's, which says no more than DLPack
        host = np.from_dlpack(value)
    else:
        host = np.asarray(array_api_compat.to_device(xp.astype(value, xp.float32), "cpu"))
    rows = host.astype(np.float64)
    return rows.reshape(-1, rows.shape[-1]) if rows.ndim else rows.reshape(1, 1)
