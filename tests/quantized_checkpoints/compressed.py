"""Checkpoints of compressed-tensors, written from what its package documents."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from quantized_checkpoints import folders
from quantized_checkpoints.folders import Quantized, Tensors

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
LEVELS = torch.cat([E2M1, -E2M1])
Layer = tuple[Tensors, torch.Tensor]

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, "symmetric": True}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
NVFP4 = {**INT4, "type": "float", "strategy": "tensor_group"}
MXFP4 = {**NVFP4, "strategy": "group", "group_size": 32}
SCHEMES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "pack": ("pack-quantized", INT4),
    "int": ("int-quantized", INT8),
    "fp8": ("float-quantized", FP8),
    "nvfp4": ("nvfp4-pack-quantized", NVFP4),
    "mxfp4": ("mxfp4-pack-quantized", MXFP4),
    "mxfp8": ("mxfp8-quantized", {**FP8, "strategy": "group", "group_size": 32}),
}


def make(
    source: Path,
    place: Path,
    *,
    scheme: str = "pack",
    weights: Mapping[str, Any] | None = None,
    is_ordered: bool = False,
    plain: str = "",
    is_tied: bool = False,
    **stated: Any,
) -> Quantized:
    """Quantize a checkpoint.

    Args:
        source: the checkpoint.
        place: where two folders are made.
        scheme: one of ``SCHEMES``.
        weights: changes of the scheme's weights.
        is_ordered: whether columns are in groups in a random order.
        plain: a pattern for names of weights that stay plain.
        is_tied: whether the head is to be the embedding.
        stated: more of ``quantization_config``; None removes a field.
    """
    stored_as, args = SCHEMES[scheme]
    args = args | dict(weights or {})

    def by(name: str, weight: torch.Tensor) -> Layer:
        if stored_as in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):
            return floats_of_4(weight, args["group_size"], is_nv="nv" in stored_as)
        if args["type"] == "float":
            return floats_of_8(weight, args, is_mx="mx" in stored_as)
        return integers(weight, args, is_packed="pack" in stored_as, is_ordered=is_ordered)

    group = {"targets": ["Linear"], "weights": args, "format": stored_as}
    fields = {
        "quant_method": "compressed-tensors",
        "format": stored_as,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    kept = {name: value for name, value in (fields | stated).items() if value is not None}
    return folders.quantize(source, place, kept, by, is_tied=is_tied, plain=plain)


def sizes(weight: torch.Tensor, args: Mapping[str, Any]) -> tuple[int, int]:
    """Return the rows and columns that share a scale."""
    rows, columns = weight.shape
    return {
        "tensor": (rows, columns),
        "channel": (1, columns),
        "group": (1, args.get("group_size") or columns),
        "block": tuple(args.get("block_structure") or (1, 1)),
    }[args["strategy"]]


def spread(scales: torch.Tensor, weight: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return the number of each weight, of those that some weights share."""
    rows, columns = weight.shape
    wide = scales.repeat_interleave(size[0], 0).repeat_interleave(size[1], 1)
    return wide[:rows, :columns]


def extremes(weight: torch.Tensor, size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest and the largest of the weights that share a scale."""
    rows, columns = weight.shape
    down, right = -rows % size[0], -columns % size[1]
    whole = torch.nn.functional.pad(weight, (0, right, 0, down))
    parts = whole.unflatten(1, (-1, size[1])).unflatten(0, (-1, size[0]))
    return parts.amin((1, 3)), parts.amax((1, 3))


def integers(
    weight: torch.Tensor, args: Mapping[str, Any], *, is_packed: bool, is_ordered: bool
) -> Layer:
    """Return a layer of integers."""
    bits, size = args["num_bits"], sizes(weight, args)
    order = torch.arange(weight.shape[1])
    if is_ordered:
        order = torch.randperm(len(order), generator=torch.Generator().manual_seed(len(order)))
    weight = weight[:, order]
    low, high = extremes(weight, size)
    half = 2 ** (bits - 1)
    if args["symmetric"]:
        scales = (torch.maximum(high, -low) / (half - 0.5)).clamp(min=1e-4).bfloat16().float()
        zeros = torch.zeros_like(scales)
    else:
        low, high = low.clamp(max=0), high.clamp(min=0)
        scales = ((high - low) / (2 * half - 1)).clamp(min=1e-4).bfloat16().float()
        zeros = (-half - low / scales).round().clamp(-half, half - 1)
    wide, shift = spread(scales, weight, size), spread(zeros, weight, size)
    codes = (weight / wide + shift).round().clamp(-half, half - 1)
    value = (codes - shift) * wide
    back = order.argsort()
    codes, value = codes[:, back], value[:, back]
    parts: Tensors = {"weight_scale": scales.bfloat16()}
    if is_ordered:
        parts["weight_g_idx"] = (torch.arange(len(order)) // size[1])[back].int()
    if not is_packed:
        zero_part = {} if args["symmetric"] else {"weight_zero_point": zeros.to(torch.int8)}
        return parts | {"weight": codes.to(torch.int8)} | zero_part, value
    parts["weight_packed"] = folders.words((codes + half).int(), bits)
    parts["weight_shape"] = torch.tensor(weight.shape)
    if not args["symmetric"]:
        is_one = args["strategy"] == "tensor"  # whose zero point is not packed
        packed = zeros.to(torch.int8) if is_one else folders.words((zeros + half).int().T, bits).T
        parts["weight_zero_point"] = packed
    return parts, value


def floats_of_8(weight: torch.Tensor, args: Mapping[str, Any], *, is_mx: bool) -> Layer:
    """Return a layer of 8-bit floats."""
    size = sizes(weight, args)
    low, high = extremes(weight, size)
    scales = (torch.maximum(high, -low) / 448).clamp(min=1e-6)
    scales = torch.exp2(scales.log2().ceil()) if is_mx else scales.bfloat16().float()
    wide = spread(scales, weight, size)
    codes = (weight / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
    stored = (scales.log2() + 127).to(torch.uint8) if is_mx else scales.bfloat16()
    return {"weight": codes, "weight_scale": stored}, codes.float() * wide


def floats_of_4(weight: torch.Tensor, group_size: int, *, is_nv: bool) -> Layer:
    """Return a layer of 4-bit floats."""
    grouped = weight.unflatten(1, (-1, group_size))
    wanted = grouped.abs().amax(2) / 6
    parts: Tensors = {}
    if is_nv:
        whole = 448 / wanted.max()
        stored = (wanted * whole).to(torch.float8_e4m3fn)
        scales = stored.float() / whole
        parts["weight_global_scale"] = whole.reshape(1)
    else:
        stored = (wanted.log2().ceil() + 127).to(torch.uint8)
        scales = torch.exp2(stored.float() - 127)
    codes = (grouped[..., None] / scales[:, :, None, None] - LEVELS).abs().argmin(-1)
    value = LEVELS[codes] * scales[:, :, None]
    pairs = codes.flatten(1).unflatten(1, (-1, 2))
    parts |= {
        "weight_packed": (pairs[..., 0] + 16 * pairs[..., 1]).to(torch.uint8),
        "weight_scale": stored,
    }
    return parts, value.flatten(1)
