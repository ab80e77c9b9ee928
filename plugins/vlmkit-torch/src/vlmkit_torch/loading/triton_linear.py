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

from vlmkit.errors import EngineError
from vlmkit_quantized.weight import QuantizedLinear
from vlmkit_torch.loading.packed_linear import PackedLinear, column_order, has_equal_groups
from vlmkit_torch.support.packed_forms import NIBBLE_BITS, TRITON

(KERNEL,) = TRITON.kernels
SPAN = min(KERNEL.group_sizes)  # inputs that the kernel expands at a time; they share a scale
HALF = tl.constexpr(SPAN // 2)  # the smallest inner size of a product on tensor cores
FEW_ROWS, MANY_ROWS = 16, 64  # of inputs in a tile: for decodes, and for prompts
TILE_OUTPUTS = 64
MAX_ERROR = 2**-7  # of an output's norm: a precision of 8 bits rounds by half of that


class TritonLinear(PackedLinear):
    """A linear layer with packed weights.

    Args:
        weight: a weight for which :func:`packed` returns a layer.
        order: its columns in the order of groups; None if they are in order.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    levels: torch.Tensor | None

    def __init__(self, weight: QuantizedLinear, order: torch.Tensor | None) -> None:
        num_outputs, num_inputs = weight.codes.shape
        super().__init__(num_inputs, num_outputs, order)
        self._has_nibbles = weight.bits <= NIBBLE_BITS
        codes = torch.from_numpy(weight.codes)
        codes = codes if order is None else codes[:, order]
        scales = torch.from_numpy(weight.scales.astype("f4")).T.contiguous()
        zeros = torch.zeros(1)
        if weight.zero_points is not None:
            zeros = torch.from_numpy(weight.zero_points.astype("f4")).T.expand(scales.shape)
        levels = None if weight.levels is None else torch.from_numpy(weight.levels.astype("f4"))
        scale = weight.global_scale
        self._global_scale = None if scale is None else float(scale)
        self.register_buffer(
            "codes", _nibbles(codes) if self._has_nibbles else codes.T.contiguous()
        )
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", zeros.contiguous())
        self.register_buffer("levels", levels)

    def dense(self) -> torch.Tensor:
        """Return the weight in float32, of shape ``[outputs, inputs]``, without the kernel."""
        codes = _whole(self.codes) if self._has_nibbles else self.codes
        groups = codes.view(len(self.scales), -1, self.out_features)
        if self.levels is not None:
            values = self.levels[groups.int()]
        else:
            values = groups.float() - self.zeros[:, None]
        values = values * self.scales[:, None]
        if self._global_scale is not None:
            values = values * self._global_scale
        values = values.reshape(-1, self.out_features)
        return (values if self.order is None else values[self.order.argsort()]).T

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``[..., outputs]`` of ``[..., inputs]``, in the type of the inputs."""
        rows = inputs.reshape(-1, self.in_features)
        rows = rows.contiguous() if self.order is None else rows[:, self.order]
        outputs = rows.new_empty(len(rows), self.out_features)
        tile_rows = FEW_ROWS if len(rows) <= FEW_ROWS else MANY_ROWS
        grid = (triton.cdiv(len(rows), tile_rows), triton.cdiv(self.out_features, TILE_OUTPUTS))
        with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
            _product[grid](
                rows,
                self.codes,
                self.scales,
                self.zeros,
                self.scales if self.levels is None else self.levels,
                outputs,
                len(rows),
                self.out_features,
                self.in_features,
                self.in_features // len(self.scales),
                1.0 if self._global_scale is None else self._global_scale,
                has_nibbles=self._has_nibbles,
                has_levels=self.levels is not None,
                has_global_scale=self._global_scale is not None,
                tile_rows=tile_rows,
                tile_outputs=TILE_OUTPUTS,
                is_interpreted=not rows.is_cuda,
                enable_fp_fusion=True,  # of the sums of float32; weights have none to fuse
            )
        if self.bias is not None:
            outputs += self.bias
        return outputs.reshape(*inputs.shape[:-1], self.out_features)


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 - a kernel has no objects
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
        for half in tl.static_range(2):
            place = start // 2 if has_nibbles else start + half * HALF
            at_code = (place + inner)[:, None].to(tl.int64) * num_outputs + output[None, :]
            code = tl.load(codes + at_code, mask=is_output[None, :], other=0)
            if has_nibbles:
                code = (code >> (4 * half)) & 15
            if has_levels:
                value = tl.load(levels + code.to(tl.int32))
            else:
                zero = tl.load(zeros + at, mask=is_output, other=0.0)
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


def packed(weight: QuantizedLinear) -> TritonLinear | None:
    """Return a layer with the codes of a weight, without a bias; None if it cannot hold them."""
    size = KERNEL.group_size(weight.codes.shape[1], weight.scales.shape[1])
    if weight.offsets is not None or size is None or not has_equal_groups(weight):
        return None
    return TritonLinear(weight, column_order(weight))


@torch.no_grad()
def check(model: nn.Module, dtype: torch.dtype) -> None:
    """Compare the kernel with dense weights on the model's device, for each size of layer.

    Args:
        model: the model.
        dtype: its precision.

    Raises:
        EngineError: they differ by more than the order of sums and one rounding explain.
    """
    checked = set()
    for name, layer in model.named_modules():
        if not isinstance(layer, TritonLinear):
            continue
        sizes = (layer.in_features, *layer.codes.shape, *layer.scales.shape)
        if sizes not in checked:
            checked.add(sizes)
            _check(name, layer, dtype)


def _check(name: str, layer: TritonLinear, dtype: torch.dtype) -> None:
    weight = layer.dense().to(dtype).float()
    numbers = torch.Generator().manual_seed(0)
    for num_rows in (1, FEW_ROWS + 1):
        rows = torch.randn(num_rows, layer.in_features, generator=numbers)
        rows = rows.to(weight.device, dtype)
        expected = rows.float() @ weight.T
        if layer.bias is not None:  # in the model's precision
            expected += layer.bias
        error = (layer(rows).float() - expected).norm() / expected.norm()
        if not error <= MAX_ERROR:
            raise EngineError(
                f"the kernel of packed weights computes wrong values of layer {name!r} on device "
                f"{str(rows.device)!r}",
                hint='engine.quantized_layers = "dense" does without it',
            )


def _nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Return codes ``[outputs, inputs]`` as ``[inputs / 2, outputs]``, two in a byte.

    A byte holds the codes of two inputs that are half a span apart.
    """
    spans = codes.T.reshape(-1, 2, SPAN // 2, len(codes))
    return (spans[:, 0] | spans[:, 1] << NIBBLE_BITS).reshape(-1, len(codes)).contiguous()


def _whole(nibbles: torch.Tensor) -> torch.Tensor:
    """Return the codes ``[inputs, outputs]`` of :func:`_nibbles`."""
    spans = nibbles.view(-1, 1, SPAN // 2, nibbles.shape[1])
    halves = torch.cat([spans & 2**NIBBLE_BITS - 1, spans >> NIBBLE_BITS], 1)
    return halves.view(-1, nibbles.shape[1])
