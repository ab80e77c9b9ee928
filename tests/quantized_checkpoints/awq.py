"""Checkpoints of AWQ in the layout ``gemm``, as AutoAWQ lays them out."""

from pathlib import Path
from typing import Any

import torch

from quantized_checkpoints import folders
from quantized_checkpoints.folders import Quantized, Tensors

IN_WORD = (0, 2, 4, 6, 1, 3, 5, 7)  # the columns in a word, from the lowest bits


def make(
    source: Path,
    place: Path,
    *,
    group_size: int = 16,
    is_symmetric: bool = False,
    is_tied: bool = False,
    **stated: Any,
) -> Quantized:
    """Quantize a checkpoint; for arguments see :func:`.gptq.make`."""

    def by(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, columns = weight.shape
        size = columns if group_size == -1 else group_size
        grouped = weight.reshape(rows, -1, size)
        codes, scales, zeros = folders.by_range(grouped, 4, is_symmetric=is_symmetric)
        value = (codes - zeros).float() * scales.float()
        parts = {
            "qweight": interleaved(codes.reshape(rows, columns).T),
            "qzeros": interleaved(zeros[:, :, 0].T),
            "scales": scales[:, :, 0].T,
        }
        return parts, value.reshape(rows, columns)

    fields = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group_size,
        "zero_point": not is_symmetric,
        "version": "gemm",
        "modules_to_not_convert": ["lm_head"],
    }
    kept = {name: value for name, value in (fields | stated).items() if value is not None}
    return folders.quantize(source, place, kept, by, is_tied=is_tied)


def interleaved(numbers: torch.Tensor) -> torch.Tensor:
    """Return rows of numbers as words, each with eight numbers in the order of the layout."""
    rows, columns = numbers.shape
    words = torch.zeros((rows, columns // 8), dtype=torch.int64)
    for place, column in enumerate(IN_WORD):
        words |= numbers[:, column::8].long() << (4 * place)
    return words.to(torch.uint32).view(torch.int32)
