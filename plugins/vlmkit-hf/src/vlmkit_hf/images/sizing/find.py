"""Selects the kind of limits of an image processor, by its settings."""

from collections.abc import Callable, Mapping
from typing import Any

from vlmkit_hf.images.sizing import limit, slices
from vlmkit_hf.images.sizing.area import Area
from vlmkit_hf.images.sizing.base import Sizing
from vlmkit_hf.images.sizing.edge import Edge, Splits
from vlmkit_hf.images.sizing.limit import Limit
from vlmkit_hf.images.sizing.slices import Slices
from vlmkit_hf.images.sizing.tiles import Tiles


def find_sizing(processor: Any, options: Mapping[str, Any], token: str = "") -> Sizing | None:
    """Return the limits of a family; None if it has none, or none of a supported kind.

    The caller must check that they compute the right numbers of tokens.

    Args:
        processor: the family's processor.
        options: the arguments of the processor and its image processor.
        token: the text of the feature token; empty if it is unknown.
    """
    images = processor.image_processor

    def setting(name: str) -> Any:
        value = options.get(name)
        return getattr(images, name, None) if value is None else value

    if token and hasattr(images, "plan"):
        bound = next(filter(setting, limit.NAMES), None)
        keeps_size = setting("do_resize") is False
        return Limit(processor, options, bound, token) if bound and not keeps_size else None
    kind = type(images).__name__.removesuffix("Pil")
    if token and kind in slices.KINDS:
        return Slices(processor, options, kind, token)
    return _by_size(processor, setting) if setting("do_resize") else None


def _by_size(processor: Any, setting: Callable[[str], Any]) -> Sizing | None:
    """Return the limits that follow from the settings for resizing."""
    images = processor.image_processor
    size = setting("size") or {}
    shortest, longest = (_edge(size, name) for name in ("shortest_edge", "longest_edge"))
    tile_tokens = getattr(processor, "image_seq_len", getattr(processor, "image_seq_length", None))
    if not hasattr(images, "size"):
        return None
    if longest and tile_tokens and setting("max_image_size") and setting("do_image_splitting"):
        return Splits(images, tile_tokens)
    if tile_tokens and setting("crop_to_patches") and setting("max_patches"):
        return Tiles(images, tile_tokens)
    if shortest and longest and setting("merge_size") and setting("patch_size"):
        return Area(images) if hasattr(images, "get_number_of_image_patches") else None
    merge = getattr(processor, "spatial_merge_size", None)
    if longest and not shortest and merge and setting("patch_size"):
        return Edge(images, processor.patch_size * merge)
    return None


def _edge(size: Any, name: str) -> int | None:
    try:
        value: int | None = size[name]
    except (KeyError, TypeError):
        return None
    return value
