"""Maps the class names of transformers to the functions here that do the same.

The processor's class selects the text of an image, the image processor's class its arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vlmkit_hf.images.pillow import packing, pixels
from vlmkit_hf.images.pillow.families import FAMILIES, Family
from vlmkit_hf.images.pillow.packing import Arrays
from vlmkit_hf.images.pillow.pixels import Pixels
from vlmkit_hf.images.pillow.views import Plan
from vlmkit_hf.images.size import Size
from vlmkit_hf.images.standalone import image_tokens, plans
from vlmkit_hf.images.standalone.settings import TextSettings


def _masked_tiles(views: Sequence[Pixels], s: Any) -> Arrays:
    """Pack the tiles of an image together, with a mask of ones."""
    made = packing.tiles_of_picture(views, s)
    if s.do_pad:
        _, num_tiles, _, height, width = made["pixel_values"].shape
        made["pixel_attention_mask"] = np.ones((1, num_tiles, height, width), np.int64)
    return made


def _family(
    plan: Callable[[Size, Any], Plan], pack: Callable[[Sequence[Pixels], Any], Arrays]
) -> Family:
    return Family(plan, pack, {}, resize=pixels.pillow_resized, scaling=pixels.stepwise)


IMAGES: Mapping[str, Family] = {
    "CLIPImageProcessor": _family(plans.whole, packing.tiles),
    "Cohere2VisionImageProcessor": FAMILIES["Cohere2VisionImageProcessor"],
    "Gemma3ImageProcessor": _family(plans.whole, packing.tiles),
    "Glm4vImageProcessor": _family(plans.in_volume, packing.merged_patches_in_time),
    "GotOcr2ImageProcessor": _family(plans.stretched_tiles, packing.tiles),
    "Idefics3ImageProcessor": _family(plans.split, _masked_tiles),
    "LlavaImageProcessor": _family(plans.on_square, packing.tiles),
    "LlavaNextImageProcessor": _family(plans.padded_tiles, packing.tiles_of_picture),
    "LlavaOnevisionImageProcessor": _family(plans.padded_tiles, packing.tiles_of_picture),
    "PixtralImageProcessor": _family(plans.in_edge, packing.tiles),
    "Qwen2VLImageProcessor": _family(plans.in_area, packing.merged_patches_in_time),
    "SiglipImageProcessor": _family(plans.whole, packing.tiles),
    "SmolVLMImageProcessor": _family(plans.split, _masked_tiles),
}
WRITERS: Mapping[str, image_tokens.Writer] = {
    "Cohere2VisionProcessor": image_tokens.tiles_in_lines,
    "Gemma3Processor": image_tokens.fixed,
    "Glm4vProcessor": image_tokens.merged_patches,
    "Granite4VisionProcessor": image_tokens.canvas_of_patches,
    "Idefics3Processor": image_tokens.rows_of_tiles,
    "InternVLProcessor": image_tokens.tiles,
    "LlavaNextProcessor": image_tokens.canvas_of_patches,
    "LlavaOnevisionProcessor": image_tokens.canvas_within,
    "LlavaProcessor": image_tokens.patches,
    "PaliGemmaProcessor": image_tokens.fixed,
    "PixtralProcessor": image_tokens.rows_of_patches,
    "Qwen2VLProcessor": image_tokens.merged_patches,
    "Qwen2_5_VLProcessor": image_tokens.merged_patches,
    "Qwen3VLProcessor": image_tokens.merged_patches,
    "SmolVLMProcessor": image_tokens.rows_of_tiles,
}
LAYOUTS: Mapping[str, Callable[[str, TextSettings], str]] = {
    "PaliGemmaProcessor": image_tokens.bos_behind_images,
}
"""How some processors change a whole text."""
