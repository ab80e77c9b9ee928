"""Attention that is the sharper the further on a token stands: it is told where tokens stand.

Llama 4 counts, in layers without rotation, how many tokens its own cache holds. Here it has none,
and the tokens of a pass are of many sequences: left to that, each would count from the beginning of
the pass. The scale itself is the family's own.
"""

import inspect
from typing import Any

import torch
from torch import nn


def settle(decoder: nn.Module) -> None:
    """Let the layers of a decoder that count tokens do so by their positions, for good."""
    for layer in decoder.modules():
        if any(getattr(part, "attn_temperature_tuning", False) for part in layer.children()):
            _tell_places(layer)


def _tell_places(layer: nn.Module) -> None:
    signature = inspect.signature(layer.forward)

    def before(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        call = signature.bind(*args, **kwargs)
        positions = call.arguments.get("position_ids")
        if positions is not None and call.arguments.get("past_key_values") is None:
            call.arguments["past_key_values"] = _Places(positions[0])
        return call.args, call.kwargs

    layer.register_forward_pre_hook(before, with_kwargs=True)


class _Places:
    """Stands where a layer looks for its cache, and keeps nothing.

    Args:
        positions: ``[tokens]`` of a pass.
    """

    def __init__(self, positions: torch.Tensor) -> None:
        self._before = positions - torch.arange(len(positions), device=positions.device)

    def get_seq_length(self, _layer: int = 0) -> torch.Tensor:
        """Return, for each token of the pass, how many more stand before it than in the pass."""
        return self._before

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the new keys and values as they are: the attention function keeps them."""
        return keys, values
