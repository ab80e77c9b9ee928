"""Fixes rotary frequencies that change with length at those of short texts.

A graph cannot recompute them, so the manifest's longest sequence ends where they would change. The
family's own code computes them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vlmkit_torch.model import positions


@contextmanager
def short_text_frequencies(decoder: nn.Module) -> Iterator[None]:
    """Rotate every token with the frequencies of short texts while the block runs.

    A call with a longer text leaves that text's frequencies in the modules. After the block, they
    may change again.
    """
    changed: list[Any] = [module for module in decoder.modules() if hasattr(module, "rope_type")]
    before = [module.rope_type for module in changed]
    for module, rope_type in zip(changed, before, strict=True):
        for prefix in _prefixes(rope_type):
            first: torch.Tensor = getattr(module, f"{prefix}original_inv_freq")
            frequencies: torch.Tensor = getattr(module, f"{prefix}inv_freq")
            frequencies.copy_(first)
        module.rope_type = _steady(rope_type)
    try:
        yield
    finally:
        for module, rope_type in zip(changed, before, strict=True):
            module.rope_type = rope_type


def _prefixes(rope_type: str | dict[str, str]) -> list[str]:
    """Return the name prefixes of frequencies that change, one for each layer type."""
    if isinstance(rope_type, dict):
        return [
            f"{layer_type}_"
            for layer_type, kind in rope_type.items()
            if positions.follows_length(kind)
        ]
    return [""] if positions.follows_length(rope_type) else []


def _steady(rope_type: str | dict[str, str]) -> str | dict[str, str]:
    """Return a RoPE type, or one for each layer type, that computes no new frequencies."""
    if isinstance(rope_type, dict):
        return {layer_type: str(_steady(kind)) for layer_type, kind in rope_type.items()}
    return "default" if positions.follows_length(rope_type) else rope_type
