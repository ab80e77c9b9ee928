"""The files that the processor of a vision family needs: its class, settings and tokens.

All of them come from transformers. The code of the processor is searched for tokens and their
names. Its image processor keeps its default settings.
"""

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.models.auto import image_processing_auto, processing_auto

from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_hf.images.processors import loading as processors

# Processors that published checkpoints name and transformers does not map.
PROCESSORS = {
    "glm_ocr": ("Glm46VProcessor", "Glm46VImageProcessor"),
    "glmga": ("Glm46VProcessor", "Glm46VImageProcessor"),
    "glm4v_moe": ("Glm4vProcessor", "Glm4vImageProcessor"),
    "qwen3_vl_moe": ("Qwen3VLProcessor", "Qwen2VLImageProcessor"),
    "kosmos-2": ("Kosmos2Processor", "CLIPImageProcessor"),
    "kosmos-2.5": ("Kosmos2_5Processor", "Kosmos2_5ImageProcessor"),
    "cosmos3_omni": ("Qwen3VLProcessor", "Qwen2VLImageProcessor"),
}
# Tokens that image features replace, if they differ from the placeholder of an image.
FEATURE_TOKENS = {"aya_vision": {"image_token_index": "<|IMG_PATCH|>"}}
# Further processor settings, as in published checkpoints.
PROCESSOR_SETTINGS = {
    "llava_onevision": {"num_image_tokens": 729, "vision_feature_select_strategy": "full"}
}
# Names of the tokens around an image.
AROUND = ("vision_{}_token", "image_{}_token")

_WRITTEN = re.compile(r"""["'](<[^"'<>\s{}]{1,40}>|\[[A-Z_]{2,20}\]|\]<\][a-z ]{2,20}\[>\[)["']""")
_NAMED = re.compile(r"tokenizer[,.]\s*\"?(\w+_token)\b")
_IDS = re.compile(r"(\w+?)_(?:token_)?(?:id|index)")


def tokens(model_type: str) -> tuple[list[str], dict[str, str]]:
    """Return the special tokens of a family's processor, and those that it reads by name."""
    kind = _class(model_type)
    if kind is None:
        return [], {}
    code = inspect.getsource(inspect.getmodule(kind))
    written = list(dict.fromkeys(_WRITTEN.findall(code)))
    names = set(_NAMED.findall(code)) - {"bos_token", "eos_token", "pad_token", "unk_token"}
    named = {name: f"<|{name}|>" for name in sorted(names)}
    return [*written, *named.values()], named


def write(model_type: str, folder: Path, more: Mapping[str, Any]) -> None:
    """Write the settings of a family's image processor."""
    made = {
        "processor_class": _class_name(model_type),
        "image_processor_type": _image_processor(model_type),
    }
    known = {key: value for key, value in made.items() if value}
    (folder / "preprocessor_config.json").write_text(json.dumps({**known, **more}))
    if told := PROCESSOR_SETTINGS.get(model_type):
        (folder / "processor_config.json").write_text(json.dumps(told))


def sizes_of(processor: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that resize images to the input size of the tower."""
    tower = config.get("vision_config") or {}
    images, side, made = processor.image_processor, tower.get("image_size"), {}
    if isinstance(side, list) and len(set(side)) == 1:
        side = side[0]
    for name in ("size", "crop_size"):
        stated = getattr(images, name, None)
        keys = set(dict(stated)) if stated else set()
        if isinstance(side, int) and keys and keys <= {"height", "width", "shortest_edge"}:
            made[name] = dict.fromkeys(keys, side)
    for name, own in (("patch_size", "patch_size"), ("merge_size", "spatial_merge_size")):
        if isinstance(getattr(images, name, None), int) and isinstance(tower.get(own), int):
            made[name] = tower[own]
    return made


def load(model_type: str, folder: Path, tokenizer: Any) -> Any:
    """Return the family's processor; None if its defaults are not enough to build it."""
    try:
        return processors.load_processor(Checkpoint(model_type, folder), tokenizer)
    except Exception:  # noqa: BLE001 - a processor may raise anything
        return None


def placeholder(processor: Any) -> str:
    """Return the text that represents an image."""
    shown: str = getattr(processor, "image_token", "<image>")
    shown = getattr(processor, "image_placeholder_token", shown)
    for name in AROUND:
        start, end = (getattr(processor, name.format(side), None) for side in ("start", "end"))
        if isinstance(start, str) and isinstance(end, str):
            return f"{start}{shown}{end}"
    return shown


def ids(config: dict[str, Any], processor: Any) -> dict[str, int]:
    """Return the token ids of a configuration, by the tokens of the processor."""
    known = FEATURE_TOKENS.get(config["model_type"], {})
    told = {key: processor.tokenizer.convert_tokens_to_ids(text) for key, text in known.items()}
    return {
        key: found
        for key, value in config.items()
        if isinstance(value, int | None) and (match := _IDS.fullmatch(key))
        for found in [_id_of(processor, match[1])]
        if found is not None
    } | told


def _id_of(processor: Any, name: str) -> int | None:
    for owner in (processor, processor.tokenizer):
        for asked in (f"{name}_token", name):
            token = getattr(owner, asked, None)
            if isinstance(token, str) and token in processor.tokenizer.get_vocab():
                found: int = processor.tokenizer.convert_tokens_to_ids(token)
                return found
    return None


def _class(model_type: str) -> Any:
    name = _class_name(model_type)
    try:
        return processors._processor_class(name) if name else None
    except Exception:  # noqa: BLE001 - a dependency is not installed
        return None


def _class_name(model_type: str) -> str | None:
    known: str | None = processing_auto.PROCESSOR_MAPPING_NAMES.get(model_type)
    return known or PROCESSORS.get(model_type, (None, None))[0]


def _image_processor(model_type: str) -> str | None:
    if model_type in PROCESSORS:
        return PROCESSORS[model_type][1]
    forms = image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES.get(model_type) or {}
    return forms.get("torchvision") or forms.get("pil")
