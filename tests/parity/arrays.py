"""Tiny random vision models with random arrays as images, for mechanisms that the zoo lacks.

There is no tokenizer and no image processor. A prompt is token ids with runs of the image token. An
image is the arrays that the family's processor would make.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from vlmkit.interfaces.prompt import MediaSlot, Prompt

IMAGE = 300
TEXT = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.15,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.3,
}
SIGLIP = {**TOWER, "model_type": "siglip_vision_model", "patch_size": 14, "vision_use_head": False}
QWEN_TOWER = {
    "depth": 4,
    "hidden_size": 32,
    "out_hidden_size": 64,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "num_position_embeddings": 16,
    "initializer_range": 0.3,
}
QWEN_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": 301,
    "vision_start_token_id": 302,
    "vision_end_token_id": 303,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
EXPERTS = {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Drawn:
    """One family: its config, the shapes of an image's arrays, and the image's tokens.

    Attributes:
        config: builds the configuration.
        shapes: of each array of random numbers.
        num_tokens: placeholders of an image.
        numbers: given arrays, such as grids.
        types: the argument that separates image tokens from text, if the family has one.
        around: the tokens that the family expects right before and after an image.
        experts: the argument that routes image tokens and adjacent ones to their own experts.
    """

    config: Callable[[], Any]
    shapes: dict[str, tuple[int, ...]]
    num_tokens: int
    numbers: dict[str, list[Any]]
    types: str = ""
    around: tuple[int, ...] = ()
    experts: str = ""


def _gemma3() -> Any:
    text = {
        **TEXT,
        "model_type": "gemma3_text",
        "head_dim": 32,
        "sliding_window": 8,
        "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    return transformers.Gemma3Config(
        text_config=text,
        vision_config={**SIGLIP, "image_size": 112},
        mm_tokens_per_image=16,
        image_token_index=IMAGE,
        boi_token_index=301,
        eoi_token_index=302,
        tie_word_embeddings=False,
    )


def _qwen3_vl_moe() -> Any:
    text = {**TEXT, **EXPERTS, "head_dim": 16, "decoder_sparse_step": 1}
    text["rope_parameters"] = {**ROPE, "mrope_section": [2, 3, 3]}
    tower = {**QWEN_TOWER, "deepstack_visual_indexes": [0, 1, 2]}
    return transformers.Qwen3VLMoeConfig(text_config=text, vision_config=tower, **QWEN_IDS)


def _qwen3_omni() -> Any:
    text = {**TEXT, **EXPERTS, "head_dim": 16}
    text["rope_parameters"] = {**ROPE, "mrope_section": [2, 3, 3], "mrope_interleaved": True}
    audio = {
        "num_mel_bins": 16,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "d_model": 32,
        "output_dim": 64,
        "max_source_positions": 32,
        "n_window": 4,
        "n_window_infer": 8,
        "downsample_hidden_size": 8,
    }
    return transformers.Qwen3OmniMoeThinkerConfig(
        text_config=text,
        vision_config={**QWEN_TOWER, "deepstack_visual_indexes": [0, 1, 2]},
        audio_config=audio,
        audio_token_id=304,
        audio_start_token_id=305,
        audio_end_token_id=306,
        user_token_id=307,
        **QWEN_IDS,
    )


def _qwen3_5() -> Any:
    text = {
        **TEXT,
        "head_dim": 16,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    }
    rope = {**ROPE, "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25}
    text["rope_parameters"] = rope
    return transformers.Qwen3_5Config(text_config=text, vision_config=QWEN_TOWER, **QWEN_IDS)


def _internvl_gpt_oss() -> Any:
    text = {
        **TEXT,
        "model_type": "gpt_oss",
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
    }
    return transformers.InternVLConfig(
        vision_config={**TOWER, "image_size": [28, 28], "patch_size": [7, 7]},
        text_config=text,
        image_token_id=IMAGE,
        image_seq_length=4,
    )


def _llama4() -> Any:
    tower = {
        **TOWER,
        "intermediate_size": 128,
        "image_size": 28,
        "patch_size": 7,
        "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 32,
        "projector_output_dim": 32,
        "vision_output_dim": 32,
    }
    text = {
        **TEXT,
        "intermediate_size_mlp": 96,
        "head_dim": 16,
        "num_local_experts": 4,
        "attention_chunk_size": 8,
    }
    return transformers.Llama4Config(
        vision_config=tower,
        text_config=text,
        image_token_index=IMAGE,
        boi_token_index=301,
        eoi_token_index=302,
    )


def _granite4_vision() -> Any:
    return transformers.Granite4VisionConfig(
        vision_config={
            **SIGLIP,
            "num_hidden_layers": 4,
            "image_size": 56,
            "hidden_size": 64,
            "intermediate_size": 64,
        },
        text_config={**TEXT, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
        image_token_index=IMAGE,
        image_grid_pinpoints=[[56, 112], [112, 56], [112, 112]],
        downsample_rate="1/2",
        deepstack_layer_map=[[-2, 0], [-1, 2]],
        spatial_target_layers=[1, 1, 3, 3],
        spatial_vision_layer=-1,
        vision_feature_select_strategy="full",
        qformer_config={
            "hidden_size": 64,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "encoder_hidden_size": 64,
            "initializer_range": 0.3,
        },
    )


def _cohere2_vision() -> Any:
    return transformers.Cohere2VisionConfig(
        vision_config={**SIGLIP, "image_size": 56},
        text_config={**TEXT, "model_type": "cohere2", "sliding_window": 8},
        image_token_id=IMAGE,
        downsample_factor=2,
        alignment_intermediate_size=64,
    )


def _ernie() -> Any:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}
    text = {
        **TEXT,
        "num_hidden_layers": 3,
        "moe_intermediate_size": [48, 24],
        "moe_num_experts": 4,
        "moe_k": 2,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "rope_parameters": rope,
    }
    tower = {
        **TOWER,
        "depth": 2,
        "num_heads": 2,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_merge_size": 2,
    }
    return transformers.Ernie4_5_VLMoeConfig(
        text_config=text,
        vision_config=tower,
        image_token_id=IMAGE,
        image_start_token_id=302,
        image_end_token_id=303,
        video_token_id=304,
        video_start_token_id=305,
        video_end_token_id=306,
    )


_GRID = {"image_grid_thw": [[1, 4, 6]]}
_QWEN = ({"pixel_values": (24, 1176)}, 6, _GRID, "mm_token_type_ids")
FAMILIES = {
    # An image's block of tokens is longer than the window, and sees itself both ways.
    "gemma3_large_image": Drawn(
        _gemma3, {"pixel_values": (1, 3, 112, 112)}, 16, {}, "token_type_ids"
    ),
    "qwen3_vl_moe": Drawn(_qwen3_vl_moe, *_QWEN),
    "qwen3_5": Drawn(_qwen3_5, *_QWEN),
    # Positions have three axes only if a mask shows that no token is padding.
    "qwen3_omni": Drawn(_qwen3_omni, *_QWEN[:3], around=(302, 303)),
    # Tokens of images go to experts of their own.
    "ernie4_5_vl_moe": Drawn(
        _ernie,
        {"pixel_values": (24, 588)},
        6,
        _GRID,
        "mm_token_type_ids",
        (302, 303),
        "moe_mm_token_type_ids",
    ),
    "internvl_gpt_oss": Drawn(_internvl_gpt_oss, {"pixel_values": (2, 3, 28, 28)}, 8, {}),
    # The projector runs after the encoder's output was cached.
    "llama4": Drawn(_llama4, {"pixel_values": (2, 3, 28, 28)}, 8, {}),
    # Rows for numbered layers, and none at the bottom.
    "granite4_vision": Drawn(
        _granite4_vision, {"pixel_values": (1, 5, 3, 56, 56)}, 24, {"image_sizes": [[112, 112]]}
    ),
    "cohere2_vision": Drawn(_cohere2_vision, {"pixel_values": (2, 3, 56, 56)}, 8, {}),
}


def save(name: str, folder: Path) -> Path:
    """Write a family as a checkpoint whose images matter; return the folder."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = FAMILIES[name].config()
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        for path, weight in model.named_parameters():
            is_language = any(part in path for part in ("language_model", "lm_head"))
            if weight.ndim < 2 or is_language:
                continue
            if weight.std() == 0:
                weight.data.normal_(0, 0.15)
            elif weight.std() < 0.1:
                weight.data.mul_(0.15 / weight.std())
    model.save_pretrained(folder)
    return folder


def prompts(name: str) -> list[Prompt]:
    """Return four prompts with 1, 0, 2 and 1 images."""
    family, random = FAMILIES[name], np.random.default_rng(0)
    made = []
    for num_images, before, after in ((1, 5, 9), (0, 23, 0), (2, 3, 7), (1, 31, 5)):
        ids, slots = random.integers(5, 250, before).tolist(), []
        for _ in range(num_images):
            arrays = {
                key: random.standard_normal(shape).astype(np.float32)
                for key, shape in family.shapes.items()
            }
            arrays |= {key: np.array(value) for key, value in family.numbers.items()}
            stop = len(ids) + family.num_tokens
            slots.append(MediaSlot(len(ids), stop, random.bytes(32), arrays, family.num_tokens))
            ids += [IMAGE] * family.num_tokens + random.integers(5, 250, 2).tolist()
            if family.around:
                ids[slots[-1].start - 1], ids[stop] = family.around
        ids += random.integers(5, 250, after).tolist()
        made.append(Prompt(tuple(ids), tuple(slots)))
    return made


def banned(name: str) -> list[int]:
    """Return the tokens that stand for images, or around them: no answer has them."""
    return [IMAGE, *FAMILIES[name].around]


def inputs(name: str, prompt: Prompt) -> dict[str, torch.Tensor]:
    """Return the inputs of the family's own model for a prompt."""
    ids = torch.tensor([prompt.token_ids])
    made = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if FAMILIES[name].types:
        made[FAMILIES[name].types] = (ids == IMAGE).long()
    if FAMILIES[name].experts:
        own = torch.tensor([IMAGE, *FAMILIES[name].around])
        made[FAMILIES[name].experts] = torch.isin(ids, own).long()
    for key in prompt.media[0].inputs if prompt.media else ():
        parts = [torch.from_numpy(np.asarray(slot.inputs[key])) for slot in prompt.media]
        made[key] = torch.cat(parts)
    return made
