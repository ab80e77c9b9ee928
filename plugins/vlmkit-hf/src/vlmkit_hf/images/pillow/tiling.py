"""The plans of families that cut an image into tiles.

They read a processor's settings by the names in its file. Several families share the rules in
:mod:`.grids` and :mod:`.sizes`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vlmkit_hf.images.pillow import grids, sizes
from vlmkit_hf.images.pillow.grids import Grid
from vlmkit_hf.images.pillow.pixels import Pixels
from vlmkit_hf.images.pillow.sizes import size_of
from vlmkit_hf.images.pillow.views import Cut, Pad, Plan, Resize, Sample, View
from vlmkit_hf.images.size import Size

MIN_SIDE = 10  # pixels that Phi 4 needs at least


def llama4(size: Size, s: Any) -> Plan:
    """Keep the aspect ratio and pad to a grid of tiles; add the whole if there are several."""
    tile, is_largest = size_of(s.size), s.resize_to_max_canvas
    grid = grids.least_scaled(size, tile.height, s.max_patches, is_largest=is_largest)
    canvas = grid.of(tile)
    used = sizes.within(size, canvas, None if is_largest else tile.height)
    tiled: View = (Resize(used), Pad(canvas), Cut(tile))
    views = (tiled, (Resize(tile),)) if grid.num_tiles > 1 else (tiled,)
    return Plan(views, {"aspect_ratios": [grid]})


def cohere2_vision(size: Size, s: Any) -> Plan:
    """Stretch to a grid of tiles; add the whole in one if there are several."""
    tile = size_of(s.size)
    if not s.crop_to_patches:
        return Plan(((Resize(tile),),), {"num_patches": [1]})
    square = Size(tile.height, tile.height)
    grid = grids.least_stretched(size, square, grids.up_to(s.max_patches))
    views: tuple[View, ...] = ((Resize(grid.of(tile)), Cut(tile)),)
    if grid.num_tiles > 1:
        views += ((Resize(tile),),)
    return Plan(views, {"num_patches": [grid.num_tiles + len(views) - 1]})


def lfm2_vl(size: Size, s: Any) -> Plan:
    """Show a small image in whole blocks; a large one as a grid of tiles, and reduced."""
    block = s.encoder_patch_size * s.downsample_factor
    used = sizes.in_blocks(size, block, s.min_image_tokens, s.max_image_tokens)
    area = math.prod(max(s.encoder_patch_size, round(n / block) * block) for n in size)
    is_large = area > s.max_image_tokens * block**2 * s.max_pixels_tolerance
    grid = Grid(1, 1)
    views: tuple[View, ...] = ((Resize(used),),)
    if is_large and s.do_image_splitting and not s.min_tiles == s.max_tiles == 1:
        tile = Size(s.tile_size, s.tile_size)
        grid = grids.nearest_in_shape(size, tile, grids.as_pairs(s.max_tiles, s.min_tiles))
        tiled: View = (Resize(grid.of(tile)), Cut(tile))
        has_whole = s.use_thumbnail and grid.num_tiles > 1
        views = (tiled, (Resize(used),)) if has_whole else (tiled,)
    if not s.return_row_col_info:
        return Plan(views)
    rows, columns = [grid.rows], [grid.columns]
    return Plan(views, {"image_rows": rows, "image_cols": columns, "image_sizes": [used]})


def perception_lm(size: Size, s: Any) -> Plan:
    """Show the whole in one tile, then stretched to a grid of tiles."""
    tile = Size(s.tile_size, s.tile_size)
    whole: View = (Resize(tile),)
    if s.vision_input_type != "thumb+tile":
        return Plan((whole,))
    grid = Grid(1, 1)
    if s.max_num_tiles > 1:
        grid = grids.largest_short_side(size, s.tile_size, s.max_num_tiles)
    return Plan((whole, (Resize(grid.of(tile)), Cut(tile))))


def molmo2(size: Size, s: Any) -> Plan:
    """Show the whole in one crop, then stretched to a grid of overlapping crops."""
    side = s.size["height"]
    margin = sum(s.overlap_margins) * s.patch_size
    step = side - margin
    rest = Size(size.height - margin, size.width - margin)
    grid = grids.least_stretched(rest, Size(step, step), grids.up_to(s.max_crops), np.float32)
    canvas = Size(grid.rows * step + margin, grid.columns * step + margin)
    crop = Size(side, side)
    views: tuple[View, ...] = ((Resize(crop),), (Resize(canvas), Cut(crop, Size(step, step))))
    pooled = _pooled_crops(grid, side // s.patch_size, s.overlap_margins, s.pooling_size)
    return Plan(views, {**pooled, "image_num_crops": [grid.num_tiles + 1]})


def _pooled_crops(
    grid: Grid, side: int, margins: Sequence[int], windows: Sequence[int]
) -> Mapping[str, Any]:
    """Return the patches of each token, and rows and columns of tokens.

    The first crop shows the whole image, the others show parts. Where two parts overlap, the outer
    patches of each are left out.

    Args:
        grid: the grid of the other crops.
        side: the number of patches along a side of a crop.
        margins: the numbers of patches to leave out before and after.
        windows: the rows and columns of patches of a token.
    """
    whole = np.arange(side * side).reshape(side, side)
    index = np.arange(grid.num_tiles * side * side).reshape(*grid, side, side)
    before, after = margins
    parts = [
        [
            index[row, column][
                before if row else 0 : side - after if row < grid.rows - 1 else side,
                before if column else 0 : side - after if column < grid.columns - 1 else side,
            ]
            for column in range(grid.columns)
        ]
        for row in range(grid.rows)
    ]
    local = np.block(parts) + side * side
    (first, its_size), (rest, their_size) = (_pooled(each, windows) for each in (whole, local))
    return {
        "image_token_pooling": np.concatenate([first, rest]).astype(np.int32),
        "image_grids": [(*its_size, *their_size)],
    }


def _pooled(index: Pixels, windows: Sequence[int]) -> tuple[Pixels, Grid]:
    """Return the patches in each window, -1 beyond the image, and the grid of windows."""
    over = [-length % side for length, side in zip(index.shape, windows, strict=True)]
    index = np.pad(index, [(n // 2, n - n // 2) for n in over], constant_values=-1)
    sizes = (length // side for length, side in zip(index.shape, windows, strict=True))
    grid = Grid(*sizes)
    parts = index.reshape(grid.rows, windows[0], grid.columns, windows[1]).swapaxes(1, 2)
    return parts.reshape(grid.num_tiles, -1), grid


def phi4_multimodal(size: Size, s: Any) -> Plan:
    """Keep the aspect ratio in the corner of a grid of tiles; show the whole grid in one first."""
    tile = size_of(s.size)
    if tile.height != tile.width:
        raise ValueError("size must be square")
    grid = Grid(*(math.ceil(length / tile.height) for length in size))
    if grid.num_tiles > s.dynamic_hd:
        grid = grids.nearest_in_shape(size, tile, grids.as_pairs(s.dynamic_hd))
    canvas = grid.of(tile)
    tall, wide = (there / here for there, here in zip(canvas, size, strict=True))
    used = Size(canvas.height, int(size.width * tall))
    if wide < tall:
        used = Size(int(size.height * wide), canvas.width)
    if min(used) < MIN_SIDE:
        raise ValueError(f"a side would have less than {MIN_SIDE} pixels")
    corner: View = (Resize(used), Pad(canvas, fill=255))
    masks, num_tokens = _mask_and_tokens(
        grid, used, canvas, tile.height // s.patch_size, s.patch_size
    )
    numbers = {
        "image_sizes": [list(canvas)],
        "image_attention_mask": masks[None],
        "num_img_tokens": [num_tokens],
    }
    return Plan(((*corner, Sample(tile)), (*corner, Cut(tile))), numbers)


def _mask_and_tokens(
    grid: Grid, used: Size, canvas: Size, num_patches: int, side: int
) -> tuple[Any, int]:
    """Return the mask of patches that show the image, and the number of tokens."""
    mask = np.ones((grid.rows, num_patches, grid.columns, num_patches), np.float32)
    flat = mask.reshape(grid.rows * num_patches, -1)
    bottom, right = ((all_ - own) // side for all_, own in zip(canvas, used, strict=True))
    flat[len(flat) - bottom :] = 0
    flat[:, flat.shape[1] - right :] = 0
    rows = mask[:, ::2, :, ::2].reshape(-1, grid.columns * -(-num_patches // 2))
    num_tokens = 256 + 1 + int(rows.sum()) + int(rows[:, 0].sum()) + 16  # the whole; ends of rows
    tiles = mask.swapaxes(1, 2).reshape(-1, num_patches, num_patches)
    return np.concatenate([np.ones_like(tiles[:1]), tiles]), num_tokens


def unlimited_ocr(size: Size, s: Any) -> Plan:
    """Show the whole on a grey square; a large image also as a grid of tiles."""
    side = max(size_of(s.size))
    square, tile = Size(side, side), Size(s.tile_size, s.tile_size)
    if not s.crop_to_patches and side <= s.maximum_pad_value:
        whole: View = (Resize(square),)
    else:
        scale = side / max(size)
        used = Size(*(round(length * scale) for length in size))
        longest = max(used)
        top, left = (longest - used.height) // 2, (longest - used.width) // 2
        ground = Pad(Size(longest, longest), top, left, s.background_color)
        whole = (Resize(used), ground)
    grid = Grid(1, 1)
    views: tuple[View, ...] = (whole,)
    if s.crop_to_patches and max(size) > s.tile_size:
        grid = grids.nearest_in_shape(size, tile, grids.up_to(s.max_patches, s.min_patches))
        views += ((Resize(grid.of(tile)), Cut(tile)),)
    num_local = grid.num_tiles if len(views) > 1 else 0
    shape = (grid.columns, grid.rows)
    return Plan(views, {"num_local_patches": [num_local], "patches_grid": [shape]})


def step3p7(size: Size, s: Any) -> Plan:
    """Show the whole in one tile; cut a large or long one into squares, all of one size."""
    whole = size_of(s.size)
    first: View = ()
    if min(size) < 32 and max(size) / min(size) > 4:
        size = Size(max(size), max(size))
        first = (Pad(size),)
    if max(size) > s.max_image_size:
        scale = s.max_image_size / max(size)
        size = Size(*(int(length * scale) for length in size))
    views: tuple[View, ...] = ((*first, Resize(size), Resize(Size(whole.height, whole.height))),)
    short, long = sorted(size)
    window = s.patch_size
    if long <= whole.height:
        window = short if long / short > 1.5 else 0
    elif long / short > 4:
        window = min(short, s.patch_size)
    if not window:
        return Plan(views, {"num_local_patches": [0], "patch_newline_masks": [[]]})
    used = Size(*(_snapped(length, window) for length in size))
    grid = Grid(*(max(1, length // window) for length in used))
    tile = Size(min(window, used.height), min(window, used.width))
    views += ((*first, Resize(used), Cut(tile), Resize(Size(s.patch_size, s.patch_size))),)
    ends_row = [
        column == grid.columns - 1 and row < grid.rows - 1
        for row in range(grid.rows)
        for column in range(grid.columns)
    ]
    numbers = {"num_local_patches": [grid.num_tiles], "patch_newline_masks": [ends_row]}
    return Plan(views, numbers)


def _snapped(length: int, window: int) -> int:
    """Round to whole windows: up if more than a fifth of a window is left."""
    if length < window:
        return length
    return window * (length // window + (length % window > 0.2 * window))


def minicpm_ocr(size: Size, s: Any) -> Plan:
    """Show the whole in whole tokens; cut a large one also into slices."""
    if s.small_image_upsize not in ("always", "never"):
        raise ValueError("small_image_upsize must be 'always' or 'never': others look for letters")
    block = s.patch_size * (2 if s.downsample_mode == "4x" else 4)
    resolution = s.scale_resolution
    grid = grids.sliced(size, resolution, s.max_slice_nums) if s.slice_mode else None
    grows = grid is None and s.small_image_upsize == "always"
    used = sizes.in_slice(size, resolution, block, grows=grows)
    views: tuple[View, ...] = ((Resize(used),),)
    shown, num_slices = [used], 0
    if grid is not None:
        high, wide = (max(round(n / k) * k, k) / k for n, k in zip(size, grid, strict=True))
        tile = sizes.in_slice((high, wide), resolution, block, grows=True)
        views += ((Resize(grid.of(tile)), Cut(tile)),)
        num_slices = grid.num_tiles
        shown += [tile] * num_slices
    numbers = {
        "target_sizes": [[n // s.patch_size for n in each] for each in shown],
        "grids": [list(grid or (0, 0))],
        "num_patches_per_image": [1 + num_slices],
    }
    return Plan(views, numbers)
