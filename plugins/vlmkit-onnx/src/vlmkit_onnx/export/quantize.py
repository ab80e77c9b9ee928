"""Linear layers with weights of few bits, as torch modules that trace to ONNX Runtime's operators.

A decoder is converted in place, one layer at a time, and each original is let go as its converted
form is made: the model is never held twice. Every converted layer has a forward of the same
arithmetic in torch, so that the exported graph can be compared with the modules it was made from.

w8a8   per-token activations of 8 bits, weights of 8 bits for each output, MatMulInteger: a row
       depends on nothing but itself, so results do not depend on the batch. Activations are
       unsigned and weights signed, the fast way with VNNI; an x86 CPU without it adds such
       products with saturation, and there the check after the export refuses the result
int8   weights of 8 bits in blocks of 32, MatMulNBits, activations of 8 bits by block
int4   the same with weights of 4 bits

Rounding is to the nearest, without calibration. Weights that are not those of an ``nn.Linear``
(stacked experts, embeddings, norms, routers) stay floats.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from vlmkit_onnx.export.token_linear import DOMAIN, MIDDLE, OPERATOR, TINY
from vlmkit_onnx.export.views import Parts
from vlmkit_onnx.manifest import Precision

BLOCK = 32
SLICE_ROWS = 1024  # output rows that are held as floats at a time
ACCURACY_LEVEL = 4  # MatMulNBits rounds activations to 8 bits, block by block
OnLayer = Callable[[int, int], None]


class TokenLinear(nn.Module):
    """w8a8: 8-bit weights of one scale for each output, 8-bit activations of one for each token."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        codes = torch.empty(linear.in_features, linear.out_features, dtype=torch.int8)
        scale = torch.empty(linear.out_features)
        for rows in _row_slices(linear.out_features):
            weight = linear.weight[rows].float()
            scale[rows] = (weight.abs().amax(1) / 127).clamp_min(TINY)
            codes[:, rows] = (weight / scale[rows, None]).round().to(torch.int8).t()
        self.bias = _bias_of(linear)
        self.codes = nn.Buffer(codes)
        self.scale = nn.Buffer(scale)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``[..., out]`` of ``[..., in]``."""
        if torch.compiler.is_exporting():
            return self._symbolic(inputs)
        scale = inputs.abs().amax(-1, keepdim=True) * (1 / 127) + TINY
        codes = (torch.round(inputs / scale) + MIDDLE).to(torch.uint8)
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
    """int4 and int8: weights in blocks of 32 along the input, each with its own scale."""

    def __init__(self, linear: nn.Linear, bits: int) -> None:
        super().__init__()
        self.bits, self.width = bits, linear.in_features
        blocks = -(-linear.in_features // BLOCK)
        codes = torch.empty(linear.out_features, blocks, BLOCK * bits // 8, dtype=torch.uint8)
        scale = torch.empty(linear.out_features, blocks)
        for rows in _row_slices(linear.out_features):
            codes[rows], scale[rows] = _quantized_blocks(linear.weight[rows].float(), bits)
        self.bias = _bias_of(linear)
        self.codes = nn.Buffer(codes)
        self.scale = nn.Buffer(scale)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return ``[..., out]`` of ``[..., in]``."""
        if torch.compiler.is_exporting():
            out = self._symbolic(inputs)
        else:
            rounded = _rounded_blocks(inputs)
            slices = _row_slices(len(self.codes))
            out = torch.cat([rounded @ self._weight(rows).t() for rows in slices], -1)
        return out if self.bias is None else out + self.bias

    def _symbolic(self, inputs: torch.Tensor) -> torch.Tensor:
        num_outputs = len(self.codes)
        return torch.onnx.ops.symbolic(
            "com.microsoft::MatMulNBits",
            (inputs, self.codes, self.scale),
            {
                "K": self.width,
                "N": num_outputs,
                "bits": self.bits,
                "block_size": BLOCK,
                "accuracy_level": ACCURACY_LEVEL,
            },
            dtype=inputs.dtype,
            shape=(*inputs.shape[:-1], num_outputs),
            version=1,
        )

    def _weight(self, rows: slice) -> torch.Tensor:
        codes = self.codes[rows]
        if self.bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
        weight = (codes.float() - (1 << (self.bits - 1))) * self.scale[rows, :, None]
        return weight.flatten(1)[:, : self.width]


def convert(parts: Parts, precision: Precision, on_layer: OnLayer) -> None:
    """Bring a decoder and its head to a precision, in place, layer by layer.

    Args:
        parts: what is converted.
        precision: to what.
        on_layer: told how many linear layers are done, and of how many.
    """
    make = _maker(precision)
    if make is not None:
        holders = list(_linears(parts))
        for number, (holder, name) in enumerate(holders, 1):
            setattr(holder, name, make(getattr(holder, name)))
            on_layer(number, len(holders))
    dtype = torch.float16 if precision == "fp16" else torch.float32
    for module in (parts.decoder, parts.head):
        _cast(module, dtype)


def _maker(precision: Precision) -> Callable[[nn.Linear], nn.Module] | None:
    makers: dict[str, Callable[[nn.Linear], nn.Module]] = {
        "w8a8": TokenLinear,
        "int8": lambda linear: BlockLinear(linear, 8),
        "int4": lambda linear: BlockLinear(linear, 4),
    }
    return makers.get(precision)


def _linears(parts: Parts) -> Iterator[tuple[nn.Module, str]]:
    """Yield who holds each linear layer, and by which name; subclasses may compute otherwise."""
    for root in (parts.decoder, parts.head):
        for module in root.modules():
            for name, child in module.named_children():
                if type(child) is nn.Linear:
                    yield module, name


def _cast(root: Any, dtype: torch.dtype) -> None:
    """Cast weights one by one.

    What a family computes for itself, such as the frequencies of RoPE, keeps its precision.
    """
    for module in root.modules():
        if isinstance(module, TokenLinear | BlockLinear):
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        for name, buffer in module.named_buffers(recurse=False):
            kept = name in module._non_persistent_buffers_set  # noqa: SLF001 - not otherwise known
            if buffer.is_floating_point() and not kept:
                setattr(module, name, buffer.to(dtype))


def _bias_of(linear: nn.Linear) -> torch.Tensor | None:
    bias: torch.Tensor | None = linear.bias
    return None if bias is None else nn.Buffer(bias.detach().float())


def _row_slices(num_rows: int) -> list[slice]:
    return [slice(i, min(i + SLICE_ROWS, num_rows)) for i in range(0, num_rows, SLICE_ROWS)]


def _quantized_blocks(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes ``[out, blocks, bytes]`` and scales ``[out, blocks]`` of ``[out, in]``.

    The number farthest from zero gets the lowest code, which has one step more than the highest.
    """
    middle, highest = 1 << (bits - 1), (1 << bits) - 1
    blocks = _blocks(weight)
    farthest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = farthest / -middle
    steps = torch.where(scale == 0, 0, blocks / torch.where(scale == 0, 1, scale))
    codes = (steps.round() + middle).clamp_(0, highest).to(torch.uint8)
    if bits == 4:
        codes = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return codes, scale[..., 0]


def _rounded_blocks(inputs: torch.Tensor) -> torch.Tensor:
    """Return inputs rounded to 8 bits in blocks, as MatMulNBits does inside."""
    blocks = _blocks(inputs)
    largest = blocks.abs().amax(-1, keepdim=True)
    scale = largest / 127
    codes = (blocks * torch.where(largest == 0, 0, 127 / largest)).round()
    return (codes * scale).flatten(-2)[..., : inputs.shape[-1]]


def _blocks(rows: torch.Tensor) -> torch.Tensor:
    """Return ``[..., width]`` as ``[..., blocks, 32]``, zeros where a block is not full."""
    padded = functional.pad(rows, (0, -rows.shape[-1] % BLOCK))
    return padded.view(*padded.shape[:-1], -1, BLOCK)
