"""Processors of families outside the zoo give the tokens of the family."""

import json
from pathlib import Path
from typing import Any

import pytest

import zoo
from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from zoo.tokenizer import byte_level

IMAGE = "]<]image[>["
FAMILIES: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...], int]] = {
    "perception_lm": (
        "PerceptionLM",
        "<|image|>",
        {"tile_size": 56, "max_num_tiles": 4},
        ("<|image|>", "<|video|>"),
        4 * (1 + 3),
    ),
    "minimax_m3_vl": (
        "MiniMaxM3VL",
        IMAGE,
        {"size": [672, 672]},
        (IMAGE, "]<]video[>[", "]<]start of image[>[", "]<]end of image[>["),
        6,
    ),
    "muse_spark": ("MuseSpark", "<|patch|>", {"max_image_tokens": 12}, ("<|patch|>",), 1 * 3),
    "step3p7": (
        "Step3p7",
        "<im_patch>",
        {},
        ("<im_patch>", "<im_start>", "<im_end>"),
        169 + 2 * 81,
    ),
    "unlimited_ocr": ("UnlimitedOcr", "<image>", {}, ("<image>",), 273),
    "inkling2": ("Inkling2", "<|unused_200054|>", {}, ("<|unused_200054|>",), 3),
    "nemotron_h_omni": (
        "NemotronH_Omni_Reasoning_V3",
        "<image>",
        {"min_num_patches": 16},
        ("<image>", "<img>", "</img>"),
        6,
    ),
}
"""By model type: prefix of names, image token, settings, special tokens, tokens of 84x40."""
OF_IMAGES = {"muse_spark": "MuseGlimmer"}


def folder(path: Path, name: str) -> Path:
    kind, image, settings, special, _ = FAMILIES[name]
    named = {"eos_token": "<eos>", "pad_token": "<eos>"}
    extra = {"image_token": image, "video_token": "<|video|>"}
    special = ("<eos>", "<|video|>", "<patch_start>", "<patch_end>", "<patch_newline>", *special)
    tokenizer = byte_level(list(dict.fromkeys(special)), named=named, extra=extra)
    tokenizer.save_pretrained(path)
    (path / "chat_template.jinja").write_text(
        "{% for message in messages %}{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}" + image + "{% else %}{{ part['text'] }}{% endif %}"
        "{% endfor %}{% endfor %}"
    )
    images = f"{OF_IMAGES.get(name, kind)}ImageProcessor"
    token_id = tokenizer.convert_tokens_to_ids(image)
    tower = {"video_temporal_patch_size": 2} if name == "nemotron_h_omni" else {}
    files = {
        "config.json": {"model_type": name, "vision_config": tower, "image_token_id": token_id},
        "preprocessor_config.json": {"image_processor_type": images, **settings},
        "processor_config.json": {"processor_class": f"{kind}Processor", "patch_size": 14},
    }
    if name == "unlimited_ocr":
        files["processor_config.json"]["patch_size"] = 16
    for file, content in files.items():
        (path / file).write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("name", FAMILIES)
def test_an_image_has_the_tokens_of_its_family(name: str, tmp_path: Path) -> None:
    tokenizer = HfTokenizer(Checkpoint(name, folder(tmp_path, name)), HfTokenizerSettings())
    made = tokenizer.prompt([Message.of("user", "What?", [Image.open(zoo.picture(1, 84, 40))])])
    (slot,) = made.media

    assert slot.num_features == FAMILIES[name][-1]
    assert "pixel_values" in slot.inputs


def test_a_model_without_generation_does_not_suggest_torchvision(tmp_path: Path) -> None:
    path = folder(tmp_path, "unlimited_ocr")
    config = {"model_type": "pp_formulanet", "vision_config": {}, "image_token_id": 1}
    (path / "config.json").write_text(json.dumps(config))
    for file in ("preprocessor_config.json", "processor_config.json"):
        (path / file).write_text('{"do_resize": true}')

    with pytest.raises(CheckpointError) as caught:
        HfTokenizer(Checkpoint("m", path), HfTokenizerSettings())
    assert caught.value.hint == "see the log"
