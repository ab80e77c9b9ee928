"""Random weights in the shape of vision models: valid for speed, not for claims about answers.

There are two kinds of towers: SmolVLM's tiles of one size, and Qwen2.5-VL's patches with window
attention. The latter has two shapes: a quarter of the layers of Qwen2.5-VL-3B's tower with a
decoder like Qwen2.5-0.5B, and all of Qwen2.5-VL-3B. Files have the format of :mod:`shapes`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import shapes

IMAGE_TEMPLATE = (
    "{%% for m in messages %%}{{ m['role'] | capitalize }}: {%% for p in m['content'] %%}"
    "{{ p['text'] if p['type'] == 'text' else '%s' }}{%% endfor %%}%s\n"
    "{%% endfor %%}Assistant:"
)
TILE_EDGE = 512
TILE_TOKENS = 64
SMOLVLM_SPECIAL = (
    *shapes.SPECIAL,
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
QWEN_SPECIAL = (
    *shapes.SPECIAL,
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
IDS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}


@dataclass(frozen=True)
class ImageShape:
    """A decoder, a tower, and the size of the square image in requests.

    Attributes:
        save: writes the weights, configuration and image processor of a checkpoint.
        edge: the edge of an image, in pixels.
        decoder: fields of the decoder's configuration.
        tower: fields of the tower's configuration.
        is_tied: whether the output layer is the embedding.
    """

    save: Callable[["ImageShape", Path], None]
    edge: int
    decoder: dict[str, int]
    tower: dict[str, object]
    is_tied: bool = False


def save(shape: str, folder: Path, dtype: str = "float32") -> Path:
    """Save a model of a shape into ``folder``, unless it exists already."""
    if not (folder / "config.json").is_file():
        import torch

        torch.manual_seed(0)
        torch.set_default_dtype(getattr(torch, dtype))
        try:
            IMAGE_SHAPES[shape].save(IMAGE_SHAPES[shape], folder)
        finally:
            torch.set_default_dtype(torch.float32)
    return folder


def _save_smolvlm(shape: ImageShape, folder: Path) -> None:
    from transformers import (
        SmolVLMConfig,
        SmolVLMForConditionalGeneration,
        SmolVLMImageProcessorPil,
    )

    template = IMAGE_TEMPLATE % ("<image>", "<end_of_utterance>")
    config = SmolVLMConfig(
        vision_config={**shape.tower, "image_size": TILE_EDGE, "patch_size": 16},
        text_config={
            "model_type": "llama",
            **shape.decoder,
            "max_position_embeddings": 8192,
            **IDS,
        },
        image_token_id=SMOLVLM_SPECIAL.index("<image>"),
        scale_factor=4,
        tie_word_embeddings=False,
        pad_token_id=0,
    )
    _save_weights(SmolVLMForConditionalGeneration(config), SMOLVLM_SPECIAL, template, folder)
    images = SmolVLMImageProcessorPil(
        size={"longest_edge": shape.edge},
        max_image_size={"longest_edge": TILE_EDGE},
        do_image_splitting=True,
    ).to_dict()
    named = {"image_processor_type": "SmolVLMImageProcessor"}
    settings = {"image_seq_len": TILE_TOKENS}
    _save_processor("SmolVLMProcessor", {**images, **named}, settings, folder)


def _save_qwen(shape: ImageShape, folder: Path) -> None:
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2VLImageProcessorPil,
    )

    image = "<|vision_start|><|image_pad|><|vision_end|>"
    names = ("image_pad", "video_pad", "vision_start", "vision_end")
    index = {name: QWEN_SPECIAL.index(f"<|{name}|>") for name in names}
    head = shape.decoder["hidden_size"] // shape.decoder["num_attention_heads"]
    sections = [head // 8, head * 3 // 16, head * 3 // 16]
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}
    config = Qwen2_5_VLConfig(
        vision_config={**shape.tower, "out_hidden_size": shape.decoder["hidden_size"]},
        text_config={
            **shape.decoder,
            "max_position_embeddings": 8192,
            "rope_parameters": rope,
            **IDS,
        },
        image_token_id=index["image_pad"],
        video_token_id=index["video_pad"],
        vision_start_token_id=index["vision_start"],
        vision_end_token_id=index["vision_end"],
        tie_word_embeddings=shape.is_tied,
    )
    template = IMAGE_TEMPLATE % (image, "<|im_end|>")
    _save_weights(Qwen2_5_VLForConditionalGeneration(config), QWEN_SPECIAL, template, folder)
    images = Qwen2VLImageProcessorPil().to_dict()
    named = {"image_processor_type": "Qwen2VLImageProcessor"}
    _save_processor("Qwen2_5_VLProcessor", {**images, **named}, {}, folder)


def _save_weights(model, special: tuple[str, ...], template: str, folder: Path) -> None:
    shapes.say_whole_words(model)
    model.save_pretrained(folder)
    vocab_size = model.config.text_config.vocab_size
    shapes.tokenizer_of(vocab_size, special, template).save_pretrained(folder)


def _save_processor(
    name: str, images: dict[str, object], settings: dict[str, int], folder: Path
) -> None:
    images = {**images, "processor_class": name}
    (folder / "preprocessor_config.json").write_text(json.dumps(images, default=str))
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": name, **settings}))


SIGLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
IMAGE_SHAPES = {
    "smolvlm-256m": ImageShape(  # a square image becomes 2 x 2 tiles and an overview
        _save_smolvlm,
        edge=1024,
        decoder={
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49280,
        },
        tower=SIGLIP,
    ),
    "smolvlm-500m": ImageShape(
        _save_smolvlm,
        edge=1024,
        decoder={
            "hidden_size": 960,
            "intermediate_size": 2560,
            "num_hidden_layers": 32,
            "num_attention_heads": 15,
            "num_key_value_heads": 5,
            "vocab_size": 49280,
        },
        tower=SIGLIP,
    ),
    "qwen2.5-vl-3b": ImageShape(  # 14 x 14 tokens
        _save_qwen,
        edge=392,
        decoder={
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
        },
        tower={
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
        is_tied=True,
    ),
    "qwen2.5-vl": ImageShape(  # 27 x 27 cells, so the last windows are smaller
        _save_qwen,
        edge=756,
        decoder={
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 49280,
        },
        tower={
            "depth": 8,
            "hidden_size": 1280,
            "intermediate_size": 3456,  # 3420, rounded to a multiple of q8_0 blocks
            "num_heads": 16,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [3, 7],
        },
    ),
    "smolvlm-small": ImageShape(
        _save_smolvlm,
        edge=1024,
        decoder={
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 4096,
        },
        tower={
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        },
    ),
}
