"""Packs the views of an image into the arrays that a family's model takes.

Each function takes the views of one image, ``[tiles, height, width, 3]`` each, and the settings.
The first axis of its arrays is of images, tiles or patches; several images are joined along it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from vlmkit_hf.images.pillow.pixels import Pixels

Arrays = dict[str, Any]


def tiles(views: Sequence[Pixels], _: Any) -> Arrays:
    """Pack all tiles along one axis."""
    return {"pixel_values": _channels_first(np.concatenate(views))}


def tiles_of_picture(views: Sequence[Pixels], _: Any) -> Arrays:
    """Pack the tiles of an image together."""
    return {"pixel_values": _channels_first(np.concatenate(views))[None]}


def whole_and_local(views: Sequence[Pixels], _: Any) -> Arrays:
    """Pack the whole image and its tiles into separate arrays."""
    whole, *local = map(_channels_first, views)
    return {"pixel_values": whole, **({"pixel_values_local": local[0]} if local else {})}


def whole_then_tiles(views: Sequence[Pixels], _: Any) -> Arrays:
    """Pack the whole image and its tiles together."""
    return {"image_pixel_values": _channels_first(np.concatenate(views))[None]}


def tiles_in_time(views: Sequence[Pixels], _: Any) -> Arrays:
    """Pack tiles as videos of two equal frames, channels last."""
    (tiles,) = views
    return {"pixel_values": np.stack([tiles, tiles], 1)}


def tiles_channels_last(views: Sequence[Pixels], _: Any) -> Arrays:
    """Pack tiles with channels last."""
    return {"pixel_values": views[0]}


def padded_patches(views: Sequence[Pixels], s: Any) -> Arrays:
    """Pack the patches of each tile, padded to one length, with a mask and the grids."""
    max_patches = max(
        s.max_image_tokens * s.downsample_factor**2,
        (s.tile_size // s.encoder_patch_size) ** 2 if s.do_image_splitting else 0,
    )
    shown = [tile for view in views for tile in view]
    patches = [_flat(_patches(tile, s.encoder_patch_size)) for tile in shown]
    if not s.do_pad:
        return {"pixel_values": np.stack(patches)}
    grids = [[side // s.encoder_patch_size for side in tile.shape[:2]] for tile in shown]
    masks = [np.arange(max_patches) < len(patch) for patch in patches]
    return {
        "pixel_values": np.stack([_padded(patch, max_patches, 0) for patch in patches]),
        "pixel_attention_mask": np.stack(masks).astype(np.int32),
        "spatial_shapes": np.array(grids),
    }


def positioned_patches(views: Sequence[Pixels], s: Any) -> Arrays:
    """Pack the patches of an image and their positions, padded to one length."""
    ((picture,),) = views
    patches = _patches(picture, s.patch_size * s.pooling_kernel_size)
    rows, columns = patches.shape[:2]
    positions = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), -1).reshape(-1, 2)
    return {
        "pixel_values": _padded(_flat(patches), s.max_soft_tokens, 0)[None],
        "image_position_ids": _padded(positions, s.max_soft_tokens, -1)[None],
    }


def square_patches(views: Sequence[Pixels], s: Any) -> Arrays:
    """Pack the patches of an image, each as a small image."""
    ((picture,),) = views
    patches = np.moveaxis(_patches(picture, s.patch_size), -1, 2)
    return {"pixel_values": patches.reshape(-1, *patches.shape[2:])}


def flat_patches(views: Sequence[Pixels], s: Any) -> Arrays:
    """Pack the patches of an image, each as a row, channel by channel."""
    patches = square_patches(views, s)["pixel_values"]
    return {"pixel_values": patches.reshape(len(patches), -1)}


def patches_in_time(views: Sequence[Pixels], s: Any) -> Arrays:
    """Pack the patches of an image, each as a row that repeats it for every frame."""
    patches = flat_patches(views, s)["pixel_values"]
    return {"pixel_values": np.tile(patches, s.temporal_patch_size)}


def merged_patches_in_time(views: Sequence[Pixels], s: Any) -> Arrays:
    """Pack the patches of an image in the order of tokens, repeated for every frame."""
    ((picture,),) = views
    patches = np.moveaxis(_patches(picture, s.patch_size), -1, 2)
    rows, columns, *one = patches.shape
    merge = s.merge_size
    tokens = patches.reshape(rows // merge, merge, columns // merge, merge, *one).swapaxes(1, 2)
    shown = np.repeat(tokens[..., None, :, :], s.temporal_patch_size, -3)
    return {"pixel_values": shown.reshape(rows * columns, -1)}


def strip_of_patches(views: Sequence[Pixels], s: Any) -> Arrays:
    """Pack the patches of all tiles side by side, as one long image."""
    patches = [_patches(tile, s.patch_size) for view in views for tile in view]
    rows = np.concatenate([part.reshape(-1, *part.shape[2:]) for part in patches])
    return {"pixel_values": rows.transpose(3, 1, 0, 2).reshape(1, 3, s.patch_size, -1)}


def patches_of_crops(views: Sequence[Pixels], s: Any) -> Arrays:
    """Pack the patches of each crop."""
    crops = np.concatenate(views)
    return {"pixel_values": np.stack([_flat(_patches(crop, s.patch_size)) for crop in crops])}


def _channels_first(tiles: Pixels) -> Pixels:
    return np.ascontiguousarray(np.moveaxis(tiles, -1, 1))


def _patches(picture: Pixels, side: int) -> Pixels:
    """Return patches ``[rows, columns, side, side, 3]`` of an image ``[height, width, 3]``."""
    rows, columns = (length // side for length in picture.shape[:2])
    return picture.reshape(rows, side, columns, side, 3).swapaxes(1, 2)


def _flat(patches: Pixels) -> Pixels:
    """Return each patch as a row."""
    return patches.reshape(patches.shape[0] * patches.shape[1], -1)


def _padded(rows: Pixels, max_patches: int, fill: int) -> Pixels:
    """Return rows padded to a fixed number."""
    more = max(0, max_patches - len(rows))
    return np.pad(rows, [(0, more), (0, 0)], constant_values=fill)
