"""What all linear layers with packed weights have; how each computes is in its own module."""

import torch
from torch import nn


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
