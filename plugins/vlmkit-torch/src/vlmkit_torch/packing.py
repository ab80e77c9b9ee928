"""Keeps linear layers in the layout that oneDNN reads fastest on a CPU.

Decoding multiplies a few rows with large matrices. Plain ``linear`` reads the weights in an order
that wastes most of the work at such sizes; packed once, they are read several times faster, and
faster still where layers of the same input are read as one. Only for float32 on a CPU, where torch
offers the operation.
"""

# ruff: noqa: SLF001 - the operations are torch.compile's own; the load-time check covers them

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import nn

from vlmkit_torch.weights import LoadedModel

PACKED_FOR_ROWS = 8
LEAST_NUMBERS = 2**16  # below this, the call costs more than the multiplication
OF_ONE_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))


class PackedWeights:
    """Weights of linear layers that a parent mostly asks about one input, read as one.

    A layer that is asked about another input computes all of them about that: slower, never wrong.

    Args:
        linears: the layers; the original weights may be let go.
    """

    def __init__(self, linears: Seq[nn.Linear]) -> None:
        weight = torch.cat([linear.weight for linear in linears])
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
        biases: list[Any] = [linear.bias for linear in linears]  # all, or none of them
        self._bias = None if biases[0] is None else torch.cat(biases)
        self._sizes = [linear.out_features for linear in linears]
        self._rows: torch.Tensor | None = None
        self._kept: dict[int, torch.Tensor] = {}

    def product(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        """Return one layer's ``rows @ weight.T + bias``; the others' are kept until asked for."""
        if rows is not self._rows or index not in self._kept:
            out = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
            self._rows, self._kept = rows, dict(enumerate(out.split(self._sizes, -1)))
        own = self._kept.pop(index)
        if not self._kept:
            self._rows = None
        return own


class PackedLinear(nn.Module):
    """A linear layer whose weights are packed; the original ones are let go.

    Args:
        linear: the layer.
        weights: of it, and of others.
        index: which of them it is.
    """

    def __init__(self, linear: nn.Linear, weights: PackedWeights, index: int = 0) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self._weights = weights
        self._index = index

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T + bias``."""
        return self._weights.product(self._index, rows)


def gains(loaded: LoadedModel) -> bool:
    """Whether this model, on this machine, is read faster when packed."""
    is_plain = loaded.device.type == "cpu" and loaded.dtype == torch.float32
    return is_plain and torch._C._has_mkldnn and _has_operations()


def pack(model: Any, decoder: nn.Module) -> None:
    """Pack the linear layers of a decoder, and the head's, in place."""
    for parent in list(decoder.modules()):
        children: dict[str, Any] = dict(parent.named_children())
        linears = {name: child for name, child in children.items() if _is_worth_it(child)}
        is_split = "Cross" in type(parent).__name__  # its keys are of pictures, its queries of text
        for names in [(name,) for name in linears] if is_split else _together(linears):
            weights = PackedWeights([linears[name] for name in names])
            for index, name in enumerate(names):
                setattr(parent, name, PackedLinear(linears[name], weights, index))
    head = model.get_output_embeddings()
    if _is_worth_it(head):
        model.set_output_embeddings(PackedLinear(head, PackedWeights([head])))


def _together(linears: dict[str, nn.Linear]) -> list[tuple[str, ...]]:
    """Return the names of layers that are read as one, and each of the others alone."""
    groups = [names for names in OF_ONE_INPUT if _are_alike([linears.get(n) for n in names])]
    grouped = {name for names in groups for name in names}
    return [*groups, *((name,) for name in linears if name not in grouped)]


def _are_alike(linears: Seq[nn.Linear | None]) -> bool:
    """Whether layers are all there, take inputs of one size, and all or none have a bias."""
    there = [linear for linear in linears if linear is not None]
    forms = {(linear.in_features, linear.bias is None) for linear in there}
    return len(there) == len(linears) and len(forms) == 1


def _is_worth_it(module: Any) -> bool:
    """Whether a module is large and does nothing but multiply with plain numbers.

    Layers of quantized models may have a ``forward`` of their own, or weights that only look like
    numbers.
    """
    if type(module) is not nn.Linear or "forward" in vars(module):
        return False
    weight = module.weight
    return type(weight) is nn.Parameter and weight.numel() >= LEAST_NUMBERS


def _has_operations() -> bool:
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    )
