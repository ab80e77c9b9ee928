"""Rows of images that a decoder adds between its layers: by a family's mask, and to all tokens.

Families add rows to the tokens of images, by a mask. An exported decoder adds rows to every token,
zeros where there is no image: the host lays them out. Which rows those are is the tower's business.
"""

# ruff: noqa: SLF001 - Qwen3-VL's method is replaced while it is traced

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Rows = Callable[[], torch.Tensor | None]
"""Gives ``[levels, rows, seq, hidden]`` of the pass that runs."""


def numbered_layers(config: Any) -> tuple[int, ...]:
    """Return the layers before which rows are added, where a family numbers them: Granite 4's."""
    pairs = getattr(config, "deepstack_layer_map", None)
    if pairs is None:
        return ()
    return tuple(sorted({layer for _, layer in pairs} | {*config.spatial_target_layers}))


def num_levels(config: Any) -> int:
    """Return how many kinds of rows a model's decoder adds."""
    vision = getattr(config, "vision_config", None)
    indexes = getattr(vision, "deepstack_visual_indexes", None) or ()
    return len(numbered_layers(config)) or len(indexes)


def by_mask(layers: tuple[int, ...], rows: torch.Tensor, is_image: torch.Tensor) -> dict[str, Any]:
    """Return a family's own arguments for rows ``[levels, image tokens, hidden]``.

    Args:
        layers: from :func:`numbered_layers`.
        rows: of the tokens of images.
        is_image: ``[1, seq]``.
    """
    if layers:
        features = dict(zip(layers, rows.unbind(0), strict=True))
        return {"vision_mask": is_image[..., None], "deepstack_features": features}
    return {"visual_pos_masks": is_image, "deepstack_visual_embeds": list(rows.unbind(0))}


def arguments(layers: tuple[int, ...], rows: torch.Tensor | None) -> dict[str, Any]:
    """Return a decoder's arguments for rows of all tokens, while :func:`dense` holds."""
    if rows is None or layers:
        return {}
    return {"visual_pos_masks": None, "deepstack_visual_embeds": list(rows.unbind(0))}


@contextmanager
def dense(decoder: Any, layers: tuple[int, ...], rows: Rows) -> Iterator[None]:
    """Add rows to every token in place of a scatter, while the block runs."""
    hooks = [
        decoder.layers[layer].register_forward_pre_hook(_adding(rows, level))
        for level, layer in enumerate(layers)
    ]
    is_qwen = hasattr(decoder, "_deepstack_process")
    if is_qwen:
        decoder._deepstack_process = lambda hidden, _, rows: hidden + rows
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        if is_qwen:
            del decoder._deepstack_process  # the method of the class again


def _adding(rows: Rows, level: int) -> Callable[..., Any]:
    def add(_layer: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        found = rows()
        return args if found is None else (args[0] + found[level], *args[1:])

    return add
