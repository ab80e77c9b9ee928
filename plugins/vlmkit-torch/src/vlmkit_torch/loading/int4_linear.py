"""Linear layers that compute with a checkpoint's own integers by torch's 4-bit operator for CPUs.

The operator takes integers from -8 to 7 in groups. Each has a scale and a number that is added. A
layer of up to 4 bits takes one such product. One of up to 8 bits takes two: a code is 16 times its
upper half, plus its lower half.
"""

from collections.abc import Iterator, Sequence as Seq
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vlmkit_quantized.weight import QuantizedLinear
from vlmkit_torch.loading.operator_linear import (
    DTYPE,
    OperatorLinear,
    codes_of,
    is_plain,
    scales_of,
)
from vlmkit_torch.loading.packed_linear import column_order, has_equal_groups
from vlmkit_torch.support.packed_forms import INT4, NIBBLE_BITS, TWO_INT4, Kernel

MIDDLE = 8  # the code that the operator takes for zero
HALF = 2**NIBBLE_BITS  # times the upper half of a code
INNER_TILES = 1  # has no meaning on a CPU
BLOCK_ROWS = (64, 32)  # outputs whose codes of an input lie side by side: with AVX-512, with AVX2
CHECKED_COLUMNS = 2


class Int4Linear(OperatorLinear):
    """A linear layer with codes of at most 4 bits.

    The weight of code ``q`` is ``(q - zero_point) * scale``, with the scale rounded to bfloat16. So
    it differs from the dense weight by as much as one in bfloat16 does: a relative 2**-8. The
    operator wants ``(8 - zero_point) * scale`` in bfloat16, which may round. What rounding left is
    added by a second product, of sums over groups.

    Args:
        codes: packed by the operator.
        scales_and_zeros: of shape ``[groups, outputs, 2]``.
        rest: what rounding the zeros left, of shape ``[groups, outputs]``; None if nothing.
        order: the columns in the order of groups; None if they are in order.
    """

    codes: torch.Tensor
    scales_and_zeros: torch.Tensor
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
        self.block_rows = known_block_rows()
        self._group_size = self.in_features // groups
        self.register_buffer("codes", codes)
        self.register_buffer("scales_and_zeros", scales_and_zeros)
        self.register_buffer("rest", rest)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T``."""
        out = _multiplied(rows, self.codes, self._group_size, self.scales_and_zeros)
        if self.rest is not None:
            groups = rows.view(len(rows), len(self.rest), self._group_size)
            sums = groups.sum(-1, dtype=torch.float32)
            out += sums.to(rows.dtype) @ self.rest
        return out

    @property
    def can_expand(self) -> bool:
        """Whether the layout of its weights is known."""
        return self.block_rows > 0

    def expanded_product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T``, with weights that are rounded to bfloat16 once."""
        scales, zeros = self.scales_and_zeros.float().unbind(-1)
        zeros = (
            zeros - MIDDLE * scales if self.rest is None else zeros - MIDDLE * scales + self.rest
        )
        return rows @ _expanded([self.codes], [scales], zeros, self.block_rows)


class TwoInt4Linear(OperatorLinear):
    """A linear layer with codes of 5 to 8 bits in groups, as the sum of two products.

    The weight of code ``16 * h + l`` is ``(h - 8) * 16 * scale + (l - 8) * scale``, and
    ``(136 - zero_point) * scale`` is added. That number is stored as the sum of two in bfloat16,
    which is exact. The scale is rounded to bfloat16.

    Args:
        upper: the upper halves of codes, packed by the operator.
        lower: the lower halves.
        upper_pairs: the scales and added numbers of upper halves, ``[groups, outputs, 2]``.
        lower_pairs: those of lower halves.
        order: the columns in the order of groups; None if they are in order.
    """

    upper: torch.Tensor
    lower: torch.Tensor
    upper_pairs: torch.Tensor
    lower_pairs: torch.Tensor

    def __init__(
        self,
        upper: torch.Tensor,
        lower: torch.Tensor,
        upper_pairs: torch.Tensor,
        lower_pairs: torch.Tensor,
        order: torch.Tensor | None,
    ) -> None:
        groups, num_outputs, _ = upper_pairs.shape
        super().__init__(2 * upper.shape[1], num_outputs, order)
        self.block_rows = known_block_rows()
        self._group_size = self.in_features // groups
        self.register_buffer("upper", upper)
        self.register_buffer("lower", lower)
        self.register_buffer("upper_pairs", upper_pairs)
        self.register_buffer("lower_pairs", lower_pairs)

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T``."""
        out = _multiplied(rows, self.upper, self._group_size, self.upper_pairs)
        out += _multiplied(rows, self.lower, self._group_size, self.lower_pairs)
        return out

    @property
    def can_expand(self) -> bool:
        """Whether the layout of its weights is known."""
        return self.block_rows > 0

    def expanded_product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T``, with weights that are rounded to bfloat16 once."""
        upper, upper_zeros = self.upper_pairs.float().unbind(-1)
        lower, lower_zeros = self.lower_pairs.float().unbind(-1)
        zeros = upper_zeros + lower_zeros - MIDDLE * (upper + lower)
        scales = [upper, lower]
        return rows @ _expanded([self.upper, self.lower], scales, zeros, self.block_rows)


def packed(weight: QuantizedLinear) -> Int4Linear | None:
    """Return a layer with codes of at most 4 bits, without a bias; None if none can hold them."""
    if (size := _group_size(weight, INT4)) is None:
        return None
    order = column_order(weight)
    codes = _pack(codes_of(weight, order))
    scales = scales_of(weight)
    rounded = scales.to(DTYPE).float()
    exact = (MIDDLE - _zeros(weight)) * rounded  # 8 bits and 5 bits: exact in float32
    zeros = exact.to(DTYPE).float()
    rest = (exact - zeros).to(DTYPE)
    repeats = weight.codes.shape[1] // size // scales.shape[1]
    has_rest = bool(rest.any())
    return Int4Linear(
        codes,
        _pairs(rounded, zeros, repeats),
        rest.repeat_interleave(repeats, 1).T.contiguous() if has_rest else None,
        order,
    )


def packed_twice(weight: QuantizedLinear) -> TwoInt4Linear | None:
    """Return a layer with codes of 5 to 8 bits, without a bias; None if none can hold them."""
    if (size := _group_size(weight, TWO_INT4)) is None:
        return None
    order = column_order(weight)
    codes = codes_of(weight, order)
    upper, lower = _pack(codes // HALF), _pack(codes % HALF)
    scales = scales_of(weight).to(DTYPE).float()
    added = (HALF * MIDDLE + MIDDLE - _zeros(weight)) * scales  # 8 bits and 8 bits: exact
    first = added.to(DTYPE).float()
    repeats = codes.shape[1] // size // scales.shape[1]
    return TwoInt4Linear(
        upper,
        lower,
        _pairs(HALF * scales, first, repeats),
        _pairs(scales, added - first, repeats),
        order,
    )


def _group_size(weight: QuantizedLinear, kernel: Kernel) -> int | None:
    """Return the operator's group size for a weight; None if it cannot hold the weight."""
    rows, columns = weight.codes.shape
    has_bits = kernel.min_bits <= weight.bits <= kernel.max_bits
    if not is_plain(weight) or not has_bits or rows % kernel.row_multiple:
        return None
    size = kernel.group_size(columns, weight.scales.shape[1])
    return size if has_equal_groups(weight) else None


def _zeros(weight: QuantizedLinear) -> torch.Tensor:
    points: Any = weight.zero_points
    return torch.from_numpy(points.astype(np.float32))


def _pairs(scales: torch.Tensor, zeros: torch.Tensor, repeats: int) -> torch.Tensor:
    """Return ``[groups, outputs, 2]`` of numbers ``[outputs, groups]``, each group repeated."""
    both = torch.stack([scales.T, zeros.expand(scales.shape).T], -1).to(DTYPE)
    return both.repeat_interleave(repeats, 0).contiguous()


def _pack(codes: NDArray[Any]) -> torch.Tensor:
    numbers = torch.from_numpy(codes.astype(np.int32))
    found: torch.Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, INNER_TILES)  # noqa: SLF001
    return found


def known_block_rows() -> int:
    """Return the ``block_rows`` with which :func:`blocks` reads what the operator packs here.

    The layout belongs to the instructions of a CPU, and to a version of torch. Zero if it is
    unknown.
    """
    numbers = np.arange(CHECKED_COLUMNS * (max(BLOCK_ROWS) + 16)) * 7 % HALF
    codes = numbers.reshape(-1, CHECKED_COLUMNS)
    packed = _pack(codes)
    for block_rows in BLOCK_ROWS:
        found = torch.cat([block.T for _, block in blocks(packed, block_rows)])
        if np.array_equal(found.numpy(), codes):
            return block_rows
    return 0


def blocks(packed: torch.Tensor, block_rows: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the first output and the codes of each block, of shape ``[inputs, outputs]``.

    Args:
        packed: codes as the operator packs them.
        block_rows: the number of outputs of a whole block.
    """
    num_outputs, width = packed.shape
    octets, columns = packed.view(-1), 2 * width
    for first in range(0, num_outputs, block_rows):
        num = min(block_rows, num_outputs - first)
        block = octets[first * width : (first + num) * width].view(columns, num // 2)
        halves = (block & (HALF - 1), block >> NIBBLE_BITS)
        # A whole block has the codes of its later outputs in upper halves; a rest has pairs.
        axis = -2 if num == block_rows else -1
        yield first, torch.stack(halves, axis).view(columns, num)


def _expanded(
    codes: Seq[torch.Tensor],
    scales: Seq[torch.Tensor],
    zeros: torch.Tensor,
    block_rows: int,
) -> torch.Tensor:
    """Return the transposed weight in bfloat16: the sum of codes times scales, and zeros.

    Args:
        codes: packed by the operator, with equal layouts.
        scales: for each, of shape ``[groups, outputs]`` in float32.
        zeros: what is added, of the same shape.
        block_rows: the number of outputs of a whole block.
    """
    num_outputs, width = codes[0].shape
    num_groups = len(zeros)
    weight = torch.empty(2 * width, num_outputs, dtype=DTYPE)
    for parts in zip(*(blocks(each, block_rows) for each in codes), strict=True):
        first, num = parts[0][0], parts[0][1].shape[1]
        own = slice(first, first + num)
        values = zeros[:, None, own]
        for (_, block), scale in zip(parts, scales, strict=True):
            numbers = block.view(num_groups, -1, num).float()
            values = torch.addcmul(values, numbers, scale[:, None, own])
        weight[:, own] = values.view(-1, num)
    return weight


def _multiplied(
    rows: torch.Tensor, codes: torch.Tensor, size: int, pairs: torch.Tensor
) -> torch.Tensor:
    out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, codes, size, pairs)  # noqa: SLF001
    return out
