"""A quantized checkpoint beside the plain one with the same values."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

WEIGHTS = "model.safetensors"
PLAIN = r"embed|norm|lm_head|mlp\.gate\.|moe\.gate\.|router|position"
"""Names of weights of two axes that stay plain."""

Tensors = dict[str, torch.Tensor]
Quantize = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]
"""Returns the stored tensors of a layer, by the rest of their names, and its values in float32."""


@dataclass(frozen=True)
class Quantized:
    """Two folders that must answer equally.

    Attributes:
        folder: with quantized weights.
        plain: with the same values as plain weights.
        values: the values of each quantized weight in float32.
    """

    folder: Path
    plain: Path
    values: Mapping[str, torch.Tensor]


def quantize(
    source: Path,
    place: Path,
    stated: Mapping[str, Any],
    by: Quantize,
    *,
    is_tied: bool = False,
    plain: str = "",
) -> Quantized:
    """Quantize the linear layers of a checkpoint.

    Args:
        source: the checkpoint.
        place: where the two folders are made, each called as the checkpoint's family.
        stated: the ``quantization_config``.
        by: quantizes a layer.
        is_tied: whether the head is to be the embedding.
        plain: a pattern for names of weights that stay plain.
    """
    kept = re.compile(f"{PLAIN}|{plain}" if plain else PLAIN)
    family = source.name.removeprefix("one-")
    folder, other = place / "quantized" / family, place / "plain" / family
    stored: Tensors = {}
    dense: Tensors = {}
    values: Tensors = {}
    for name, weight in tensors(source).items():
        if is_tied and name.endswith("lm_head.weight"):
            continue
        dense[name] = stored[name] = weight.float()
        if weight.ndim != 2 or not name.endswith(".weight") or kept.search(name):
            continue
        layer = name.removesuffix(".weight")
        del stored[name]
        parts, value = by(name, weight.float())
        stored |= {f"{layer}.{part}": tensor.contiguous() for part, tensor in parts.items()}
        dense[name] = values[name] = value.contiguous()
    assert values
    for made, weights in ((folder, stored), (other, dense)):
        shutil.copytree(source, made)
        write(made, weights)
        if is_tied:
            edit(made, tie_word_embeddings=True)
    edit(folder, quantization_config=dict(stated))
    return Quantized(folder, other, values)


def tensors(folder: Path) -> Tensors:
    """Return all tensors of a folder."""
    return load((folder / WEIGHTS).read_bytes())


def write(folder: Path, weights: Tensors) -> None:
    """Write the tensors of a folder."""
    (folder / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))


def change(folder: Path, function: Callable[[Tensors], object]) -> None:
    """Change the tensors of a folder."""
    weights = tensors(folder)
    function(weights)
    write(folder, weights)


def edit(folder: Path, **values: Any) -> None:
    """Set fields of ``config.json``; None removes one."""
    file = folder / "config.json"
    fields = json.loads(file.read_text()) | values
    file.write_text(json.dumps({name: it for name, it in fields.items() if it is not None}))


def state(folder: Path, **values: Any) -> None:
    """Set fields of ``quantization_config``; None removes one."""
    stated = json.loads((folder / "config.json").read_text())["quantization_config"] | values
    edit(folder, quantization_config={n: it for n, it in stated.items() if it is not None})


def words(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Return rows of numbers as a stream of bits in words of 32 bits, the lowest first."""
    num_words = -(-numbers.shape[1] * bits // 32)
    rows = []
    for row in numbers.tolist():
        stream = sum(number << (bits * place) for place, number in enumerate(row))
        octets = stream.to_bytes(4 * num_words, "little")
        rows.append(torch.frombuffer(bytearray(octets), dtype=torch.int32))
    return torch.stack(rows)


def by_range(
    rows: torch.Tensor, bits: int, *, is_symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes, scales in float16 and zero points of groups, the last axis.

    Scales have one more axis of size one.
    """
    largest = 2**bits - 1
    if is_symmetric:
        zero = torch.full((*rows.shape[:-1], 1), 2 ** (bits - 1))
        scale = rows.abs().amax(-1, keepdim=True) * 2 / largest
    else:
        low, high = rows.amin(-1, keepdim=True).clamp(max=0), rows.amax(-1, keepdim=True)
        scale = (high.clamp(min=0) - low) / largest
        zero = (-low / scale.clamp(min=1e-4)).round().clamp(0, largest).int()
    scale = scale.clamp(min=1e-4).half()
    codes = (rows / scale.float() + zero).round().clamp(0, largest).int()
    return codes, scale, zero
