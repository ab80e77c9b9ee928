"""What all linear layers with packed weights have; how each computes is in its own module."""

import torch
from torch import nn

from vlmkit_quantized.weight import QuantizedLinear


class PackedLinear(nn.Module):
    """A linear layer with packed weights, without a bias at first.

    Args:
        num_inputs: numbers in a row of inputs.
        num_outputs: numbers in a row of outputs.
        order: the inputs in the order of groups; None if they are in order.
    """

    order: torch.Tensor | None

    def __init__(self, num_inputs: int, num_outputs: int, order: torch.Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features = num_inputs, num_outputs
        self.bias: nn.Parameter | None = None
        self.register_buffer("order", order)


def has_packed_layers(model: nn.Module) -> bool:
    """Return whether some layer of a model has packed weights."""
    return any(isinstance(module, PackedLinear) for module in model.modules())


def has_equal_groups(weight: QuantizedLinear) -> bool:
    """Return whether the groups of a weight have equally many columns, in whatever order."""
    if weight.column_groups is None:
        return True
    sizes = torch.bincount(torch.from_numpy(weight.column_groups), minlength=weight.scales.shape[1])
    return bool((sizes == sizes[0]).all())


def column_order(weight: QuantizedLinear) -> torch.Tensor | None:
    """Return the columns of a weight in the order of groups; None if they are in order."""
    if weight.column_groups is None:
        return None
    return torch.argsort(torch.from_numpy(weight.column_groups), stable=True)
