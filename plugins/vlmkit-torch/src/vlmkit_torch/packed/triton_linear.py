"""A linear layer that computes with packed weights on a CUDA device, by a Triton kernel.

Codes stay packed in device memory. The kernel expands 32 inputs of a tile at a time, in the
arithmetic of :meth:`~vlmkit_quantized.weight.QuantizedLinear.dense`, and multiplies them as the
model's numbers. So a layer differs from its dense form by the order of its sums only. Which layers
use it is not decided here.
"""

import torch
import triton
import triton.language as tl
from torch import nn

from vlmkit_quantized.weight import QuantizedLinear

SPAN = 32  # inputs that the kernel expands at a time; they share a scale
HALF = tl.constexpr(SPAN // 2)  # the smallest inner size of a product on tensor cores
NIBBLE_BITS = 4
FEW_ROWS, MANY_ROWS = 16, 64  # of inputs in a tile: for decodes, and for prompts
TILE_OUTPUTS = 64


def reason_against(weight: QuantizedLinear) -> str | None:
    """Return why the kernel cannot hold a weight; None if it can."""
    columns = weight.codes.shape[1]
    group_columns = columns // weight.scales.shape[1]
    if weight.offsets is not None:
        return "its groups have offsets"
    if columns % SPAN or group_columns % SPAN:
        return f"its groups of {group_columns} inputs are no multiples of {SPAN}"
    if weight.column_groups is not None and _order(weight) is None:
        return "its groups have unequal sizes"
    return None


class TritonLinear(nn.Module):
    """A linear layer with packed weights.

    Args:
        weight: one that :func:`reason_against` has nothing against.
        bias: of shape ``[outputs]``, or None.
        device: where it computes.
    """

    def __init__(
        self, weight: QuantizedLinear, bias: torch.Tensor | None, device: torch.device
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.codes.shape
        self.bias = None if bias is None else nn.Buffer(bias.to(device))
        codes = torch.from_numpy(weight.codes)
        order = None if weight.column_groups is None else _order(weight)
        if order is not None:
            codes = codes[:, order]
        self.order = None if order is None else nn.Buffer(order.to(device))
        self.has_nibbles = weight.bits <= NIBBLE_BITS
        self.codes = nn.Buffer(
            (_nibbles(codes) if self.has_nibbles else codes.T).contiguous().to(device)
        )
        scales = torch.from_numpy(weight.scales)
        self.scales = nn.Buffer(scales.T.contiguous().to(device))
        zeros, levels = torch.zeros(1), torch.zeros(1)
        if weight.zero_points is not None:
            zeros = torch.from_numpy(weight.zero_points).float().expand(scales.shape).T.contiguous()
        if weight.levels is not None:
            levels = torch.from_numpy(weight.levels)
        self.has_levels = weight.levels is not None
        self.zeros, self.levels = nn.Buffer(zeros.to(device)), nn.Buffer(levels.to(device))
        self.global_scale = None if weight.global_scale is None else float(weight.global_scale)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``[..., outputs]`` of ``[..., inputs]``, in the type of the inputs."""
        rows = inputs.reshape(-1, self.in_features)
        rows = rows.contiguous() if self.order is None else rows[:, self.order]
        outputs = rows.new_empty(len(rows), self.out_features)
        tile_rows = FEW_ROWS if len(rows) <= FEW_ROWS else MANY_ROWS
        grid = (triton.cdiv(len(rows), tile_rows), triton.cdiv(self.out_features, TILE_OUTPUTS))
        with torch.cuda.device_of(rows):
            _product[grid](
                rows,
                self.codes,
                self.scales,
                self.zeros,
                self.levels,
                outputs,
                len(rows),
                self.out_features,
                self.in_features,
                self.in_features // len(self.scales),
                1.0 if self.global_scale is None else self.global_scale,
                has_nibbles=self.has_nibbles,
                has_levels=self.has_levels,
                has_global_scale=self.global_scale is not None,
                tile_rows=tile_rows,
                tile_outputs=TILE_OUTPUTS,
                is_interpreted=not rows.is_cuda,
                enable_fp_fusion=True,  # of the sums of float32; weights have none to fuse
            )
        if self.bias is not None:
            outputs += self.bias
        return outputs.reshape(*inputs.shape[:-1], self.out_features)


@triton.jit
def _product(  # noqa: PLR0913, PLR0917 - a kernel takes pointers and numbers only
    inputs,
    codes,
    scales,
    zeros,
    levels,
    outputs,
    num_rows,
    num_outputs,
    num_inputs,
    group_inputs,
    global_scale,
    has_nibbles: tl.constexpr,
    has_levels: tl.constexpr,
    has_global_scale: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_outputs: tl.constexpr,
    is_interpreted: tl.constexpr,
):
    """Compute a tile of the outputs: ``inputs [rows, inputs]`` times the expanded weights."""
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    output = tl.program_id(1) * tile_outputs + tl.arange(0, tile_outputs)
    inner = tl.arange(0, HALF)
    is_row, is_output = row < num_rows, output < num_outputs
    sums = tl.zeros((tile_rows, tile_outputs), tl.float32)
    for start in range(0, num_inputs, 2 * HALF):
        at = start // group_inputs * num_outputs + output
        scale = tl.load(scales + at, mask=is_output, other=0.0)
        zero = 0.0 if has_levels else tl.load(zeros + at, mask=is_output, other=0.0)
        for half in tl.static_range(2):
            place = start // 2 if has_nibbles else start + half * HALF
            at_code = (place + inner)[:, None].to(tl.int64) * num_outputs + output[None, :]
            code = tl.load(codes + at_code, mask=is_output[None, :], other=0)
            if has_nibbles:
                code = (code >> (4 * half)) & 15
            if has_levels:
                value = tl.load(levels + code.to(tl.int32))
            else:
                value = code.to(tl.float32) - zero[None, :]
            value = value * scale[None, :]
            if has_global_scale:
                value = value * global_scale
            column = start + half * HALF + inner
            at_input = row[:, None] * num_inputs + column[None, :]
            tile = tl.load(inputs + at_input, mask=is_row[:, None], other=0.0)
            value = value.to(tile.dtype)
            if is_interpreted:  # it cannot multiply bfloat16; these products have the same values
                tile, value = tile.to(tl.float32), value.to(tl.float32)
            sums = tl.dot(tile, value, sums, input_precision="ieee")
    at_output = row[:, None] * num_outputs + output[None, :]
    is_inside = is_row[:, None] & is_output[None, :]
    tl.store(outputs + at_output, sums.to(outputs.dtype.element_ty), mask=is_inside)


def _nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Return codes ``[outputs, inputs]`` as ``[inputs / 2, outputs]``, two in a byte.

    A byte holds the codes of two inputs that are half a span apart.
    """
    spans = codes.T.reshape(-1, 2, SPAN // 2, len(codes))
    return (spans[:, 0] | spans[:, 1] << NIBBLE_BITS).reshape(-1, len(codes))


def _order(weight: QuantizedLinear) -> torch.Tensor | None:
    """Return the columns by group; None if groups have unequal sizes."""
    groups = torch.from_numpy(weight.column_groups)
    num_groups = weight.scales.shape[1]
    sizes = torch.bincount(groups, minlength=num_groups)
    if (sizes != len(groups) // num_groups).any():
        return None
    return torch.argsort(groups, stable=True)
