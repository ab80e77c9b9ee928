"""Which of our forms does what transformers' classes do, by the names of those.

What is written for a picture goes by the processor, what is shown of it by the image processor.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vlmkit_hf.light import plans, words
from vlmkit_hf.light.settings import WordSettings
from vlmkit_hf.pillow import forms, pixels
from vlmkit_hf.pillow.forms import Arrays
from vlmkit_hf.pillow.pixels import Pixels
from vlmkit_hf.pillow.table import FAMILIES, Family
from vlmkit_hf.pillow.view import Plan
from vlmkit_hf.sizing.sizing import Size


def _masked_tiles(views: Sequence[Pixels], s: Any) -> Arrays:
    """The tiles of a picture together, and which of their pixels are its own: all."""
    made = forms.tiles_of_picture(views, s)
    if s.do_pad:
        _, num_tiles, _, height, width = made["pixel_values"].shape
        made["pixel_attention_mask"] = np.ones((1, num_tiles, height, width), np.int64)
    return made


def _family(
    plan: Callable[[Size, Any], Plan], form: Callable[[Sequence[Pixels], Any], Arrays]
) -> Family:
    return Family(plan, form, {}, resize=pixels.at_once, scaling=pixels.stepwise)


IMAGES: Mapping[str, Family] = {
    "CLIPImageProcessor": _family(plans.whole, forms.tiles),
    "Cohere2VisionImageProcessor": FAMILIES["Cohere2VisionImageProcessor"],
    "Gemma3ImageProcessor": _family(plans.whole, forms.tiles),
    "Glm4vImageProcessor": _family(plans.in_volume, forms.merged_patches_in_time),
    "GotOcr2ImageProcessor": _family(plans.stretched_tiles, forms.tiles),
    "Idefics3ImageProcessor": _family(plans.split, _masked_tiles),
    "LlavaImageProcessor": _family(plans.on_square, forms.tiles),
    "LlavaNextImageProcessor": _family(plans.padded_tiles, forms.tiles_of_picture),
    "LlavaOnevisionImageProcessor": _family(plans.padded_tiles, forms.tiles_of_picture),
    "PixtralImageProcessor": _family(plans.in_edge, forms.tiles),
    "Qwen2VLImageProcessor": _family(plans.in_area, forms.merged_patches_in_time),
    "SiglipImageProcessor": _family(plans.whole, forms.tiles),
    "SmolVLMImageProcessor": _family(plans.split, _masked_tiles),
}
WORDS: Mapping[str, words.Writer] = {
    "Cohere2VisionProcessor": words.tiles_in_lines,
    "Gemma3Processor": words.fixed,
    "Glm4vProcessor": words.merged_patches,
    "Granite4VisionProcessor": words.canvas_of_patches,
    "Idefics3Processor": words.rows_of_tiles,
    "InternVLProcessor": words.tiles,
    "LlavaNextProcessor": words.canvas_of_patches,
    "LlavaOnevisionProcessor": words.canvas_within,
    "LlavaProcessor": words.patches,
    "PaliGemmaProcessor": words.fixed,
    "PixtralProcessor": words.rows_of_patches,
    "Qwen2VLProcessor": words.merged_patches,
    "Qwen2_5_VLProcessor": words.merged_patches,
    "Qwen3VLProcessor": words.merged_patches,
    "SmolVLMProcessor": words.rows_of_tiles,
}
LAYOUTS: Mapping[str, Callable[[str, WordSettings], str]] = {
    "PaliGemmaProcessor": words.bos_behind_images,
}
"""What some processors do to a text as a whole."""
