"""Checkpoints of bitsandbytes, as its layers are saved by transformers."""

import json
from pathlib import Path
from typing import Any

import torch

from quantized_checkpoints import folders
from quantized_checkpoints.folders import Quantized, Tensors

LEVELS = {
    "nf4": [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022833334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    "fp4": [sign * level / 12 for sign in (1, -1) for level in (0, 0.0625, 8, 12, 4, 6, 2, 3)],
}
"""The quantiles of a normal distribution; and numbers of one sign, three exponent bits at most."""


def make(
    source: Path,
    place: Path,
    *,
    levels: str = "nf4",
    blocksize: int = 64,
    is_nested: bool = True,
    storage: torch.dtype = torch.uint8,
    is_tied: bool = False,
    **stated: Any,
) -> Quantized:
    """Quantize a checkpoint in 4 bits.

    Args:
        source: the checkpoint.
        place: where two folders are made.
        levels: ``nf4`` or ``fp4``.
        blocksize: weights that share a scale.
        is_nested: whether scales are quantized themselves.
        storage: the type in which bytes are stored.
        is_tied: whether the head is to be the embedding.
        stated: more of ``quantization_config``; None removes a field.
    """

    def by(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        return four(weight, levels, blocksize, is_nested, storage)

    fields = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": levels,
        "bnb_4bit_use_double_quant": is_nested,
        "llm_int8_skip_modules": ["lm_head"],
    }
    kept = {name: value for name, value in (fields | stated).items() if value is not None}
    return folders.quantize(source, place, kept, by, is_tied=is_tied)


def make_eight(source: Path, place: Path, *, is_tied: bool = False, **stated: Any) -> Quantized:
    """Quantize a checkpoint in 8 bits; for arguments see :func:`make`."""

    def by(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        largest = weight.abs().amax(1)
        integers = (weight * (127 / largest[:, None])).round().to(torch.int8)
        parts = {
            "weight": integers,
            "SCB": largest,
            "weight_format": torch.zeros((), dtype=torch.uint8),
        }
        return parts, integers.float() * largest[:, None] * torch.tensor(7.874015718698502e-3)

    fields = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": False,
        "load_in_8bit": True,
        "llm_int8_threshold": 6.0,
        "llm_int8_skip_modules": ["lm_head"],
    }
    kept = {name: value for name, value in (fields | stated).items() if value is not None}
    return folders.quantize(source, place, kept, by, is_tied=is_tied)


def four(
    weight: torch.Tensor, kind: str, blocksize: int, is_nested: bool, storage: torch.dtype
) -> tuple[Tensors, torch.Tensor]:
    """Return the tensors of a layer of 4 bits, and its values in float32."""
    levels = torch.tensor(LEVELS[kind], dtype=torch.float32)
    blocks = list(weight.flatten().split(blocksize))
    scales = torch.stack([block.abs().max() for block in blocks])
    state: dict[str, Any] = {
        "quant_type": kind,
        "blocksize": blocksize,
        "dtype": "float32",
        "shape": list(weight.shape),
    }
    parts: Tensors = {"weight.quant_map": levels, "weight.absmax": scales}
    if is_nested:
        nested, scales = nested_scales(scales, state)
        parts |= nested
    codes, values = [], []
    for block, scale in zip(blocks, scales, strict=True):
        code = (block[:, None] / scale - levels).abs().argmin(1)
        codes.append(code)
        values.append(levels[code] * scale)
    pairs = torch.cat(codes).reshape(-1, 2)
    octets = (pairs[:, 0] * 16 + pairs[:, 1]).to(torch.uint8)
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    parts |= {
        "weight": octets.view(storage)[:, None],
        f"weight.quant_state.bitsandbytes__{kind}": text,
    }
    return parts, torch.cat(values).reshape(weight.shape)


def nested_scales(scales: torch.Tensor, state: dict[str, Any]) -> tuple[Tensors, torch.Tensor]:
    """Return the tensors of quantized scales and their values; adds to a state.

    Levels are some that are symmetric; any are allowed.
    """
    levels = torch.linspace(-1, 1, 256) ** 3
    offset = scales.mean()
    largest = torch.stack([part.abs().max() for part in (scales - offset).split(256)])
    wide = largest.repeat_interleave(256)[: len(scales)]
    codes = ((scales - offset)[:, None] / wide[:, None] - levels).abs().argmin(1)
    state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset.item()}
    parts = {
        "weight.absmax": codes.to(torch.uint8),
        "weight.nested_absmax": largest,
        "weight.nested_quant_map": levels,
    }
    return parts, levels[codes] * wide + torch.tensor(state["nested_offset"])
