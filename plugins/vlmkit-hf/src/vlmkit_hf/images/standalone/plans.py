"""The plans of families whose image processors transformers has on Pillow.

They follow the same rules with the same numbers, so that a model runs without transformers. A
checkpoint's plan is compared with transformers before it is used.
"""

import math
from typing import Any

from vlmkit_hf.images.pillow import grids
from vlmkit_hf.images.pillow.sizes import (
    best_canvas,
    patches_in_area,
    resized_to_split,
    size_of,
    within_canvas,
    within_edge,
)
from vlmkit_hf.images.pillow.views import Crop, Cut, Pad, Plan, Resize, View
from vlmkit_hf.images.size import Size


def whole(size: Size, s: Any) -> Plan:
    """Show the whole image, resized and cropped to the centre if the settings say so."""
    return Plan((_shown(size, s),), {"num_crops": [0]})


def on_square(size: Size, s: Any) -> Plan:
    """Do the same; pad to a square with the mean colour first if the settings say so."""
    if not s.do_pad or size.height == size.width:
        return whole(size, s)
    side = max(size)
    top, left = ((side - length) // 2 for length in size)
    fill = [int(level * 255) for level in s.image_mean]
    square = Size(side, side)
    return Plan(((Pad(square, top, left, fill), *_shown(square, s)),))


def in_area(size: Size, s: Any) -> Plan:
    """Stretch to whole tokens, with an area between two limits."""
    used = size
    if s.do_resize:
        least, most = s.size["shortest_edge"], s.size["longest_edge"]
        used = patches_in_area(size, s.patch_size * s.merge_size, least, most)
    grid = (1, used.height // s.patch_size, used.width // s.patch_size)
    return Plan(((Resize(used),),), {"image_grid_thw": [grid]})


def in_volume(size: Size, s: Any) -> Plan:
    """Do the same for an image repeated as frames, which all count; at least one token."""
    side, num_frames = s.patch_size * s.merge_size, s.temporal_patch_size
    used = size
    if s.do_resize:
        least, most = s.size["shortest_edge"], s.size["longest_edge"]
        if min(size) < side:
            scale = max(side / size.height, side / size.width)
            used = Size(int(size.height * scale), int(size.width * scale))
        used = patches_in_area(used, side, least / num_frames, most / num_frames)
    grid = (1, used.height // s.patch_size, used.width // s.patch_size)
    return Plan(((Resize(used),),), {"image_grid_thw": [grid]})


def in_edge(size: Size, s: Any) -> Plan:
    """Keep the aspect ratio within a longer side, in whole tokens."""
    side = s.patch_size if isinstance(s.patch_size, int) else s.patch_size["height"]
    used = within_edge(size, s.size["longest_edge"], side) if s.do_resize else size
    return Plan(((Resize(used),),), {"image_sizes": [used]})


def split(size: Size, s: Any) -> Plan:
    """Resize the longer side and cut into tiles; add the whole in one if there are several."""
    used = resized_to_split(size, s.size["longest_edge"]) if s.do_resize else size
    side = s.max_image_size["longest_edge"]
    tile = Size(side, side)
    if not s.do_image_splitting:
        return Plan(((Resize(used), Resize(tile)),), {"rows": [[0]], "cols": [[0]]})
    canvas = in_tiles(used, side)
    rows, columns = canvas.height // side, canvas.width // side
    stretched: View = (Resize(used), Resize(canvas))
    if rows * columns == 1:
        return Plan((stretched,), {"rows": [[0]], "cols": [[0]]})
    views = ((*stretched, Cut(tile)), (*stretched, Resize(tile)))
    return Plan(views, {"rows": [[rows]], "cols": [[columns]]})


def in_tiles(size: Size, side: int) -> Size:
    """Return the size in whole tiles to which an image is stretched."""
    shape = size.width / size.height
    if size.width >= size.height:
        width = math.ceil(size.width / side) * side
        return Size(math.ceil(int(width / shape) / side) * side, width)
    height = math.ceil(size.height / side) * side
    return Size(height, math.ceil(int(height * shape) / side) * side)


def stretched_tiles(size: Size, s: Any) -> Plan:
    """Stretch to a grid of tiles; add the whole in one if there are several."""
    tile = size_of(s.size)
    if not (s.crop_to_patches and s.max_patches > 1):
        return Plan(((Resize(tile),) if s.do_resize else (),), {"num_patches": [1]})
    grid = grids.nearest_in_shape(size, tile, grids.up_to(s.max_patches, s.min_patches))
    views: tuple[View, ...] = ((Resize(grid.of(tile)), Cut(tile)),)
    if grid.num_tiles > 1:
        views += ((Resize(tile),),)
    return Plan(views, {"num_patches": [grid.num_tiles + len(views) - 1]})


def padded_tiles(size: Size, s: Any) -> Plan:
    """Show the whole in one tile, then with its aspect ratio on a canvas that is cut into tiles."""
    side = s.size.get("height") or s.size["shortest_edge"]
    first = Size(side, s.size.get("width") or side)
    edge = (s.crop_size or {}).get("height") or side
    tile = Size(edge, edge)
    canvas = best_canvas(size, s.image_grid_pinpoints)
    used = within_canvas(size, canvas)
    top, left = ((a - b) // 2 for a, b in zip(canvas, used, strict=True))
    cut: View = (Resize(used), Pad(canvas, top, left), Cut(tile))
    views = ((Resize(first), *_shown(first, s)), (*cut, *_shown(tile, s)))
    return Plan(views, {"image_sizes": [size], "batch_num_images": [1]})


def _shown(size: Size, s: Any) -> View:
    """Resize to a size or a shorter side, and crop to the centre if the settings say so."""
    view: View = ()
    if s.do_resize:
        size = _resized(size, s.size)
        view = (Resize(size),)
    return (*view, *_centre_crop(size, size_of(s.crop_size))) if s.do_center_crop else view


def _resized(size: Size, setting: Any) -> Size:
    if "shortest_edge" not in setting:
        return size_of(setting)
    edge = setting["shortest_edge"]
    long = int(edge * max(size) / min(size))
    return Size(long, edge) if size.width <= size.height else Size(edge, long)


def _centre_crop(size: Size, crop: Size) -> View:
    """Crop to the centre; pad a smaller image with black."""
    padded = Size(max(size.height, crop.height), max(size.width, crop.width))
    above, before = (math.ceil((a - b) / 2) for a, b in zip(padded, size, strict=True))
    top, left = ((a - b) // 2 for a, b in zip(size, crop, strict=True))
    return Pad(padded, above, before), Crop(crop, top + above, left + before)
