"""The plans of families that show an image as patches of one size.

They read a processor's settings by the names in its file. Several families share the rules in
:mod:`.grids` and :mod:`.sizes`.
"""

import math
from typing import Any

from vlmkit_hf.images.pillow import sizes
from vlmkit_hf.images.pillow.grids import Grid
from vlmkit_hf.images.pillow.sizes import size_of
from vlmkit_hf.images.pillow.views import Cut, Pad, Plan, Resize, View
from vlmkit_hf.images.size import Size


def gemma4_unified(size: Size, s: Any) -> Plan:
    """Keep the aspect ratio, in whole tokens."""
    from transformers.models.gemma4 import image_processing_pil_gemma4 as gemma4

    merge = s.pooling_kernel_size
    used = Size(
        *gemma4.get_aspect_ratio_preserving_size(
            *size, s.patch_size, s.max_soft_tokens * merge**2, merge
        )
        if s.do_resize
        else size
    )
    side = s.patch_size * merge
    num_tokens = (used.height // side) * (used.width // side)
    return Plan(((Resize(used),),), {"num_soft_tokens_per_image": [num_tokens]})


def kimi_k25(size: Size, s: Any) -> Plan:
    """Keep the aspect ratio and pad to whole tokens."""
    side, used = s.patch_size * s.merge_size, size
    if s.do_resize:
        used = sizes.within_patches(size, s.patch_size, s.max_patches, s.size["max_height"])
        size = Size(*(math.ceil(length / side) * side for length in used))
    return Plan(((Resize(used), Pad(size)),), _grid_of(size, s.patch_size))


def muse(size: Size, s: Any) -> Plan:
    """Stretch to whole tokens."""
    if s.do_resize:
        size = sizes.nearest_in_blocks(size, s.patch_size * s.merge_size, s.max_image_tokens)
    return Plan(((Resize(size),),), _grid_of(size, s.patch_size))


def minimax_m3_vl(size: Size, s: Any) -> Plan:
    """Stretch to whole tokens, with an area between two limits."""
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as qwen2_vl

    if s.do_resize:
        least, most = (
            s.min_pixels or s.size["shortest_edge"],
            s.max_pixels or s.size["longest_edge"],
        )
        block = s.patch_size * s.merge_size
        size = Size(*qwen2_vl.smart_resize(*size, factor=block, min_pixels=least, max_pixels=most))
    return Plan(((Resize(size),),), _grid_of(size, s.patch_size))


def nemotron_h_omni(size: Size, s: Any) -> Plan:
    """Stretch to whole tokens, as many as fit into a prompt."""
    merge = round(1 / s.downsample_ratio)
    most = max((s.max_model_len - 4) * merge**2, s.min_num_patches)
    most = max(min(most, s.max_num_patches or most), s.min_num_patches)
    grid = sizes.in_merged_patches(size, s.patch_size, merge, s.min_num_patches, most)
    used = Size(*(length * s.patch_size for length in grid))
    return Plan(((Resize(used),),), {"image_grid_hw": [grid]})


def inkling(size: Size, s: Any) -> Plan:
    """Cut into patches, the last of each row and column padded darker than black."""
    side, used = s.size["height"], size
    if s.rescale_image_frac is not None:
        long = max(size)
        wanted = long * s.rescale_image_frac
        if s.rescale_image_max_upscaled_long_edge is not None:
            wanted = min(wanted, max(s.rescale_image_max_upscaled_long_edge, long))
        used = Size(*(math.floor(length * (wanted / long) + 0.5) for length in size))
    grid = Grid(math.ceil(used.height / side), used.width // side + 1)
    tile = Size(side, side)
    view: View = (Resize(used), Pad(grid.of(tile), fill=-1), Cut(tile))
    return Plan((view,), {"num_patches": [grid.num_tiles]})


def inkling2(size: Size, s: Any) -> Plan:
    """Cut into patches, padded darker than black."""
    tile = size_of(s.size)
    grid = Grid(math.ceil(size.height / tile.height), math.ceil(size.width / tile.width))
    view: View = (Pad(grid.of(tile), fill=-1), Cut(tile))
    return Plan((view,), {"image_grid_thw": [(1, *grid)]})


def _grid_of(size: Size, side: int) -> dict[str, Any]:
    return {"image_grid_thw": [(1, size.height // side, size.width // side)]}
