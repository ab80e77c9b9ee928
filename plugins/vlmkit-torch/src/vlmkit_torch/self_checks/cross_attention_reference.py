"""The family's own cross-attention, as the reference of the vision check.

Computes nothing of the engine.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from vlmkit.interfaces.prompt import Prompt
from vlmkit_torch.cross_attention.spec import CrossAttentionSpec
from vlmkit_torch.model.features import to_tensor

ROW_MASK = "full_text_row_masked_out_mask"


def cross_attention_mask(spec: CrossAttentionSpec, config: Any, prompt: Prompt) -> torch.Tensor:
    """Return the mask ``[1, seq, images, tiles]`` that the family's processor makes.

    Counts tiles by the shape of an image, independently of the engine.
    """
    from transformers.models.mllama.processing_mllama import (
        convert_sparse_cross_attention_mask_to_dense,
    )

    shapes = config.vision_config.supported_aspect_ratios
    host = torch.device("cpu")
    ids = [int(to_tensor(slot.inputs["aspect_ratio_ids"], host)) for slot in prompt.media]
    made: np.ndarray[Any, Any] = convert_sparse_cross_attention_mask_to_dense(
        [spec.ranges(prompt)],
        num_tiles=[[math.prod(shapes[number - 1]) for number in ids]],
        max_num_tiles=spec.max_tiles,
        length=len(prompt),
    )
    return torch.from_numpy(made)


@contextmanager
def mask_before_first_image(decoder: Any, spec: CrossAttentionSpec | None) -> Iterator[None]:
    """Let tokens before the first image attend to no image, as in the code of Llama's authors.

    transformers 5.23 lets such a token attend to all images, and only skips the layer's MLP (its
    issue 39379). Once that is fixed, this has no effect.

    Args:
        decoder: of the model.
        spec: its cross-attention; None changes nothing.
    """
    hooks = []
    for index in spec.layers if spec else ():
        layer, rows = decoder.layers[index], _AttendingRows()
        hooks.append(layer.register_forward_pre_hook(rows.store, with_kwargs=True))
        hooks.append(layer.cross_attn.register_forward_hook(rows.mask))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _AttendingRows:
    """Passes the rows that attend to an image from a layer to its attention."""

    row_mask: torch.Tensor | None = None

    def store(self, _: nn.Module, __: Any, kwargs: dict[str, Any]) -> None:
        self.row_mask = kwargs.get(ROW_MASK)

    def mask(self, _: nn.Module, __: Any, made: tuple[torch.Tensor, Any]) -> Any:
        rows, weights = made
        return (rows if self.row_mask is None else rows * self.row_mask[:, 0]), weights
