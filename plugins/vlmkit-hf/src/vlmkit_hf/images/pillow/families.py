"""The families, by the class name of their image processor.

The table holds what a checkpoint's ``preprocessor_config.json`` does not. That file has values for
settings, which take precedence over the defaults of the table. It does not have:

- the rules that turn a size into views and arrays. transformers has them as code, and so have
  :mod:`.tiling`, :mod:`.patching` and :mod:`.packing`;
- the names of accepted settings: a key without a row here is not a setting;
- defaults. A file need not have all settings, and the families' own code accepts files without any.
  Some published files have other names or values that transformers ignores (``other_names``,
  ``mistaken``).

The cost: the table has about 240 lines for 16 image processors, of which 149 are settings. This
package has about 1,630 lines. The alternative is transformers 5.23's own classes: 16 modules with
5,005 lines that import torch, 14 of them also torchvision. vlmkit-hf must run without both.
``nox -s torchvision`` compares the settings and arrays of every row with those classes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from vlmkit_hf.images.pillow import packing, patching, pixels, tiling
from vlmkit_hf.images.pillow.packing import Arrays
from vlmkit_hf.images.pillow.pixels import Pixels, Scaling
from vlmkit_hf.images.pillow.views import Plan, show
from vlmkit_hf.images.size import Size

NEAREST, LANCZOS, BILINEAR, BICUBIC = range(4)  # as Pillow numbers them
HALF = (0.5, 0.5, 0.5)
CLIP = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
STANDARD = {"image_mean": HALF, "image_std": HALF}


@dataclass(frozen=True, slots=True)
class Family:
    """How one family processes images.

    Attributes:
        plan: returns the plan for a size, under a processor's settings.
        pack: packs the views of an image into arrays.
        settings: the accepted settings by name, with defaults.
        input_names: the names of the arrays that the model takes.
        resize: resizes an image.
        scaling: scales levels to the model's inputs.
        lists: the names of arrays that stay lists, since their rows may differ in length.
        axis: the axis along which the pixels of several images are joined.
        fills: values that pad an image's tiles to the number of another's, by array.
        counts_patches: the array with patch numbers, which count over all images.
        other_names: other names of settings in published checkpoints.
        mistaken: values in published checkpoints that transformers ignores.
    """

    plan: Callable[[Size, Any], Plan]
    pack: Callable[[Sequence[Pixels], Any], Arrays]
    settings: Mapping[str, Any]
    input_names: tuple[str, ...] = ("pixel_values",)
    resize: Callable[[Pixels, Size, int], Pixels] = pixels.bytewise
    scaling: Scaling = pixels.fused
    lists: tuple[str, ...] = ()
    axis: int = 0
    fills: Mapping[str, float] = field(default_factory=dict)
    counts_patches: str = ""
    other_names: Mapping[str, str] = field(default_factory=dict)
    mistaken: Mapping[str, Any] = field(default_factory=dict)


def arrays_of(family: Family, picture: Pixels, settings: Any) -> Arrays:
    """Return the arrays of one image ``[height, width, 3]`` under a processor's settings."""
    plan = family.plan(Size(*picture.shape[:2]), settings)
    resize = partial(_resized, family, settings)
    views = [show(np.ascontiguousarray(picture), view, resize) for view in plan.views]
    shown = [pixels.scaled(view, settings, family.scaling) for view in views]
    return {**family.pack(shown, settings), **plan.numbers}


def _resized(family: Family, settings: Any, picture: Pixels, size: Size) -> Pixels:
    return family.resize(picture, size, settings.resample)


_GRID = ("pixel_values", "image_grid_thw")
FAMILIES: Mapping[str, Family] = {
    "Llama4ImageProcessor": Family(
        tiling.llama4,
        packing.tiles,
        {
            **STANDARD,
            "resample": BILINEAR,
            "size": {"height": 336, "width": 336},
            "max_patches": 16,
            "resize_to_max_canvas": False,
        },
        scaling=pixels.bfloat16,
    ),
    "Lfm2VlImageProcessor": Family(
        tiling.lfm2_vl,
        packing.padded_patches,
        {
            **STANDARD,
            "resample": BILINEAR,
            "size": {"height": 512, "width": 512},
            "downsample_factor": 2,
            "do_image_splitting": True,
            "min_tiles": 2,
            "max_tiles": 10,
            "use_thumbnail": True,
            "min_image_tokens": 64,
            "max_image_tokens": 256,
            "encoder_patch_size": 16,
            "tile_size": 512,
            "max_pixels_tolerance": 2.0,
            "do_pad": True,
            "return_row_col_info": False,
        },
        ("pixel_values", "pixel_attention_mask", "spatial_shapes"),
    ),
    "Cohere2VisionImageProcessor": Family(
        tiling.cohere2_vision,
        packing.tiles,
        {
            **CLIP,
            "resample": BICUBIC,
            "size": {"height": 512, "width": 512},
            "crop_to_patches": True,
            "min_patches": 1,
            "max_patches": 12,
            "patch_size": 16,
        },
    ),
    "Gemma4UnifiedImageProcessor": Family(
        patching.gemma4_unified,
        packing.positioned_patches,
        {
            "image_mean": (0.0, 0.0, 0.0),
            "image_std": (1.0, 1.0, 1.0),
            "do_normalize": False,
            "resample": BICUBIC,
            "size": None,
            "patch_size": 16,
            "max_soft_tokens": 280,
            "pooling_kernel_size": 3,
        },
        ("pixel_values", "image_position_ids", "num_soft_tokens_per_image"),
    ),
    "Molmo2ImageProcessor": Family(
        tiling.molmo2,
        packing.patches_of_crops,
        {
            **STANDARD,
            "resample": BILINEAR,
            "size": {"height": 378, "width": 378},
            "max_crops": 8,
            "overlap_margins": [4, 4],
            "patch_size": 14,
            "pooling_size": [2, 2],
        },
        ("pixel_values", "image_token_pooling", "image_grids", "image_num_crops"),
        resize=pixels.unfiltered,
        counts_patches="image_token_pooling",
    ),
    "PerceptionLMImageProcessor": Family(
        tiling.perception_lm,
        packing.tiles_of_picture,
        {
            **STANDARD,
            "resample": BICUBIC,
            "size": {"height": 448, "width": 448},
            "vision_input_type": "thumb+tile",
            "tile_size": 448,
            "max_num_tiles": 36,
        },
    ),
    "Kimi_K25ImageProcessor": Family(
        patching.kimi_k25,
        packing.square_patches,
        {
            **STANDARD,
            "resample": BICUBIC,
            "size": {"max_height": 512, "max_width": 512},
            "max_patches": 16384,
            "patch_size": 14,
            "merge_size": 2,
        },
        _GRID,
    ),
    "MuseGlimmerImageProcessor": Family(
        patching.muse,
        packing.patches_in_time,
        {
            **STANDARD,
            "resample": LANCZOS,
            "size": None,
            "default_to_square": False,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "max_image_tokens": 4096,
        },
        _GRID,
    ),
    "MiniMaxM3VLImageProcessor": Family(
        patching.minimax_m3_vl,
        packing.merged_patches_in_time,
        {
            **CLIP,
            "resample": BICUBIC,
            "size": {"shortest_edge": 4 * 28 * 28, "longest_edge": 451584},
            "default_to_square": False,
            "min_pixels": None,
            "max_pixels": None,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
        },
        _GRID,
        mistaken={"size": [672, 672]},
    ),
    "NemotronH_Omni_Reasoning_V3ImageProcessor": Family(
        patching.nemotron_h_omni,
        packing.flat_patches,
        {
            **CLIP,
            "resample": BICUBIC,
            "do_resize": None,
            "patch_size": 16,
            "downsample_ratio": 0.5,
            "min_num_patches": 1024,
            "max_num_patches": 13312,
            "max_model_len": 16384,
        },
        ("pixel_values", "image_grid_hw"),
        resize=pixels.unclipped,
        other_names={"norm_mean": "image_mean", "norm_std": "image_std"},
    ),
    "InklingImageProcessor": Family(
        patching.inkling,
        packing.tiles_in_time,
        {
            **CLIP,
            "resample": LANCZOS,
            "do_resize": None,
            "default_to_square": False,
            "size": {"height": 40, "width": 40},
            "rescale_image_frac": None,
            "rescale_image_max_upscaled_long_edge": 2048,
        },
    ),
    "Inkling2ImageProcessor": Family(
        patching.inkling2,
        packing.tiles_channels_last,
        {**STANDARD, "do_resize": None, "size": {"height": 40, "width": 40}},
        _GRID,
    ),
    "Phi4MultimodalImageProcessor": Family(
        tiling.phi4_multimodal,
        packing.whole_then_tiles,
        {
            **STANDARD,
            "do_resize": None,
            "resample": BICUBIC,
            "size": {"height": 448, "width": 448},
            "patch_size": 14,
            "dynamic_hd": 36,
        },
        ("image_pixel_values", "image_sizes", "image_attention_mask"),
        resize=pixels.bilinear,
        fills={"image_pixel_values": 0, "image_attention_mask": 1},
    ),
    "UnlimitedOcrImageProcessor": Family(
        tiling.unlimited_ocr,
        packing.whole_and_local,
        {
            **STANDARD,
            "resample": BICUBIC,
            "size": {"height": 1024, "width": 1024},
            "crop_to_patches": True,
            "min_patches": 2,
            "max_patches": 32,
            "tile_size": 640,
            "background_color": [127, 127, 127],
            "maximum_pad_value": 640,
        },
        ("pixel_values", "num_local_patches", "patches_grid"),
        lists=("num_local_patches", "patches_grid"),
    ),
    "Step3p7ImageProcessor": Family(
        tiling.step3p7,
        packing.whole_and_local,
        {
            **CLIP,
            "resample": BILINEAR,
            "do_resize": None,
            "size": {"height": 728, "width": 728},
            "patch_size": 504,
            "max_image_size": 3024,
            "vision_patch_size": 14,
            "downsampler_stride": 4,
        },
        ("pixel_values", "pixel_values_local", "num_local_patches"),
        lists=("patch_newline_masks",),
    ),
    "MiniCPMOcrImageProcessor": Family(
        tiling.minicpm_ocr,
        packing.strip_of_patches,
        {
            **STANDARD,
            "resample": BICUBIC,
            "max_slice_nums": 9,
            "scale_resolution": 448,
            "patch_size": 14,
            "slice_mode": True,
            "downsample_mode": "4x",
            "use_image_id": True,
            "small_image_upsize": "always",
        },
        ("pixel_values", "target_sizes"),
        axis=-1,
        lists=("grids", "num_patches_per_image"),
    ),
}
