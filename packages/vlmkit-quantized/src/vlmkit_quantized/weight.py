"""A quantized weight: integers or low-bit floats in groups, with scales and zero points.

The common form of all formats. ``dense()`` defines the value of a weight; what computes with the
packed form must agree with it. Nothing here knows a format.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.packing import Codes
from vlmkit_quantized.stored import Floats


@dataclass(frozen=True, slots=True)
class QuantizedLinear:
    """The weight of a linear layer, with ``columns`` inputs and ``rows`` outputs.

    The value in row ``r`` and column ``c``, which belongs to group ``g``, is
    ``(codes[r, c] - zero_points[r, g]) * scales[r, g] * global_scale``. With ``levels``, it is
    ``levels[codes[r, c]] * scales[r, g] * global_scale``. ``offsets[r, g]`` is added last. Float32
    computes it from left to right.

    Attributes:
        codes: a number of ``bits`` bits for each weight, of shape ``[rows, columns]``.
        bits: of a code, 2 to 8.
        scales: of shape ``[rows, groups]``.
        zero_points: the code of zero, of shape ``[rows, groups]`` or ``[1, 1]``; None with levels.
        levels: the value of each code, if codes stand for floats.
        column_groups: the group of each column. None if columns are in order, in groups of equal
            size.
        global_scale: of all weights.
        offsets: of shape ``[rows, groups]``; None if there are none.
    """

    codes: Codes
    bits: int
    scales: Floats
    zero_points: NDArray[np.int16] | None = None
    levels: Floats | None = None
    column_groups: NDArray[np.int32] | None = None
    global_scale: np.float32 | None = None
    offsets: Floats | None = None

    def __post_init__(self) -> None:
        """Validate scales and zero points.

        Raises:
            FormatError: a scale or an offset is not finite, or a zero point is no code.
        """
        if not np.isfinite(self.scales).all():
            raise FormatError("has scales that are not finite")
        if self.global_scale is not None and not np.isfinite(self.global_scale):
            raise FormatError("has a global scale that is not finite")
        if self.offsets is not None and not np.isfinite(self.offsets).all():
            raise FormatError("has offsets that are not finite")
        zeros = self.zero_points
        if zeros is not None and not ((zeros >= 0) & (zeros < 2**self.bits)).all():
            raise FormatError(f"has zero points that {self.bits} bits cannot hold")

    def dense(self) -> Floats:
        """Return the values in float32, of shape ``[rows, columns]``."""
        rows, columns = self.codes.shape
        codes = self.codes
        values = codes.astype(np.float32) if self.levels is None else self.levels[codes]
        groups = self.column_groups
        if groups is None:
            values = values.reshape(rows, self.scales.shape[1], -1)
        if self.zero_points is not None:
            values -= self._by_column(self.zero_points.astype(np.float32))
        values *= self._by_column(self.scales)
        if self.global_scale is not None:
            values *= self.global_scale
        if self.offsets is not None:
            values += self._by_column(self.offsets)
        return values.reshape(rows, columns)

    def of_rows(self, rows: NDArray[np.intp]) -> "QuantizedLinear":
        """Return the weight that has some rows of this one, in any order."""

        def taken(of_rows: Any) -> Any:
            return of_rows if of_rows is None or len(of_rows) != num_rows else of_rows[rows]

        num_rows = len(self.codes)
        return replace(
            self,
            codes=taken(self.codes),
            scales=taken(self.scales),
            zero_points=taken(self.zero_points),
            offsets=taken(self.offsets),
        )

    def _by_column(self, of_groups: Floats) -> Floats:
        """Return numbers of groups in a shape that fits the values."""
        if self.column_groups is None or of_groups.shape == (1, 1):
            return of_groups[..., None] if self.column_groups is None else of_groups
        return of_groups[:, self.column_groups]


FLOAT_CODES = "codes that stand for floats"
ANY_ORDER = "columns in any order of groups"


@dataclass(frozen=True, slots=True)
class Layout:
    """The form of a weight, before its numbers are read.

    Attributes:
        bits: of a code, 2 to 8.
        group_size: adjacent columns that share a scale.
        beyond: what it has beyond integers, and scales and zero points of such groups, in words;
            empty for nothing.
    """

    bits: int
    group_size: int
    beyond: str = ""


@dataclass(frozen=True)
class QuantizedWeight:
    """A quantized weight in the files of a checkpoint.

    Attributes:
        name: its name in a plain checkpoint, such as ``model.layers.0.mlp.up_proj.weight``.
        shape: the shape of the plain weight, ``(rows, columns)``.
        tensors: the names of the tensors in the files that it consists of.
        layout: its form.
        read: reads it, keeps nothing, and raises :class:`.FormatError` if it is contradictory.
    """

    name: str
    shape: tuple[int, ...]
    tensors: tuple[str, ...]
    layout: Layout
    read: Callable[[], QuantizedLinear]
