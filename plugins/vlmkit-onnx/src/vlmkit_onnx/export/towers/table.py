"""The tower of each family."""

from collections.abc import Callable, Mapping
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit_onnx.export.towers import (
    fixed_size,
    gemma,
    granite,
    layers,
    paddle,
    pixtral,
    qwen,
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
    has_pixtral = base.config.vision_config.model_type == "pixtral"
    return pixtral.llava(base) if has_pixtral else layers.llava(base)


_TOWERS: Mapping[str, Callable[[Any], Tower]] = {
    "aya_vision": fixed_size.tiles,
    "cohere2_vision": fixed_size.tiles,
    "exaone4_5": qwen.qwen,
    "gemma3": fixed_size.picture,
    "gemma4": gemma.gemma4,
    "gemma4_unified": gemma.gemma4_unified,
    "glm4v": qwen.glm4v,
    "glm4v_moe": qwen.glm4v,
    "glm46v": qwen.glm4v,
    "glm_ocr": qwen.glm_ocr,
    "granite4_vision": granite.granite4,
    "idefics3": fixed_size.square,
    "internvl": fixed_size.tiles,
    "llava": _llava,
    "llava_next": layers.llava_next,
    "llava_next_video": layers.llava_next,
    "llava_onevision": layers.llava_onevision,
    "mistral3": pixtral.mistral3,
    "paddleocr_vl": paddle.paddleocr,
    "paligemma": fixed_size.picture,
    "qwen2_5_vl": qwen.qwen,
    "qwen2_vl": qwen.qwen,
    "qwen3_vl": qwen.qwen,
    "qwen3_vl_moe": qwen.qwen,
    "smolvlm": fixed_size.square,
    "vipllava": layers.llava,
}
