"""Where transformers computes otherwise than a model's authors do, and their way is held to.

In Llama 3.2 Vision, a token that stands before all pictures sees none. Its authors' code therefore
clears what such a token gets of attention and MLP; transformers 5.23 clears the MLP alone (issue
39379 of its repository, found in July 2025), so that the token attends to all pictures, those after
it and the tiles that fill them up included. It shows wherever text stands before a picture.
"""

from typing import Any

import torch


def as_published(model: Any) -> Any:
    """Let a model compute as its authors publish it; most do, and stay as they are."""
    for layer in model.get_decoder().layers if model.config.model_type == "mllama" else ():
        if hasattr(layer, "cross_attn"):
            _clear_where_nothing_is_seen(layer)
    return model


def _clear_where_nothing_is_seen(layer: Any) -> None:
    attend = layer.cross_attn.forward
    seen: list[torch.Tensor | None] = [None]

    def note(_: Any, __: Any, kwargs: dict[str, Any]) -> None:
        seen[0] = kwargs["full_text_row_masked_out_mask"]

    def forward(*args: Any, **kwargs: Any) -> Any:
        rows, weights = attend(*args, **kwargs)
        return (rows if seen[0] is None else torch.where(seen[0][:, 0] > 0, rows, 0.0)), weights

    layer.register_forward_pre_hook(note, with_kwargs=True)
    layer.cross_attn.forward = forward
