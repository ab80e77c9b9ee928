"""Which tower belongs to which family."""

from collections.abc import Callable, Mapping
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit_onnx.export.towers import (
    fixed_size,
    gemma,
    glm,
    granite,
    layers,
    paddle,
    pixtral,
    qwen,
    whole,
)
from vlmkit_onnx.export.towers.tower import Tower


def tower_of(base: Any) -> Tower:
    """Return the tower of a model.

    Args:
        base: the model without its head.

    Raises:
        CheckpointError: the family is not known.
    """
    name = base.config.model_type
    if name not in _TOWERS:
        raise CheckpointError(
            f"the vision tower of model type {name!r} cannot be exported",
            hint=f"those of {', '.join(_TOWERS)} can",
        )
    return _TOWERS[name](base)


def _llava(base: Any) -> Tower:
    sees_patches = base.config.vision_config.model_type == "pixtral"
    return pixtral.llava(base) if sees_patches else layers.llava(base)


_TOWERS: Mapping[str, Callable[[Any], Tower]] = {
    "aya_vision": whole.tiles,
    "cohere2_vision": whole.tiles,
    "exaone4_5": qwen.qwen,
    "gemma3": whole.picture,
    "gemma4": gemma.gemma4,
    "gemma4_unified": gemma.gemma4_unified,
    "glm4v": glm.glm4v,
    "glm4v_moe": glm.glm4v,
    "glm46v": glm.glm4v,
    "glm_ocr": glm.glm_ocr,
    "granite4_vision": granite.granite4,
    "idefics3": fixed_size.square,
    "internvl": whole.tiles,
    "llava": _llava,
    "llava_next": layers.llava_next,
    "llava_next_video": layers.llava_next,
    "llava_onevision": layers.llava_onevision,
    "mistral3": pixtral.mistral3,
    "paddleocr_vl": paddle.paddleocr,
    "paligemma": whole.picture,
    "qwen2_5_vl": qwen.qwen,
    "qwen2_vl": qwen.qwen,
    "qwen3_vl": qwen.qwen,
    "qwen3_vl_moe": qwen.qwen,
    "smolvlm": fixed_size.square,
    "vipllava": layers.llava,
}
