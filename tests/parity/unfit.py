"""Tiny random models that load and would then fail at pictures, with their real processors.

Each family is laid out as the zoo's are; none of them can be answered about pictures here.
"""

from pathlib import Path
from typing import Any
from unittest import mock

import transformers
from transformers import PreTrainedTokenizerFast

import zoo
from zoo import vision
from zoo.family import Family, VisionSide
from zoo.text import sizes
from zoo.tokenizer import byte_level

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{{ IMAGE if part['type'] == 'image' else part['text'] }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMED = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
CODES = [f"<|visual token {number:06d}|>" for number in range(32)]
INDICATORS = ["<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"]
SQUARE = {"height": 28, "width": 28}

Tokenizer = PreTrainedTokenizerFast


def _text(tokenizer: Tokenizer, model_type: str) -> dict[str, Any]:
    return {"model_type": model_type, **sizes(tokenizer)}


def _ovis2(tokenizer: Tokenizer) -> Any:
    return transformers.Ovis2Config(
        vision_config={**vision.TOWER, "image_size": 28, "patch_size": 14, "vocab_size": 24},
        text_config=_text(tokenizer, "qwen2"),
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_ATOM>"),
        visual_indicator_token_ids=tokenizer.convert_tokens_to_ids(INDICATORS),
        vocab_size=len(tokenizer),
        hidden_size=64,
        tie_word_embeddings=False,
    )


def _video_llava(tokenizer: Tokenizer) -> Any:
    return transformers.VideoLlavaConfig(
        vision_config=vision.CLIP,
        text_config=_text(tokenizer, "llama"),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_seq_length=4,
    )


def _fuyu(tokenizer: Tokenizer) -> Any:
    return transformers.FuyuConfig(
        text_config=_text(tokenizer, "persimmon"),
        image_size=60,
        patch_size=14,
        image_token_id=tokenizer.convert_tokens_to_ids("|SPEAKER|"),
    )


def _emu3(tokenizer: Tokenizer) -> Any:
    codebook = {
        "codebook_size": len(CODES),
        "base_channels": 32,
        "channel_multiplier": [1, 1],
        "num_res_blocks": 1,
        "hidden_size": 32,
        "attn_resolutions": [],
    }
    named = {token: tokenizer.convert_tokens_to_ids(token) for token in ("<image>", *CODES)}
    return transformers.Emu3Config(
        vq_config=codebook,
        text_config=_text(tokenizer, "emu3_text_model"),
        vocabulary_map=named,
    )


def _family(
    special: list[str], config: Any, side: VisionSide, extra: dict[str, str] | None = None
) -> Family:
    def tokenizer() -> Tokenizer:
        return byte_level([*NAMED.values(), *special], named=NAMED, extra=extra)

    written = TEMPLATE.replace("IMAGE", f"'{side.placeholder}'")
    return Family(tokenizer, config, written, ("<|im_end|>",), side)


FAMILIES = {
    "ovis2": _family(
        ["<image>", "<IMG_ATOM>", *INDICATORS],
        _ovis2,
        VisionSide(
            "Ovis2ImageProcessorPil",
            {"size": SQUARE, "crop_to_patches": False},
            "Ovis2Processor",
            "<image>",
            {"image_seq_length": 4},
        ),
    ),
    "video_llava": _family(
        ["<image>", "<video>"],
        _video_llava,
        VisionSide(
            "VideoLlavaImageProcessor",
            vision.CLIP_IMAGE,
            "VideoLlavaProcessor",
            "<image>",
            {"patch_size": 14},
        ),
    ),
    "fuyu": _family(
        ["|SPEAKER|", "|NEWLINE|", "<0x04>"],
        _fuyu,
        VisionSide(
            "FuyuImageProcessorPil",
            {"size": {"height": 60, "width": 60}, "patch_size": {"height": 14, "width": 14}},
            "FuyuProcessor",
            "|SPEAKER|",
        ),
    ),
    "emu3": _family(
        ["<image>", "<|img token|>", "<|image start|>", "<|image end|>", "<|eof|>", *CODES],
        _emu3,
        VisionSide(
            "Emu3ImageProcessor",
            {"min_pixels": 28 * 28, "max_pixels": 84 * 84, "spatial_factor": 2},
            "Emu3Processor",
            "<image>",
        ),
        {
            "image_token": "<image>",
            "boi_token": "<|image start|>",
            "eoi_token": "<|image end|>",
            "image_wrapper_token": "<|img token|>",
            "eof_token": "<|eof|>",
        },
    ),
}


def save(name: str, folder: Path) -> Path:
    """Write one of the families as a checkpoint; return the folder."""
    with mock.patch.dict(vision.VISION, FAMILIES):
        return zoo.save(name, folder)
