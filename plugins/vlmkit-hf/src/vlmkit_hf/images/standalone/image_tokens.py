"""What families write for a picture: its tokens, by its arrays and their processor's settings."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from vlmkit_hf.images.pillow.sizes import best_canvas
from vlmkit_hf.images.size import Size
from vlmkit_hf.images.standalone.settings import PictureSettings, WordSettings

Writer = Callable[[Mapping[str, Any], WordSettings, PictureSettings], str]


def merged_patches(arrays: Mapping[str, Any], own: WordSettings, images: PictureSettings) -> str:
    """One token for each square of patches."""
    num_patches = int(np.prod(arrays["image_grid_thw"][0]))
    return own.image_token * (num_patches // _known(images.merge_size) ** 2)


def rows_of_tiles(arrays: Mapping[str, Any], own: WordSettings, _: PictureSettings) -> str:
    """Tiles by their row and column, a line each row; then the whole."""
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


def tiles(arrays: Mapping[str, Any], own: WordSettings, _: PictureSettings) -> str:
    """All tiles between two marks."""
    num_tokens = _known(own.image_seq_length) * int(arrays["num_patches"][0])
    return f"{own.start_image_token or ''}{own.image_token * num_tokens}{own.end_image_token or ''}"


def tiles_in_lines(arrays: Mapping[str, Any], own: WordSettings, images: PictureSettings) -> str:
    """All tiles between two marks, a line each."""
    if not isinstance(images.patch_size, int):
        raise TypeError("patches that are no squares")
    line = own.image_token * images.patch_size**2 + (own.img_line_break_token or "")
    num_tiles = int(arrays["num_patches"][0])
    return f"{own.boi_token or ''}{line * num_tiles}{own.eoi_token or ''}"


def patches(arrays: Mapping[str, Any], own: WordSettings, _: PictureSettings) -> str:
    """One token for each patch, and the tower's own."""
    height, width = arrays["pixel_values"][0].shape[-2:]
    side = _known(own.patch_size)
    return own.image_token * _chosen((height // side) * (width // side) + _extra(own), own)


def rows_of_patches(arrays: Mapping[str, Any], own: WordSettings, _: PictureSettings) -> str:
    """One token for each patch, and one behind each row."""
    side = _known(own.patch_size) * _known(own.spatial_merge_size)
    rows, columns = (int(length) // side for length in arrays["image_sizes"][0])
    row = own.image_token * columns
    middle = f"{row}{own.image_break_token or ''}" * (rows - 1)
    return f"{middle}{row}{own.image_end_token or ''}"


def fixed(_: Mapping[str, Any], own: WordSettings, __: PictureSettings) -> str:
    """The same for all."""
    return own.full_image_sequence or own.image_token * _known(own.image_seq_length)


def canvas_of_patches(arrays: Mapping[str, Any], own: WordSettings, images: PictureSettings) -> str:
    """The whole in a tile, and the patches of a canvas that are covered; a token for each row."""
    tile = Size(*arrays["pixel_values"][0][0].shape[-2:])
    side, kept = _known(own.patch_size), Fraction(own.downsample_rate or 1)
    one = Size(int(tile.height // side * kept), int(tile.width // side * kept))
    covered = _covered(arrays, tile, one, images)
    num_tokens = covered.height * covered.width + covered.height
    return own.image_token * _chosen(num_tokens + one.height * one.width + _extra(own), own)


def canvas_within(arrays: Mapping[str, Any], own: WordSettings, images: PictureSettings) -> str:
    """The same, of no more patches than those of some tiles."""
    tile = Size(*arrays["pixel_values"][0][0].shape[-2:])
    side = int(math.sqrt(_known(own.num_image_tokens)))
    high, wide = _covered(arrays, tile, Size(side, side), images)
    num_tiles = int((own.vision_aspect_ratio or "").strip("anyres_max_"))  # noqa: B005 - as theirs
    ratio = math.sqrt(high * wide / (num_tiles * side**2))
    if ratio > 1.1:
        high, wide = int(high // ratio), int(wide // ratio)
    num_tokens = high * wide + high + _known(own.num_image_tokens)
    return own.image_token * _chosen(num_tokens, own)


def bos_behind_images(text: str, own: WordSettings) -> str:
    """A text with the first token behind its images, and a line break at its end."""
    end = text.rfind(own.image_token) + len(own.image_token)
    return f"{text[:end]}{own.bos_token}{text[end:]}\n"


def _covered(arrays: Mapping[str, Any], tile: Size, patches: Size, images: PictureSettings) -> Size:
    """Return how many patches of its canvas a picture covers, in rows and columns."""
    height, width = (int(length) for length in arrays["image_sizes"][0])
    canvas = best_canvas(Size(height, width), images.image_grid_pinpoints or ())
    high = patches.height * (canvas.height // tile.height)
    wide = patches.width * (canvas.width // tile.width)
    if width / height > wide / high:
        used = int(round(height * (wide / width), 7))
        return Size(high - (high - used) // 2 * 2, wide)
    used = int(round(width * (high / height), 7))
    return Size(high, wide - (wide - used) // 2 * 2)


def _chosen(num_tokens: int, own: WordSettings) -> int:
    """Return how many are left where the tower's own first one is left out."""
    return num_tokens - (own.vision_feature_select_strategy == "default")


def _extra(own: WordSettings) -> int:
    return own.num_additional_image_tokens or 0


def _known(number: int | None) -> int:
    if number is None:
        raise ValueError("a setting that this family needs is not known")
    return number
