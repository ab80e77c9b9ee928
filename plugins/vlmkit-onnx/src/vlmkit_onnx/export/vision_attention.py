"""The attention of vision towers as ONNX Runtime's own operator.

transformers lets attention be replaced by name; what is registered here can be traced only. Each
picture attends to itself, so that no mask is needed and the operator never writes the table of
scores out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from vlmkit.errors import CheckpointError

IMPLEMENTATION = "vlmkit_onnx_vision"


def attend(
    module: nn.Module,  # noqa: ARG001
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Let each token of a picture see all its tokens.

    Args:
        module: whose attention this is.
        query: ``[pictures, heads, tokens, width]``, as are ``key`` and ``value``.
        key: see ``query``.
        value: see ``query``.
        attention_mask: must be None.
        scaling: of the scores; one over the root of the width if None.

    Returns:
        ``[pictures, tokens, heads, width]``, and None for the weights.

    Raises:
        CheckpointError: the tower has a mask.
    """
    if attention_mask is not None:
        raise CheckpointError("the vision tower masks its attention, which cannot be exported")
    pictures, num_heads, tokens, width = query.shape
    flat = [x.transpose(1, 2).reshape(pictures, tokens, -1) for x in (query, key, value)]
    mixed = multi_head_attention(flat, num_heads, width**-0.5 if scaling is None else scaling)
    return mixed.reshape(pictures, tokens, num_heads, width), None


def multi_head_attention(
    states: list[torch.Tensor],
    num_heads: int,
    scaling: float,
    visible: torch.Tensor | None = None,
) -> torch.Tensor:
    """Emit the operator.

    Args:
        states: query, key and value, ``[rows, tokens, heads * width]``.
        num_heads: how many heads the last axis holds.
        scaling: of the scores.
        visible: ``[rows, tokens]`` int32, 1 for keys that are looked at; all of them if None.
    """
    padding = [] if visible is None else [None, visible]
    mixed: torch.Tensor = torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        [*states, *padding],
        {"num_heads": num_heads, "scale": float(scaling)},
        dtype=states[0].dtype,
        shape=states[0].shape,
        version=1,
    )
    return mixed


@contextmanager
def vision_attention(part: nn.Module, implementation: str = IMPLEMENTATION) -> Iterator[None]:
    """Route the attention of a tower through this module while the block runs."""
    AttentionInterface.register(IMPLEMENTATION, attend)
    configs = {id(m.config): m.config for m in part.modules() if hasattr(m, "config")}
    before = {key: config._attn_implementation for key, config in configs.items()}  # noqa: SLF001
    try:
        for config in configs.values():
            config._attn_implementation = implementation  # noqa: SLF001
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]  # noqa: SLF001
