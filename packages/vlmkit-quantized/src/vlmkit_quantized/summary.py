"""What headers show of a quantized checkpoint: method, bits, and which matrices stay dense and why.

For reports before a model is loaded. Reads no weight, and does not know what computes with them.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmkit_quantized.gguf_file import GgufFile
from vlmkit_quantized.gguf_names import PlainTensor
from vlmkit_quantized.layers import HEAD, WRAPPED, Outline
from vlmkit_quantized.stored import StoredArrays

LISTS = ("modules_to_not_convert", "llm_int8_skip_modules", "ignore", "ignored_layers")
"""Fields of ``quantization_config`` that list plain layers, in the words of the methods."""
SCALES = re.compile(r"(weight_scale(_inv)?|activation_scale|input_scale|_scales)$")
EIGHT, FOUR = 8, 4
FLOATS_OF_4 = re.compile(r"(.+)_blocks$")
MATRIX_AXES = 2
EXPERT = re.compile(r"\.experts\.\d+\.")
EMBEDDING = re.compile(r"(^|[._])(embd|embed\w*|wte)\.weight$")


@dataclass(frozen=True, slots=True)
class Summary:
    """The weights of a quantized checkpoint, by its headers.

    Attributes:
        method: such as ``gptq`` or ``gguf``.
        kinds: the number of quantized matrices by their kind, such as ``4 bits`` or ``Q4_K``.
        dense: the number of dense matrices by the reason why they are dense.
        num_weights: numbers of the plain model.
        largest: numbers of the largest weight.
        largest_merged: numbers of the largest weight that is merged of weights of experts.
        tower: the name of the file with the vision tower; empty if there is none of its own.
    """

    method: str
    kinds: Mapping[str, int]
    dense: Mapping[str, int]
    num_weights: int
    largest: int
    largest_merged: int
    tower: str = ""

    def __str__(self) -> str:
        kinds = ", ".join(f"{num} of {kind}" for kind, num in sorted(self.kinds.items()))
        num = sum(self.kinds.values())
        text = f"{self.method}: {num} of {num + sum(self.dense.values())} matrices quantized"
        text = f"{text} ({kinds})" if kinds else text
        tower = f"; vision tower in {self.tower!r}" if self.tower else ""
        if not self.dense:
            return text + tower
        reasons = ", ".join(f"{num} {reason}" for reason, num in sorted(self.dense.items()))
        return f"{text}, {sum(self.dense.values())} dense ({reasons}){tower}"


def of_layers(
    method: str, stored: StoredArrays, fields: Mapping[str, Any], outlines: Iterable[Outline]
) -> Summary:
    """Return the summary of a checkpoint in safetensors files.

    Args:
        method: its method.
        stored: its tensors.
        fields: its ``quantization_config``.
        outlines: its quantized weights.
    """
    listed = _listed(fields)
    kinds: Counter[str] = Counter()
    dense: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    used: set[str] = set()
    for outline in outlines:
        used.update(outline.tensors)
        kinds[f"{outline.bits} bits"] += 1
        sizes[outline.tensors[0]] = outline.num_weights
    for name, array in stored.items():
        if name in used or SCALES.search(name):
            continue
        sizes[name] = math.prod(array.shape)
        if name.endswith(".weight") and len(array.shape) == MATRIX_AXES:
            dense[_reason(name, listed)] += 1
    return _summary(method, kinds, dense, sizes)


def float_outlines(stored: StoredArrays) -> list[Outline]:
    """Return the weights in 8-bit floats, and those in 4-bit ones in the form of MXFP4."""
    found = []
    for name, array in stored.items():
        size = math.prod(array.shape)
        if array.dtype == "F8_E4M3" and not SCALES.search(name):
            found.append(Outline(size, (name,), EIGHT))
        elif (match := FLOATS_OF_4.match(name)) and f"{match[1]}_scales" in stored:
            found.append(Outline(2 * size, (name, f"{match[1]}_scales"), FOUR))
    return found


def of_gguf(
    parts: Sequence[tuple[GgufFile, Mapping[str, PlainTensor]]], tower: str = ""
) -> Summary:
    """Return the summary of GGUF files.

    Args:
        parts: the header of each file, and what its tensors are.
        tower: the name of the file with the vision tower.
    """
    kinds: Counter[str] = Counter()
    dense: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    total = merged = 0
    for file, plain in parts:
        for name, what in plain.items():
            tensor, size = file.tensors[name], math.prod(what.shape)
            is_merged = "{expert}" in what.name
            total += size
            sizes[what.name] += size // what.shape[0] if is_merged else size
            merged = max(merged, size if is_merged else 0)
            if tensor.is_quantized:
                kinds[tensor.type] += 1
            elif len(what.shape) >= MATRIX_AXES:
                dense[f"stored as {tensor.type}"] += 1
    largest = max(sizes.values(), default=0)
    return Summary("gguf", kinds, dense, total, largest, merged, tower)


def _summary(
    method: str, kinds: Counter[str], dense: Counter[str], sizes: Mapping[str, int]
) -> Summary:
    merged: Counter[str] = Counter()
    for name, size in sizes.items():
        if EXPERT.search(name):
            merged[EXPERT.sub(".experts.", name)] += size
    return Summary(
        method,
        kinds,
        dense,
        sum(sizes.values()),
        max(sizes.values(), default=0),
        max(merged.values(), default=0),
    )


def _listed(fields: Mapping[str, Any]) -> frozenset[str]:
    """Return the layers that a configuration lists as plain."""
    lists = (fields.get(name) for name in LISTS)
    return frozenset(
        name.removesuffix(WRAPPED)
        for names in lists
        if isinstance(names, list)
        for name in names
        if isinstance(name, str)
    )


def _reason(name: str, listed: Collection[str]) -> str:
    """Return why a matrix is dense."""
    layer = name.removesuffix(".weight")
    parts = layer.split(".")
    if EMBEDDING.search(name):
        return "embedding"
    ends = range(1, len(parts) + 1)
    if any(".".join(parts[begin:end]) in listed for end in ends for begin in range(end)):
        return "listed as plain"
    return "head" if layer.endswith(HEAD) else "stored as plain"
