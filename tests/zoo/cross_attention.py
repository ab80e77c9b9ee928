"""Vision families whose decoder attends to images by cross-attention, outside the text.

As in the checkpoints of Llama 3.2 Vision, an image is one token of the prompt. The language model
has an embedding for this token but no logit.
"""

import transformers
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from zoo import template
from zoo.family import Family, VisionSide
from zoo.text import sizes
from zoo.tokenizer import byte_level
from zoo.vision import TOWER

IMAGE = "<|image|>"
TILE = 64  # pixels of a side; images of the tests have one to four tiles


def _tokenizer() -> PreTrainedTokenizerFast:
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
    special += ["<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|finetune_right_pad_id|>", IMAGE]
    named = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
        "pad_token": "<|finetune_right_pad_id|>",
    }
    return byte_level(special, named=named, adds_bos=True)


def _mllama(tokenizer: PreTrainedTokenizerFast) -> PreTrainedConfig:
    image_token = tokenizer.convert_tokens_to_ids(IMAGE)
    layers = {"num_hidden_layers": 5, "cross_attention_layers": [1, 3]}
    return transformers.MllamaConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "attention_heads": 2,
            "num_hidden_layers": 3,
            "num_global_layers": 1,
            "intermediate_layers_indices": [0, 2],
            "vision_output_dim": 96,
            "image_size": TILE,
            "patch_size": 32,
            "initializer_range": TOWER["initializer_range"],
        },
        text_config={**sizes(tokenizer, **layers), "vocab_size": image_token},
        image_token_index=image_token,
    )


CROSS_ATTENTION: dict[str, Family] = {
    "mllama": Family(
        _tokenizer,
        _mllama,
        template.LLAMA4.replace("header_start", "start_header_id")
        .replace("header_end", "end_header_id")
        .replace("<|eot|>", "<|eot_id|>"),
        ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
        VisionSide(
            "MllamaImageProcessorPil",
            {"size": {"height": TILE, "width": TILE}, "max_image_tiles": 4},
            "MllamaProcessor",
            IMAGE,
        ),
    ),
}
