"""What linear layers have in common that compute by torch's operators for packed weights on a CPU.

The operators multiply in float32 and round their output to bfloat16. They are fast for few rows.
For many, a layer expands its weights for one product. Knows no files and no other layers.
"""

from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from vlmkit_quantized.weight import QuantizedLinear
from vlmkit_torch.loading.packed_linear import PackedLinear

DTYPE = torch.bfloat16
CHECKED_ROWS = 2
MAX_ERROR = 4 * 2**-9  # of a sum of magnitudes; three roundings to 8 bits, and float32's
TIMED_ROWS = (32, 160)
NUM_TIMES = 2
MIN_EXPANDED_ROWS = 16  # more than are decoded at once by most servers of a CPU
OPERATORS = (
    "_convert_weight_to_int4pack_for_cpu",
    "_weight_int4pack_mm_for_cpu",
    "_weight_int8pack_mm",
)


def has_operators() -> bool:
    """Return whether this version of torch has the operators."""
    return all(hasattr(torch.ops.aten, name) for name in OPERATORS)


class OperatorLinear(PackedLinear):
    """A linear layer whose weights an operator reads packed.

    Attributes:
        expanded_from: the number of rows from which weights are expanded; None for no number.
    """

    expanded_from: int | None = None

    @property
    def can_expand(self) -> bool:
        """Whether the layout of its weights is known."""
        return True

    def expanded_product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the same as :meth:`product`, by weights that are expanded for this call."""
        raise NotImplementedError

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
        is_expanded = self.expanded_from is not None and len(flat) >= self.expanded_from
        product = self.expanded_product if is_expanded else self.product
        out = product(flat.contiguous())
        if self.bias is not None:
            out += self.bias
        return out.view(*rows.shape[:-1], self.out_features)


@torch.no_grad()
def rows_to_expand(layer: OperatorLinear) -> int | None:
    """Return the number of rows from which expanding weights is faster; None if it never is.

    Both products are timed with two numbers of rows. Their times grow by rows alone.
    """
    if not layer.can_expand:
        return None
    few, many = TIMED_ROWS
    products = (layer.product, layer.expanded_product)
    times = [
        [_seconds(product, num, layer.in_features) for num in TIMED_ROWS] for product in products
    ]
    packed, expanded = [(later - first) / (many - few) for first, later in times]
    if expanded >= packed:
        return None
    crossing = (times[1][0] - few * expanded - (times[0][0] - few * packed)) / (packed - expanded)
    return max(MIN_EXPANDED_ROWS, round(crossing))


def _seconds(product: Callable[[torch.Tensor], torch.Tensor], num: int, columns: int) -> float:
    rows = torch.ones(num, columns, dtype=DTYPE)
    times = []
    for _ in range(NUM_TIMES):
        begin = perf_counter()
        product(rows)
        times.append(perf_counter() - begin)
    return min(times)


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
    expected = rows.float() @ dense.T
    bound = MAX_ERROR * (rows.float().abs() @ dense.abs_().T)  # in place: it may be large
    del dense
    ordered = rows if layer.order is None else rows[:, layer.order].contiguous()
    products = [layer.product, layer.expanded_product][: 1 + layer.can_expand]
    differences = [(product(ordered).float() - expected).abs() for product in products]
    return all(bool((difference <= bound).all()) for difference in differences)
