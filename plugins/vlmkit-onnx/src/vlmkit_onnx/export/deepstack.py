"""Deepstack: rows of images that a decoder adds between its layers.

Families add rows to image tokens by a mask. An exported decoder adds rows to every token; the
runtime passes zeros for tokens without an image. The tower computes the rows.
"""

# ruff: noqa: SLF001 - Qwen3-VL's method is replaced while it is traced

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Rows = Callable[[], torch.Tensor | None]
"""Returns ``[levels, sequences, seq, hidden]`` of the current pass."""


def numbered_layers(config: Any) -> tuple[int, ...]:
    """Return the layers before which rows are added, if a family numbers them, like Granite 4."""
    pairs = getattr(config, "deepstack_layer_map", None)
    if pairs is None:
        return ()
    return tuple(sorted({layer for _, layer in pairs} | {*config.spatial_target_layers}))


def num_levels(config: Any) -> int:
    """Return how many levels of rows a model's decoder adds."""
    vision = getattr(config, "vision_config", None)
    indexes = getattr(vision, "deepstack_visual_indexes", None) or ()
    return len(numbered_layers(config)) or len(indexes)


def by_mask(layers: tuple[int, ...], rows: torch.Tensor, is_image: torch.Tensor) -> dict[str, Any]:
    """Return a family's own arguments for rows ``[levels, image tokens, hidden]``.

    Args:
        layers: from :func:`numbered_layers`.
        rows: of the image tokens.
        is_image: ``[1, seq]``.
    """
    if layers:
        features = dict(zip(layers, rows.unbind(0), strict=True))
        return {"vision_mask": is_image[..., None], "deepstack_features": features}
    return {"visual_pos_masks": is_image, "deepstack_visual_embeds": list(rows.unbind(0))}


def deepstack_arguments(layers: tuple[int, ...], rows: torch.Tensor | None) -> dict[str, Any]:
    """Return a decoder's arguments for rows of all tokens, inside :func:`dense_deepstack`."""
    if rows is None or layers:
        return {}
    return {"visual_pos_masks": None, "deepstack_visual_embeds": list(rows.unbind(0))}


@contextmanager
def dense_deepstack(decoder: Any, layers: tuple[int, ...], rows: Rows) -> Iterator[None]:
    """Add rows to every token instead of scattering them, while the block runs."""
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
