"""The authors' reference for Llama 3.2 Vision, where transformers computes something else.

A token before all images must attend to none. The authors' code therefore clears the attention and
MLP output of such a token. transformers 5.23 clears the MLP output only (issue 39379 of its
repository, found in July 2025). Its token then attends to all images, even to later ones and to
padding tiles. The difference shows wherever text precedes an image.
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
