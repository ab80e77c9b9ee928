"""What linear layers have in common that compute by torch's operators for packed weights on a CPU.

The operators multiply in float32 and round their output to bfloat16. Knows no files and no other
layers.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from vlmkit_quantized.weight import QuantizedLinear
from vlmkit_torch.loading.packed_linear import PackedLinear

DTYPE = torch.bfloat16
CHECKED_ROWS = 2
MAX_ERROR = 4 * 2**-9  # of a sum of magnitudes; three roundings to 8 bits, and float32's
OPERATORS = (
    "_convert_weight_to_int4pack_for_cpu",
    "_weight_int4pack_mm_for_cpu",
    "_weight_int8pack_mm",
)


def has_operators() -> bool:
    """Return whether this version of torch has the operators."""
    return all(hasattr(torch.ops.aten, name) for name in OPERATORS)


class OperatorLinear(PackedLinear):
    """A linear layer whose weights an operator reads packed."""

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T``, of shape ``[num_rows, outputs]``.

        Args:
            rows: contiguous, of shape ``[num_rows, inputs]``, in bfloat16, in the order of groups.
        """
        raise NotImplementedError

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T + bias``."""
        flat = rows.reshape(-1, self.in_features)
        if self.order is not None:
            flat = flat[:, self.order]
        out = self.product(flat.contiguous())
        if self.bias is not None:
            out += self.bias
        return out.view(*rows.shape[:-1], self.out_features)


Make = Callable[[QuantizedLinear], OperatorLinear | None]
"""Returns a layer with the integers of a weight, without a bias; None if it cannot hold them."""


def is_plain(weight: QuantizedLinear) -> bool:
    """Return whether the values of a weight are integers times scales, and nothing else."""
    return weight.zero_points is not None and weight.offsets is None and weight.levels is None


def scales_of(weight: QuantizedLinear) -> torch.Tensor:
    """Return the scales of a weight in float32, of shape ``[outputs, groups]``."""
    found = torch.from_numpy(weight.scales.astype(np.float32))  # a copy, as files are read-only
    return found if weight.global_scale is None else found * float(weight.global_scale)


def codes_of(weight: QuantizedLinear, order: torch.Tensor | None) -> NDArray[np.uint8]:
    """Return the codes of a weight with its columns in another order."""
    return weight.codes if order is None else weight.codes[:, order.numpy()]


def agrees(layer: OperatorLinear, weight: QuantizedLinear) -> bool:
    """Return whether a layer computes what the dense weight does, but for rounding, on this CPU.

    A few rows are multiplied. Scales, products and their sum are rounded to bfloat16 each.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(CHECKED_ROWS, layer.in_features, generator=generator).to(DTYPE)
    dense = torch.from_numpy(weight.dense())
    difference = (layer(rows).float() - rows.float() @ dense.T).abs()
    magnitudes = rows.float().abs() @ dense.abs_().T  # in place: it may be large
    return bool((difference <= MAX_ERROR * magnitudes).all())
