"""The family's own way of looking at pictures, where an answer is held against it."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from vlmkit.interfaces.prompt import Prompt
from vlmkit_torch.cross_attention.family import Crossing
from vlmkit_torch.model.features import to_tensor

SEEN = "full_text_row_masked_out_mask"


def cross_attention_mask(crossing: Crossing, config: Any, prompt: Prompt) -> torch.Tensor:
    """Return the mask ``[1, seq, pictures, tiles]`` that the family's processor would make.

    Tiles are counted by the shape of a picture, and not as the engine counts them.
    """
    from transformers.models.mllama.processing_mllama import (
        convert_sparse_cross_attention_mask_to_dense,
    )

    shapes = config.vision_config.supported_aspect_ratios
    host = torch.device("cpu")
    ids = [int(to_tensor(slot.inputs["aspect_ratio_ids"], host)) for slot in prompt.media]
    made: np.ndarray[Any, Any] = convert_sparse_cross_attention_mask_to_dense(
        [crossing.ranges(prompt)],
        num_tiles=[[math.prod(shapes[number - 1]) for number in ids]],
        max_num_tiles=crossing.most_tiles,
        length=len(prompt),
    )
    return torch.from_numpy(made)


@contextmanager
def blind_before_pictures(decoder: Any, crossing: Crossing | None) -> Iterator[None]:
    """Let tokens that stand before all pictures see none of them, as Llama's authors have it.

    transformers 5.23 lets such a token attend to all pictures, and leaves only the layer's MLP out
    (its issue 39379). Where that is mended, this changes nothing.

    Args:
        decoder: of the model.
        crossing: its facts; without them it is left as it is.
    """
    hooks = []
    for index in crossing.layers if crossing else ():
        layer, note = decoder.layers[index], _Note()
        hooks.append(layer.register_forward_pre_hook(note.take, with_kwargs=True))
        hooks.append(layer.cross_attn.register_forward_hook(note.apply))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Note:
    """Which tokens of a call see a picture, from a layer to its attention."""

    seen: torch.Tensor | None = None

    def take(self, _: nn.Module, __: Any, kwargs: dict[str, Any]) -> None:
        self.seen = kwargs.get(SEEN)

    def apply(self, _: nn.Module, __: Any, made: tuple[torch.Tensor, Any]) -> Any:
        rows, weights = made
        return (rows if self.seen is None else rows * self.seen[:, 0]), weights
