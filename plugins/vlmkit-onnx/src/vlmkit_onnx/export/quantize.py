"""Quantized linear layers, as torch modules that trace to ONNX Runtime's operators.

A decoder is converted in place, one layer at a time, and each original layer is freed at once. The
model is never in memory twice. Every converted layer has a forward with the same arithmetic in
torch, so that the exported graph can be compared with its modules.

- w8a8: 8-bit activations with a scale for each token, 8-bit weights with a scale for each output,
  MatMulInteger. A row depends on itself alone, so results do not depend on the batch. Activations
  are unsigned and weights signed, which is fast with VNNI. An x86 CPU without VNNI saturates sums
  of such products; there, sessions make the weights unsigned (products.py).
- int8: 8-bit weights in blocks of 64, MatMulNBits, 8-bit activations by block.
- int4: the same with 4-bit weights in blocks of 32.
- stored: MatMulNBits with the integers of a quantized checkpoint (stored_layers.py). Activations
  are rounded as above. Layers that it has plain stay float32, or are rounded to one of the others.

There is no calibration: rounding is to the nearest, and each block's scale and zero minimize its
squared error over a few candidates. Weights outside ``nn.Linear`` (stacked experts, embeddings,
norms, routers) stay floats.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from torch.nn import functional

from vlmkit_onnx.export.stored_form import LARGEST_BLOCKS as BLOCKS
from vlmkit_onnx.export.stored_layers import BlockWeights, StoredLayers
from vlmkit_onnx.export.token_linear import DOMAIN, MIDDLE, OPERATOR
from vlmkit_onnx.export.views import Parts
from vlmkit_onnx.folder.manifest import Precision

RANGES = (1.0, 0.92, 0.84)  # of a block's numbers: clipping the largest gives the rest finer steps
TINY = 1e-9  # keeps weights of zeros from dividing by zero
SLICE_ROWS = 1024  # output rows that are in memory as floats at a time
ACCURACY_LEVEL = 4  # MatMulNBits rounds activations to 8 bits, block by block
OnLayer = Callable[[int, int], None]


class TokenLinear(nn.Module):
    """w8a8: 8-bit weights with a scale for each output, 8-bit activations with one for each row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        codes, scale = token_codes(linear.weight)
        self.bias = _bias_of(linear)
        self.codes = nn.Buffer(codes)
        self.scale = nn.Buffer(scale)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``[..., out]`` of ``[..., in]``."""
        if torch.compiler.is_exporting():
            return self._symbolic(inputs)
        scale = inputs.abs().amax(-1, keepdim=True) * (1 / 127)
        steps = torch.where(scale == 0, 0, inputs / scale)
        codes = (torch.round(steps) + MIDDLE).to(torch.uint8)
        out = self._sums(codes).float() * self.scale * scale
        return out if self.bias is None else out + self.bias

    def _symbolic(self, inputs: torch.Tensor) -> torch.Tensor:
        bias = () if self.bias is None else (self.bias,)
        return torch.onnx.ops.symbolic(
            f"{DOMAIN}::{OPERATOR}",
            (inputs, self.codes, self.scale, *bias),
            dtype=inputs.dtype,
            shape=(*inputs.shape[:-1], self.codes.shape[1]),
            version=1,
        )

    def _sums(self, codes: torch.Tensor) -> torch.Tensor:
        left = codes.double() - MIDDLE  # sums of products are exact in float64
        parts = [
            left @ self.codes[:, columns].double() for columns in _row_slices(self.codes.shape[1])
        ]
        return torch.cat(parts, -1).to(torch.int32)


class BlockLinear(nn.Module):
    """int4, int8 and stored: weights in blocks of inputs, each with its own scale and zero.

    Args:
        weights: the codes, scales and zeros.
        bias: ``[out]``, or None.
    """

    def __init__(self, weights: BlockWeights, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.bits, self.width, self.block = weights.bits, weights.width, weights.block
        self.bias = bias
        self.codes = nn.Buffer(weights.codes)
        self.scale = nn.Buffer(weights.scales)
        self.zeros = nn.Buffer(weights.zeros)

    @classmethod
    def rounded(cls, linear: nn.Linear, bits: int) -> Self:
        """Return a layer whose weights are rounded to 4 or 8 bits."""
        block = BLOCKS[bits]
        blocks = -(-linear.in_features // block)
        codes = torch.empty(linear.out_features, blocks, block * bits // 8, dtype=torch.uint8)
        scales = torch.empty(linear.out_features, blocks)
        zeros = torch.empty(linear.out_features, -(-blocks * bits // 8), dtype=torch.uint8)
        for rows in _row_slices(linear.out_features):
            found = _quantized_blocks(linear.weight[rows].float(), bits)
            codes[rows], scales[rows], zeros[rows] = found
        weights = BlockWeights(bits, linear.in_features, block, codes, scales, zeros)
        return cls(weights, _bias_of(linear))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``[..., out]`` of ``[..., in]``."""
        if torch.compiler.is_exporting():
            out = self._symbolic(inputs)
        else:
            rounded = _rounded_blocks(inputs, self.block)
            slices = _row_slices(len(self.codes))
            out = torch.cat([rounded @ self._weight(rows).t() for rows in slices], -1)
            out = out if self.bias is None else out + self.bias
        return out

    def _symbolic(self, inputs: torch.Tensor) -> torch.Tensor:
        num_outputs = len(self.codes)
        return torch.onnx.ops.symbolic(
            "com.microsoft::MatMulNBits",
            (inputs, self.codes, self.scale, self.zeros, None, self.bias),
            {
                "K": self.width,
                "N": num_outputs,
                "bits": self.bits,
                "block_size": self.block,
                "accuracy_level": ACCURACY_LEVEL,
            },
            dtype=inputs.dtype,
            shape=(*inputs.shape[:-1], num_outputs),
            version=1,
        )

    def _weight(self, rows: slice) -> torch.Tensor:
        codes, zeros = self.codes[rows], self.zeros[rows]
        if self.bits == 4:
            codes, zeros = _unpacked(codes), _unpacked(zeros)[:, : codes.shape[1]]
        steps = codes.float() - zeros.float()[..., None]
        return (steps * self.scale[rows, :, None]).flatten(1)[:, : self.width]


def token_codes(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 8-bit codes ``[in, out]`` and scales ``[out]`` of a matrix ``[out, in]``."""
    num_outputs, width = weight.shape
    codes = torch.empty(width, num_outputs, dtype=torch.int8)
    scale = torch.empty(num_outputs)
    for rows in _row_slices(num_outputs):
        part = weight[rows].float()
        scale[rows] = (part.abs().amax(1) / 127).clamp_min(TINY)
        codes[:, rows] = (part / scale[rows, None]).round().to(torch.int8).t()
    return codes, scale


def convert(parts: Parts, precision: Precision | StoredLayers, on_layer: OnLayer) -> None:
    """Convert a decoder and its head to a precision in place, layer by layer.

    Args:
        parts: the decoder and its head.
        precision: the target, or the layers of a checkpoint whose integers are used.
        on_layer: called with the number of converted linear layers, and of all.

    Raises:
        CheckpointError: a stored layer cannot be used, or there is none.
    """
    make = _stored(precision) if isinstance(precision, StoredLayers) else _layer_class(precision)
    if make is not None:
        holders = list(_linears(parts))
        for number, (holder, name) in enumerate(holders, 1):
            setattr(holder, name, make(getattr(holder, name)))
            on_layer(number, len(holders))
    if isinstance(precision, StoredLayers):
        precision.finish()
    dtype = torch.float16 if precision == "fp16" else torch.float32
    for module in (parts.decoder, parts.head):
        _cast(module, dtype)


def _layer_class(precision: Precision) -> Callable[[nn.Linear], nn.Module] | None:
    classes: dict[str, Callable[[nn.Linear], nn.Module]] = {
        "w8a8": TokenLinear,
        "int8": lambda linear: BlockLinear.rounded(linear, 8),
        "int4": lambda linear: BlockLinear.rounded(linear, 4),
    }
    return classes.get(precision)


def _stored(layers: StoredLayers) -> Callable[[nn.Linear], nn.Module]:
    """Return what replaces a layer by its stored form, and a plain one by one of its precision."""
    rounded = _layer_class(layers.plain)

    def make(linear: nn.Linear) -> nn.Module:
        if (weights := layers.find(linear.weight)) is not None:
            return BlockLinear(weights, _bias_of(linear))
        return linear if rounded is None else rounded(linear)

    return make


def _linears(parts: Parts) -> Iterator[tuple[nn.Module, str]]:
    """Yield parent and name of each linear layer; subclasses may compute otherwise."""
    for root in (parts.decoder, parts.head):
        for module in root.modules():
            for name, child in module.named_children():
                if type(child) is nn.Linear:
                    yield module, name


def _cast(root: Any, dtype: torch.dtype) -> None:
    """Cast weights one by one.

    Buffers that a family computes, such as the frequencies of RoPE, keep their precision.
    """
    for module in root.modules():
        if isinstance(module, TokenLinear | BlockLinear):
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        for name, buffer in module.named_buffers(recurse=False):
            is_computed = name in module._non_persistent_buffers_set  # noqa: SLF001 - no public way
            if buffer.is_floating_point() and not is_computed:
                setattr(module, name, buffer.to(dtype))


def _bias_of(linear: nn.Linear) -> torch.Tensor | None:
    bias: torch.Tensor | None = linear.bias
    return None if bias is None else nn.Buffer(bias.detach().float())


def _row_slices(num_rows: int) -> list[slice]:
    return [slice(i, min(i + SLICE_ROWS, num_rows)) for i in range(0, num_rows, SLICE_ROWS)]


def _quantized_blocks(
    weight: torch.Tensor, bits: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes ``[out, blocks, bytes]``, scales ``[out, blocks]`` and zeros ``[out, bytes]``.

    Selects the range of each block with the least squared error, and then the scale that fits its
    codes best. Zero always has an exact code.
    """
    blocks = _blocks(weight, BLOCKS[bits])
    low = blocks.amin(-1, keepdim=True).clamp_max(0)
    high = blocks.amax(-1, keepdim=True).clamp_min(0)
    best = _fitted(blocks, low, high, bits)
    for share in RANGES[1:]:
        found = _fitted(blocks, low * share, high * share, bits)
        is_better = found.error < best.error
        best = _Fit(*(torch.where(is_better, *pair) for pair in zip(found, best, strict=True)))
    codes, zeros = best.codes.to(torch.uint8), best.zero[..., 0].to(torch.uint8)
    if bits == 4:
        codes, zeros = _packed(codes), _packed(functional.pad(zeros, (0, zeros.shape[-1] % 2)))
    return codes, best.scale[..., 0], zeros


class _Fit(NamedTuple):
    """Quantized blocks: codes, the code of zero, the scale, and the squared error of each."""

    codes: torch.Tensor
    zero: torch.Tensor
    scale: torch.Tensor
    error: torch.Tensor


def _fitted(blocks: torch.Tensor, low: torch.Tensor, high: torch.Tensor, bits: int) -> _Fit:
    """Return codes over a range, and the scale that fits them best by least squares."""
    highest = (1 << bits) - 1
    scale = ((high - low) / highest).clamp_min(TINY)
    zero = (-low / scale).round()
    codes = (blocks / scale).add_(zero).round_().clamp_(0, highest)
    steps = codes - zero
    scale = (steps * blocks).sum(-1, keepdim=True) / (steps * steps).sum(-1, keepdim=True).clamp(1)
    error = (steps * scale).sub_(blocks).square_().sum(-1, keepdim=True)
    return _Fit(codes, zero, scale, error)


def _packed(codes: torch.Tensor) -> torch.Tensor:
    """Return 4-bit codes, two in each byte, the first in the lower half."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def _unpacked(codes: torch.Tensor) -> torch.Tensor:
    return torch.stack([codes & 15, codes >> 4], -1).flatten(-2)


def _rounded_blocks(inputs: torch.Tensor, block: int) -> torch.Tensor:
    """Return inputs rounded to 8 bits in blocks, like MatMulNBits."""
    blocks = _blocks(inputs, block)
    largest = blocks.abs().amax(-1, keepdim=True)
    scale = largest / 127
    codes = (blocks * torch.where(largest == 0, 0, 127 / largest)).round()
    return (codes * scale).flatten(-2)[..., : inputs.shape[-1]]


def _blocks(rows: torch.Tensor, block: int) -> torch.Tensor:
    """Return ``[..., width]`` as ``[..., blocks, block]``, padded with zeros."""
    padded = functional.pad(rows, (0, -rows.shape[-1] % block))
    return padded.view(*padded.shape[:-1], -1, block)
