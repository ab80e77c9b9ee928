"""Checkpoints of GPTQ, as AutoGPTQ and GPTQModel lay them out."""

from pathlib import Path
from typing import Any

import torch

from quantized_checkpoints import folders
from quantized_checkpoints.folders import Quantized, Tensors

PARTS = ("qweight", "qzeros", "scales", "g_idx")


def make(
    source: Path,
    place: Path,
    *,
    bits: int = 4,
    group_size: int = 16,
    version: int = 1,
    is_symmetric: bool = True,
    is_ordered: bool = False,
    is_tied: bool = False,
    **stated: Any,
) -> Quantized:
    """Quantize a checkpoint.

    Args:
        source: the checkpoint.
        place: where two folders are made.
        bits: of a weight.
        group_size: weights in a group; -1 is a row.
        version: of the zero points that are stored.
        is_symmetric: whether all zero points are the middle.
        is_ordered: whether columns are in groups in a random order.
        is_tied: whether the head is to be the embedding.
        stated: more of ``quantization_config``; None removes a field.
    """

    def by(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        return layer(weight, bits, group_size, version, is_symmetric, is_ordered)

    fields = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "sym": is_symmetric,
        "desc_act": is_ordered,
        "checkpoint_format": "gptq_v2" if version == 2 else "gptq",
        "meta": {"quantizer": ["gptqmodel:7.7.0"]},
    }
    kept = {name: value for name, value in (fields | stated).items() if value is not None}
    return folders.quantize(source, place, kept, by, is_tied=is_tied)


def layer(
    weight: torch.Tensor,
    bits: int,
    group_size: int,
    version: int,
    is_symmetric: bool,
    is_ordered: bool,
) -> tuple[Tensors, torch.Tensor]:
    """Return the tensors of a layer, and its values in float32."""
    rows, columns = weight.shape
    size = columns if group_size == -1 else group_size
    groups = torch.arange(columns) // size
    if is_ordered:
        groups = groups[torch.randperm(columns, generator=torch.Generator().manual_seed(columns))]
    num_groups = -(-columns // size)
    codes = torch.empty((rows, columns), dtype=torch.int32)
    scales = torch.empty((rows, num_groups), dtype=torch.float16)
    zeros = torch.empty((rows, num_groups), dtype=torch.int32)
    for group in range(num_groups):
        own = groups == group
        found, scale, zero = folders.by_range(weight[:, own], bits, is_symmetric=is_symmetric)
        codes[:, own] = found
        scales[:, group], zeros[:, group] = scale[:, 0], zero[:, 0]
    parts = {
        "qweight": folders.words(codes, bits).T,
        "qzeros": zero_words(zeros.T, bits, version),
        "scales": scales.T,
        "g_idx": groups.int(),
    }
    return parts, value(codes, scales, zeros, groups)


def value(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, groups: torch.Tensor
) -> torch.Tensor:
    """Return the values in float32."""
    return (codes - zeros[:, groups]).float() * scales.float()[:, groups]


def zero_words(zeros: torch.Tensor, bits: int, version: int) -> torch.Tensor:
    """Return zero points as stored; version 1 subtracts one from each number of a word.

    As the tool does, by one subtraction from the whole word, unless numbers lie across words.
    """
    if version == 2:
        return folders.words(zeros, bits)
    if 32 % bits:
        return folders.words((zeros - 1) % 2**bits, bits)
    ones = sum(1 << place for place in range(0, 32, bits))
    whole = folders.words(zeros, bits).long()
    padded = whole & 0xFFFFFFFF
    return ((padded - ones) % 2**32).to(torch.uint32).view(torch.int32)
