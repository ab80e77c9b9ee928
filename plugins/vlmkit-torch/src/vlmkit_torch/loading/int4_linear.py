"""A linear layer that computes with a checkpoint's own 4-bit integers on a CPU.

Torch's operator takes integers from -8 to 7 in groups. Each has a scale and a number that is added.
The operator multiplies in float32 and rounds its output to bfloat16. Knows no files and no other
layers.
"""

from typing import Any

import numpy as np
import torch

from vlmkit_quantized.weight import QuantizedLinear
from vlmkit_torch.loading.packed_linear import PackedLinear, column_order, has_equal_groups
from vlmkit_torch.support.packed_forms import INT4

DTYPE = torch.bfloat16
CHECKED_ROWS = 2
MAX_ERROR = 4 * 2**-9  # of a sum of magnitudes; three roundings to 8 bits, and float32's
MIDDLE = 8  # the code that the operator takes for zero
INNER_TILES = 1  # has no meaning on a CPU


def has_operators() -> bool:
    """Return whether this version of torch has the 4-bit operators for CPUs."""
    names = ("_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu")
    return all(hasattr(torch.ops.aten, name) for name in names)


class Int4Linear(PackedLinear):
    """A linear layer with packed weights.

    The weight of code ``q`` is ``(q - zero_point) * scale``, with the scale rounded to bfloat16. So
    it differs from the dense weight by as much as one in bfloat16 does: a relative 2**-9. The
    operator wants ``(8 - zero_point) * scale`` in bfloat16, which may round. What rounding left is
    added by a second product, of sums over groups.

    Args:
        codes: packed by the operator.
        scales_and_zeros: of shape ``[groups, rows, 2]``.
        rest: what rounding the zeros left, of shape ``[groups, rows]``; None if nothing.
        order: the columns in the order of groups; None if they are in order.
    """

    rest: torch.Tensor | None

    def __init__(
        self,
        codes: torch.Tensor,
        scales_and_zeros: torch.Tensor,
        rest: torch.Tensor | None,
        order: torch.Tensor | None,
    ) -> None:
        groups, num_outputs, _ = scales_and_zeros.shape
        super().__init__(2 * codes.shape[1], num_outputs, order)
        self._group_size = self.in_features // groups
        self.register_buffer("codes", codes)
        self.register_buffer("scales_and_zeros", scales_and_zeros)
        self.register_buffer("rest", rest)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T + bias``."""
        flat = rows.reshape(-1, self.in_features)
        if self.order is not None:
            flat = flat[:, self.order]
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(  # noqa: SLF001
            flat.contiguous(), self.codes, self._group_size, self.scales_and_zeros
        )
        if self.rest is not None:
            sums = flat.view(len(flat), -1, self._group_size).sum(-1, dtype=torch.float32)
            out += sums.to(flat.dtype) @ self.rest
        if self.bias is not None:
            out += self.bias
        return out.view(*rows.shape[:-1], self.out_features)


def packed(weight: QuantizedLinear) -> Int4Linear | None:
    """Return a layer with the integers of a weight, without a bias; None if none can hold them."""
    rows, columns = weight.codes.shape
    is_plain = weight.zero_points is not None and weight.offsets is None and weight.levels is None
    size = INT4.group_size(columns, weight.scales.shape[1])
    if not is_plain or weight.bits > INT4.max_bits or size is None or rows % INT4.row_multiple:
        return None
    if not has_equal_groups(weight):
        return None
    order = column_order(weight)
    codes = weight.codes if order is None else weight.codes[:, order.numpy()]
    scales, zeros, rest = _scales(weight, columns // size)
    pairs = torch.stack([scales.T, zeros.T], -1).contiguous()
    has_rest = bool(rest.any())
    return Int4Linear(
        _pack(torch.from_numpy(codes.astype(np.int32))),
        pairs,
        rest.T.contiguous() if has_rest else None,
        order,
    )


def agrees(layer: Int4Linear, weight: QuantizedLinear) -> bool:
    """Return whether a layer computes what the dense weight does, but for rounding, on this CPU.

    A few rows are multiplied. Scales, products and their sum are rounded to bfloat16 each.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(CHECKED_ROWS, layer.in_features, generator=generator).to(DTYPE)
    dense = torch.from_numpy(weight.dense())
    difference = (layer(rows).float() - rows.float() @ dense.T).abs()
    return bool((difference <= MAX_ERROR * (rows.float().abs() @ dense.abs().T)).all())


def _scales(weight: QuantizedLinear, num_groups: int) -> tuple[torch.Tensor, ...]:
    """Return scales, what is added, and what rounding that left, each ``[rows, num_groups]``."""
    found = torch.from_numpy(weight.scales.astype(np.float32))  # a copy, as files are read-only
    if weight.global_scale is not None:
        found = found * float(weight.global_scale)
    scales = found.to(DTYPE)
    points: Any = weight.zero_points
    distance = MIDDLE - torch.from_numpy(points.astype(np.float32))
    exact = distance * scales.float()  # 8 bits and 5 bits: exact in float32
    zeros = exact.to(DTYPE)
    rest = (exact - zeros.float()).to(DTYPE)
    repeats = num_groups // found.shape[1]
    return tuple(each.repeat_interleave(repeats, 1) for each in (scales, zeros, rest))


def _pack(codes: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, INNER_TILES)  # noqa: SLF001
    return found
