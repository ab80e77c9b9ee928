"""Keeps linear layers in the layout that oneDNN reads fastest on a CPU.

Decoding multiplies a few rows with large matrices. Plain ``linear`` reads the weights in an order
that wastes most of the work at such sizes; packed once, they are read several times faster. Only
for float32 on a CPU, where torch offers the operation.
"""

# ruff: noqa: SLF001 - the operations are torch.compile's own; the load-time check covers them

from typing import Any

import torch
from torch import nn

from vlmkit_torch.weights import LoadedModel

PACKED_FOR_ROWS = 8
LEAST_NUMBERS = 2**16  # below this, the call costs more than the multiplication


class PackedLinear(nn.Module):
    """A linear layer whose weights are packed; the original ones are let go."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight, PACKED_FOR_ROWS)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T + bias``."""
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._packed, self.bias, "none", [], ""
        )
        return out


def gains(loaded: LoadedModel) -> bool:
    """Whether this model, on this machine, is read faster when packed."""
    is_plain = loaded.device.type == "cpu" and loaded.dtype == torch.float32
    return is_plain and torch._C._has_mkldnn and _has_operations()


def pack(model: Any, decoder: nn.Module) -> None:
    """Pack the linear layers of a decoder, and the head's, in place."""
    for parent in list(decoder.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and _is_worth_it(child):
                setattr(parent, name, PackedLinear(child))
    head = model.get_output_embeddings()
    if _is_worth_it(head):
        model.set_output_embeddings(PackedLinear(head))


def _is_worth_it(module: Any) -> bool:
    """Whether a module is a plain linear layer, no subclass of it, and large."""
    return type(module) is nn.Linear and module.weight.numel() >= LEAST_NUMBERS


def _has_operations() -> bool:
    return hasattr(torch.ops.mkldnn, "_reorder_linear_weight") and hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    )
