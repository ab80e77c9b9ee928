"""How layers look at pictures: keys and values of new ones are kept, then rows attend.

Rows that look at no picture get zeros, as in the code of Llama's authors. transformers lets them
attend to everything there is (its issue 39379), tiles that only fill a picture up included.
"""

from functools import partial

import torch

from vlmkit_torch.attention.eager import Rule
from vlmkit_torch.attention.paged import Look, attend_to
from vlmkit_torch.cross_attention.family import Crossing
from vlmkit_torch.cross_attention.step import CrossingStep


class Onlookers:
    """The layers of one engine that look at pictures.

    Attributes:
        step: the forward pass that runs, if some token looks at a picture in it.

    Args:
        crossing: which layers they are.
    """

    def __init__(self, crossing: Crossing) -> None:
        self.step: CrossingStep | None = None
        self.looks: dict[int, Look] = {i: partial(self._look, i) for i in crossing.layers}

    def _look(
        self, index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
    ) -> torch.Tensor:
        """Attend with all rows of the step.

        Args:
            index: of the layer.
            query: ``[1, heads, tokens, head]``.
            key: ``[1, kv_heads, rows, head]`` of the pictures that are new.
            value: ``[1, kv_heads, rows, value_head]``, likewise.
            rule: of the layer.

        Returns:
            ``[tokens, heads, value_head]``.
        """
        step = self.step
        if step is None:
            raise RuntimeError("a layer looked at pictures where there are none")
        step.keep(index, key[0], value[0])
        _, heads, count, _ = query.shape
        out = value.new_zeros(count, heads, value.shape[-1])
        for group in step.groups:
            keys, values = group.keys_and_values(index)
            out[group.rows] = attend_to(query[:, :, group.rows], keys, values, None, rule)
        return out
