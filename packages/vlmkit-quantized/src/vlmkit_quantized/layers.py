"""Finds the quantized layers of a checkpoint by the names of their tensors.

Compares them with the layers that ``quantization_config`` lists as plain. Evaluates no patterns in
such lists: tools write names of modules, which the files may not have, and a pattern can take
unlimited time.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.stored import StoredArray, StoredArrays

Parts = Mapping[str, StoredArray]
"""The tensors of a layer, by the rest of their names."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What headers show of a quantized weight.

    Attributes:
        num_weights: numbers of the plain weight; where headers leave it open, the most that fit.
        tensors: the names of the tensors that it consists of.
        bits: of a weight; where headers leave it open, the fewest that fit.
    """

    num_weights: int
    tensors: tuple[str, ...]
    bits: int


MATRIX_AXES = 2
PATTERN = "re:"
HEAD = "lm_head"  # listed as plain by most tools, and absent where it is the embedding
WRAPPED = ".linear"  # the module inside of a layer, by some families' names


def quantized_layers(
    stored: StoredArrays, packed: Collection[str], needed: Collection[str], known: Collection[str]
) -> Iterator[tuple[str, Parts]]:
    """Yield the name and the tensors of each layer that has a packed tensor.

    Args:
        stored: the tensors.
        packed: parts that only quantized layers have.
        needed: parts that each of them must have.
        known: parts that it may have.

    Raises:
        FormatError: there is none; one lacks a tensor, has an unknown one, or is an embedding.
    """
    is_empty = True
    for name, parts in stored.layers.items():
        if parts.keys().isdisjoint(packed):
            continue
        is_empty = False
        if "embed" in name.rpartition(".")[2]:
            raise FormatError("is a quantized embedding, which is not supported", name)
        if absent := next((part for part in needed if part not in parts), None):
            raise FormatError(f"has no {absent!r}", name)
        if unknown := next((part for part in parts if part not in known), None):
            raise FormatError(f"has a tensor {unknown!r}, which the format does not define", name)
        yield name, parts
    if is_empty:
        raise FormatError("its quantization_config describes quantized layers, and it has none")


def require_types(name: str, parts: Parts, types: Mapping[str, Collection[str]]) -> None:
    """Require types of tensors, in the words of safetensors.

    Raises:
        FormatError: a tensor has another type.
    """
    for part, allowed in types.items():
        if part in parts and parts[part].dtype not in allowed:
            found, wanted = parts[part].dtype, " or ".join(allowed)
            raise FormatError(f"has a {part!r} of type {found!r}, not {wanted}", name)


def require_matrices(name: str, parts: Parts, matrices: Collection[str]) -> None:
    """Require two axes, neither of size zero.

    Raises:
        FormatError: a tensor has another shape.
    """
    for part in matrices:
        shape = parts[part].shape
        if len(shape) != MATRIX_AXES or not all(shape):
            raise FormatError(f"has a {part!r} of shape {list(shape)}", name)


def check_plain(listed: Any, field: str, layers: Collection[str], quantized: set[str]) -> None:
    """Compare a list of plain layers with the layers of a checkpoint.

    Args:
        listed: the list, or None.
        field: its name in ``quantization_config``.
        layers: all layers.
        quantized: those that are quantized.

    Raises:
        FormatError: it is no list of texts, lists a quantized layer, or no layer at all.
    """
    if listed is None:
        return
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise FormatError(f"its quantization_config needs a list of names in {field!r}")
    names = [name for name in listed if name and not name.startswith(PATTERN)]
    if wrong := next((name for name in names if name in quantized), None):
        raise FormatError(
            f"is quantized, and quantization_config lists it as plain ({field!r})", wrong
        )
    ends = {_end(name): name for name in names if not name.endswith(HEAD)}
    if len(names) < len(listed) or not ends:
        return
    components = {component for layer in layers for component in layer.split(".")}
    if components.isdisjoint(ends):
        raise FormatError(
            f"its quantization_config lists plain layers ({field!r}), and it has none of them, "
            f"such as {next(iter(ends.values()))!r}"
        )


def _end(name: str) -> str:
    """Return the last part of a name, which is the same in files and modules."""
    return name.removesuffix(WRAPPED).rpartition(".")[2]
