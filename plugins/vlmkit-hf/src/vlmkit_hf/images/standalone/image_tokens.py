"""The text of an image by family: its tokens, from its arrays and the processor's settings."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from vlmkit_hf.images.pillow.sizes import best_canvas
from vlmkit_hf.images.size import Size
from vlmkit_hf.images.standalone.settings import ImageSettings, TextSettings

Writer = Callable[[Mapping[str, Any], TextSettings, ImageSettings], str]


def merged_patches(arrays: Mapping[str, Any], own: TextSettings, images: ImageSettings) -> str:
    """Write one token for each square of patches."""
    num_patches = int(np.prod(arrays["image_grid_thw"][0]))
    return own.image_token * (num_patches // _known(images.merge_size) ** 2)


def rows_of_tiles(arrays: Mapping[str, Any], own: TextSettings, _: ImageSettings) -> str:
    """Write tiles with row and column, one line for each row, then the whole."""
    rows, columns = int(arrays["rows"][0][0]), int(arrays["cols"][0][0])
    around = own.fake_image_token or ""
    tile = own.image_token * _known(own.image_seq_len)
    lines = [
        "".join(f"{around}<row_{row}_col_{column}>{tile}" for column in range(1, columns + 1))
        for row in range(1, rows + 1)
    ]
    tag = own.global_image_token or own.global_image_tag or ""
    above = "".join(f"{line}\n" for line in lines) + "\n" if rows or columns else ""
    return f"{above}{around}{tag}{tile}{around}"


def tiles(arrays: Mapping[str, Any], own: TextSettings, _: ImageSettings) -> str:
    """Write all tiles between two marks."""
    num_tokens = _known(own.image_seq_length) * int(arrays["num_patches"][0])
    return f"{own.start_image_token or ''}{own.image_token * num_tokens}{own.end_image_token or ''}"


def tiles_in_lines(arrays: Mapping[str, Any], own: TextSettings, images: ImageSettings) -> str:
    """Write all tiles between two marks, each with a line break token."""
    if not isinstance(images.patch_size, int):
        raise TypeError("patches that are no squares")
    line = own.image_token * images.patch_size**2 + (own.img_line_break_token or "")
    num_tiles = int(arrays["num_patches"][0])
    return f"{own.boi_token or ''}{line * num_tiles}{own.eoi_token or ''}"


def patches(arrays: Mapping[str, Any], own: TextSettings, _: ImageSettings) -> str:
    """Write one token for each patch, and the tower's additional ones."""
    height, width = arrays["pixel_values"][0].shape[-2:]
    side = _known(own.patch_size)
    return own.image_token * _selected((height // side) * (width // side) + _extra(own), own)


def rows_of_patches(arrays: Mapping[str, Any], own: TextSettings, _: ImageSettings) -> str:
    """Write one token for each patch, and one after each row."""
    side = _known(own.patch_size) * _known(own.spatial_merge_size)
    rows, columns = (int(length) // side for length in arrays["image_sizes"][0])
    row = own.image_token * columns
    middle = f"{row}{own.image_break_token or ''}" * (rows - 1)
    return f"{middle}{row}{own.image_end_token or ''}"


def fixed(_: Mapping[str, Any], own: TextSettings, __: ImageSettings) -> str:
    """Write the same for every image."""
    return own.full_image_sequence or own.image_token * _known(own.image_seq_length)


def canvas_of_patches(arrays: Mapping[str, Any], own: TextSettings, images: ImageSettings) -> str:
    """Write the whole in a tile, then a canvas's covered patches with one token for each row."""
    tile = Size(*arrays["pixel_values"][0][0].shape[-2:])
    side, kept = _known(own.patch_size), Fraction(own.downsample_rate or 1)
    one = Size(int(tile.height // side * kept), int(tile.width // side * kept))
    covered = _covered(arrays, tile, one, images)
    num_tokens = covered.height * covered.width + covered.height
    return own.image_token * _selected(num_tokens + one.height * one.width + _extra(own), own)


def canvas_within(arrays: Mapping[str, Any], own: TextSettings, images: ImageSettings) -> str:
    """Write the same, with at most the patches of a number of tiles."""
    tile = Size(*arrays["pixel_values"][0][0].shape[-2:])
    side = int(math.sqrt(_known(own.num_image_tokens)))
    high, wide = _covered(arrays, tile, Size(side, side), images)
    num_tiles = int((own.vision_aspect_ratio or "").strip("anyres_max_"))  # noqa: B005 - as theirs
    ratio = math.sqrt(high * wide / (num_tiles * side**2))
    if ratio > 1.1:
        high, wide = int(high // ratio), int(wide // ratio)
    num_tokens = high * wide + high + _known(own.num_image_tokens)
    return own.image_token * _selected(num_tokens, own)


def bos_behind_images(text: str, own: TextSettings) -> str:
    """Return a text with its first token after the images, and a line break at the end."""
    end = text.rfind(own.image_token) + len(own.image_token)
    return f"{text[:end]}{own.bos_token}{text[end:]}\n"


def _covered(arrays: Mapping[str, Any], tile: Size, patches: Size, images: ImageSettings) -> Size:
    """Return the rows and columns of patches of a canvas that an image covers."""
    height, width = (int(length) for length in arrays["image_sizes"][0])
    canvas = best_canvas(Size(height, width), images.image_grid_pinpoints or ())
    high = patches.height * (canvas.height // tile.height)
    wide = patches.width * (canvas.width // tile.width)
    if width / height > wide / high:
        used = int(round(height * (wide / width), 7))
        return Size(high - (high - used) // 2 * 2, wide)
    used = int(round(width * (high / height), 7))
    return Size(high, wide - (wide - used) // 2 * 2)


def _selected(num_tokens: int, own: TextSettings) -> int:
    """Return the number of tokens, less one if the tower's class token is dropped."""
    return num_tokens - (own.vision_feature_select_strategy == "default")


def _extra(own: TextSettings) -> int:
    return own.num_additional_image_tokens or 0


def _known(number: int | None) -> int:
    if number is None:
        raise ValueError("a setting that this family needs is not known")
    return number
