"""Computes the cross-attention layers: stores keys and values of new images, then attends.

Rows that attend to no image get zeros, as in the code of Llama's authors. transformers lets them
attend to all images, padding tiles included (its issue 39379).
"""

from functools import partial

import torch

from vlmkit_torch.attention.paged import CrossAttentionFunction
from vlmkit_torch.attention.parameters import AttentionParameters
from vlmkit_torch.attention.sdpa import attend_to
from vlmkit_torch.cross_attention.spec import CrossAttentionSpec
from vlmkit_torch.cross_attention.step import CrossAttentionStep


class CrossAttentionLayers:
    """The cross-attention layers of one engine.

    Attributes:
        step: the current forward pass; None unless one of its tokens attends to an image.
        functions: the attention function of each layer, by index.

    Args:
        spec: which layers they are.
    """

    def __init__(self, spec: CrossAttentionSpec) -> None:
        self.step: CrossAttentionStep | None = None
        self.functions: dict[int, CrossAttentionFunction] = {
            index: partial(self._attend, index) for index in spec.layers
        }

    def _attend(
        self,
        index: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        parameters: AttentionParameters,
    ) -> torch.Tensor:
        """Attend with all rows of the step.

        Args:
            index: of the layer.
            query: ``[1, heads, tokens, head]``.
            key: ``[1, kv_heads, rows, head]`` of the new images.
            value: ``[1, kv_heads, rows, value_head]``, likewise.
            parameters: of the layer.

        Returns:
            ``[tokens, heads, value_head]``.
        """
        step = self.step
        if step is None:
            raise RuntimeError("a cross-attention layer ran in a step without images")
        step.store(index, key[0], value[0])
        _, heads, count, _ = query.shape
        out = value.new_zeros(count, heads, value.shape[-1])
        for group in step.groups:
            keys, values = group.keys_and_values(index)
            out[group.rows] = attend_to(query[:, :, group.rows], keys, values, None, parameters)
        return out
