"""The image processing settings in a checkpoint's folder, completed for older checkpoints.

Reads files; does not build processors.
"""

from collections.abc import Collection, Mapping
from typing import Any

from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint

PROCESSOR, IMAGES = "processor_config.json", "preprocessor_config.json"

# Towers with a class token before the patches.
_TOWERS_WITH_CLASS_TOKEN = frozenset({"clip_vision_model"})


def image_settings(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return a folder's settings of the image processor; empty if it has none."""
    nested = checkpoint.read_json(PROCESSOR).get("image_processor")
    settings = checkpoint.read_json(IMAGES) or nested
    return settings if isinstance(settings, Mapping) else {}


def refuse_without_images(checkpoint: Checkpoint) -> None:
    """Refuse a folder without settings of an image processor, or with code instead.

    Raises:
        CheckpointError: the folder has no such settings, or code of its own.
    """
    settings = image_settings(checkpoint)
    if not settings:
        raise CheckpointError(
            f"model {checkpoint.name!r} has no {IMAGES!r}, which says how pictures are shown to it",
            hint="fetch it from where the model is from",
        )
    if "AutoImageProcessor" in (settings.get("auto_map") or ()) and not _is_known(settings):
        raise CheckpointError(
            f"the image processor of model {checkpoint.name!r} is defined by code in the "
            "checkpoint, which is never run",
            hint="there may be a conversion of the model to what transformers defines",
        )


def processor_settings(checkpoint: Checkpoint, accepted: Collection[str]) -> dict[str, Any]:
    """Return a folder's settings of the processor, completed for older models like LLaVA.

    Their first processors had neither the patch size nor the class token: the models expanded
    images themselves.

    Args:
        checkpoint: the model's files.
        accepted: the arguments of the processor's class.
    """
    settings = dict(checkpoint.read_json(PROCESSOR))
    if "num_query_tokens" in accepted and settings.get("num_query_tokens") is None:
        settings["num_query_tokens"] = checkpoint.config.get("num_query_tokens")
    if "num_additional_image_tokens" not in accepted:
        return settings
    tower = checkpoint.config.get("vision_config") or {}
    has_class_token = tower.get("model_type", "clip_vision_model") in _TOWERS_WITH_CLASS_TOKEN
    known = {
        "patch_size": tower.get("patch_size"),
        "vision_feature_select_strategy": checkpoint.config.get(
            "vision_feature_select_strategy", "default"
        ),
        "num_additional_image_tokens": int(has_class_token),
    }
    missing = {key for key in known if settings.get(key) is None}
    return settings | {key: known[key] for key in missing}


def _is_known(settings: Mapping[str, Any]) -> bool:
    """Tell whether transformers has the image processor that the settings name."""
    import transformers

    return hasattr(transformers, str(settings.get("image_processor_type", "")).removesuffix("Fast"))
