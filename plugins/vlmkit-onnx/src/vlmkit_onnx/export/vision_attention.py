"""The attention of vision towers as ONNX Runtime's own operator.

transformers selects attention by name. The function registered here can only be traced. No token
sees beyond its own picture or window, so the operator needs no mask over all tokens and never
stores the scores.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from vlmkit.errors import CheckpointError

# Families that pack pictures into one row pass their borders only to names like this.
IMPLEMENTATION = "flash_attention_vlmkit_onnx"


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments of one packed row, in which tokens see only their own segment.

    Tokens are gathered by index: tracing is slow for shapes that are products.

    Attributes:
        gather: ``[segments, tokens]`` the token at each place.
        visible: ``[segments, tokens]`` int32, 0 for padding of shorter segments; None without
            padding.
        scatter: ``[row]`` the place of each token of the row, counted over all segments; None if
            they are in order.
    """

    gather: torch.Tensor
    visible: torch.Tensor | None = None
    scatter: torch.Tensor | None = None

    def split(self, row: torch.Tensor) -> torch.Tensor:
        """Turn ``[1, row, width]`` into ``[segments, tokens, width]``."""
        return nn.functional.embedding(self.gather, row[0])

    def join(self, segments: torch.Tensor) -> torch.Tensor:
        """Reverse :meth:`split`."""
        row = segments.flatten(0, 1)
        return (row if self.scatter is None else row.index_select(0, self.scatter))[None]


def segment_attention(
    module: nn.Module,  # noqa: ARG001
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: Segments | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Emit attention in which each token sees all tokens of its picture or window.

    Args:
        module: whose attention this is.
        query: ``[pictures, heads, tokens, width]``, as are ``key`` and ``value``, which may have
            fewer heads.
        key: see ``query``.
        value: see ``query``.
        attention_mask: must be None.
        scaling: of the scores; one over the root of the width if None.
        cu_seq_lens_q: the segments of a family that packs pictures into one row.

    Returns:
        ``[pictures, tokens, heads, width]``, and None for the weights.

    Raises:
        CheckpointError: the tower has a mask.
    """
    if attention_mask is not None:
        raise CheckpointError("the vision tower masks its attention, which cannot be exported")
    pictures, num_heads, tokens, width = query.shape
    if key.shape[1] != num_heads:
        key, value = (x.repeat_interleave(num_heads // x.shape[1], 1) for x in (key, value))
    flat = [x.transpose(1, 2).flatten(2) for x in (query, key, value)]
    scaling = width**-0.5 if scaling is None else scaling
    if cu_seq_lens_q is None:
        mixed = _multi_head_attention(flat, num_heads, scaling)
    else:
        split = [cu_seq_lens_q.split(states) for states in flat]
        visible = cu_seq_lens_q.visible
        mixed = cu_seq_lens_q.join(_multi_head_attention(split, num_heads, scaling, visible))
    return mixed.reshape(pictures, tokens, num_heads, width), None


def _multi_head_attention(
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
        visible: ``[rows, tokens]`` int32, 1 for visible keys; None means all.
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
def vision_attention(part: nn.Module) -> Iterator[None]:
    """Switch a tower to :func:`segment_attention` while the block runs."""
    AttentionInterface.register(IMPLEMENTATION, segment_attention)
    modules: Iterator[Any] = part.modules()
    configs = {id(m.config): m.config for m in modules if hasattr(m, "config")}
    before = {key: config._attn_implementation for key, config in configs.items()}  # noqa: SLF001
    try:
        for config in configs.values():
            config._attn_implementation = IMPLEMENTATION  # noqa: SLF001
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]  # noqa: SLF001
