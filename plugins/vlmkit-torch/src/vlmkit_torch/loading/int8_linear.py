"""Linear layers that compute with a checkpoint's own integers by torch's 8-bit operator for CPUs.

The operator takes integers from -128 to 127, and one scale for each output.
"""

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from vlmkit_quantized.weight import QuantizedLinear
from vlmkit_torch.loading.operator_linear import DTYPE, OperatorLinear, is_plain, scales_of
from vlmkit_torch.support.packed_forms import INT8

MIDDLE = 128  # the code that the operator takes for zero


class Int8Linear(OperatorLinear):
    """A linear layer with codes of 5 to 8 bits, and one scale for each output.

    The weight of code ``q`` is ``(q - zero_point) * scale``. The scale is rounded to bfloat16. The
    operator computes ``(q - 128) * scale``. The rest is added: the sum of the inputs times
    ``(128 - zero_point) * scale``.

    Args:
        codes: less 128, of shape ``[outputs, inputs]``.
        scales: of shape ``[outputs]``.
        added: times the sum of the inputs, in float32; None if zero.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    added: torch.Tensor | None

    def __init__(
        self, codes: torch.Tensor, scales: torch.Tensor, added: torch.Tensor | None
    ) -> None:
        num_outputs, num_inputs = codes.shape
        super().__init__(num_inputs, num_outputs, None)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", scales)
        self.register_buffer("added", added)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T``."""
        out: torch.Tensor = torch.ops.aten._weight_int8pack_mm(rows, self.codes, self.scales)  # noqa: SLF001
        return self._with_added(out, rows)

    def expanded_product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T``; bfloat16 holds the codes exactly."""
        out = functional.linear(rows, self.codes.to(rows.dtype))
        out *= self.scales
        return self._with_added(out, rows)

    def _with_added(self, out: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if self.added is not None:
            sums = rows.sum(-1, keepdim=True, dtype=torch.float32)
            out = (out.float() + sums * self.added).to(rows.dtype)
        return out


def packed(weight: QuantizedLinear) -> Int8Linear | None:
    """Return a layer with the codes of a weight, without a bias; None if it cannot hold them."""
    _, columns = weight.codes.shape
    has_bits = INT8.min_bits <= weight.bits <= INT8.max_bits
    has_one_group = weight.scales.shape[1] == 1
    if not (is_plain(weight) and has_bits and has_one_group) or columns % INT8.column_multiple:
        return None
    scales = scales_of(weight)[:, 0].to(DTYPE)
    points: Any = weight.zero_points
    distance = MIDDLE - torch.from_numpy(points.astype(np.float32))[:, 0]
    added = (distance * scales.float()).expand(scales.shape)
    codes = torch.from_numpy(weight.codes ^ np.uint8(MIDDLE)).view(torch.int8)
    return Int8Linear(codes, scales, added.contiguous() if bool(added.any()) else None)
