"""Vision families that place images in a way of their own.

Examples are numbers before images, rows for the marks around them, and codes of a codebook.
"""

from collections.abc import Callable, Mapping
from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from zoo.family import Family, VisionSide
from zoo.template import CHATML, LLAVA, PARTS
from zoo.text import sizes
from zoo.tokenizer import byte_level
from zoo.vision import CLIP, CLIP_IMAGE, SQUARE_28, TOWER

Tokenizer = PreTrainedTokenizerFast

NAMED = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
INDICATORS = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
CODES = tuple(f"<|visual token {number:06d}|>" for number in range(32))
MINICPM = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
EMU3 = {
    "image_token": "<image>",
    "boi_token": "<|image start|>",
    "eoi_token": "<|image end|>",
    "image_wrapper_token": "<|img token|>",
    "eof_token": "<|eof|>",
}


def family(
    special: tuple[str, ...],
    config: Callable[[Tokenizer], PreTrainedConfig],
    side: VisionSide,
    extra: Mapping[str, str] | None = None,
    chat: str = CHATML,
) -> Family:
    """Return a family; its conversations use ChatML by default."""

    def tokenizer() -> Tokenizer:
        return byte_level([*NAMED.values(), *special], named=NAMED, extra=extra)

    written = chat.replace("IMAGE", f"'{side.placeholder}'")
    return Family(tokenizer, config, written, ("<|im_end|>",), side)


def text_sizes(tokenizer: Tokenizer, model_type: str, **more: Any) -> dict[str, Any]:
    return {"model_type": model_type, **sizes(tokenizer, **more)}


def _minicpmv(tokenizer: Tokenizer) -> PreTrainedConfig:
    text = text_sizes(
        tokenizer,
        "qwen3_5_text",
        num_hidden_layers=4,
        head_dim=16,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    )
    tower = {**TOWER, "patch_size": 7, "image_size": 112}
    return transformers.MiniCPMV4_6Config(
        text_config=text,
        vision_config=tower,
        insert_layer_id=0,
        image_size=56,
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
    )


def _ovis2(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.Ovis2Config(
        vision_config={**TOWER, "image_size": 28, "patch_size": 14, "vocab_size": 24},
        text_config=text_sizes(tokenizer, "qwen2"),
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_ATOM>"),
        visual_indicator_token_ids=tokenizer.convert_tokens_to_ids(list(INDICATORS)),
        vocab_size=len(tokenizer),
        hidden_size=64,
        tie_word_embeddings=False,
    )


def _video_llava(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.VideoLlavaConfig(
        vision_config=CLIP,
        text_config=text_sizes(tokenizer, "llama"),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_seq_length=4,
    )


def _aria(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.AriaConfig(
        vision_config={
            **TOWER,
            "model_type": "idefics3_vision",
            "image_size": 980,
            "patch_size": 140,
        },
        text_config=text_sizes(tokenizer, "aria_text", moe_num_experts=4, intermediate_size=48),
        image_token_index=tokenizer.image_token_id,
        projector_patch_to_query_dict={49: 8},
        tie_word_embeddings=False,
    )


def _emu3(tokenizer: Tokenizer) -> PreTrainedConfig:
    codebook = {
        "codebook_size": len(CODES),
        "base_channels": 32,
        "channel_multiplier": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "hidden_size": 32,
        "attn_resolutions": [],
    }
    named = ("<image>", "<|extra_200|>", *CODES)
    return transformers.Emu3Config(
        vq_config=codebook,
        text_config=text_sizes(tokenizer, "emu3_text_model"),
        vocabulary_map={token: tokenizer.convert_tokens_to_ids(token) for token in named},
    )


def _step3p7(tokenizer: Tokenizer) -> PreTrainedConfig:
    text = sizes(
        tokenizer,
        num_hidden_layers=4,
        head_dim=16,
        layer_types=["full_attention", "sliding_attention"] * 2,
        mlp_layer_types=["dense", "sparse"] * 2,
        sliding_window=8,
        num_sliding_attention_heads=2,
        moe_intermediate_size=48,
        share_expert_dim=48,
        n_routed_experts=4,
        num_experts_per_tok=2,
    )
    return transformers.Step3p7Config(
        vision_config={
            **TOWER,
            "image_size": 56,
            "patch_size": 7,
            "mlp_ratio": 2.0,
            "max_position_embeddings": 64,
        },
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids("<im_patch>"),
    )


def _muse_spark(tokenizer: Tokenizer) -> PreTrainedConfig:
    ids = {
        name: tokenizer.convert_tokens_to_ids(token)
        for name, token in {
            "image_token_id": "<|patch|>",
            "video_token_id": "<|video|>",
            "audio_token_id": "<|audio|>",
        }.items()
    }
    tower = {"pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16}
    return transformers.MuseSparkConfig(
        vision_config={**TOWER, **tower, "patch_size": 7, "num_hidden_layers": 4},
        text_config=sizes(
            tokenizer,
            num_hidden_layers=4,
            head_dim=16,
            sliding_window=8,
            moe_hidden_size=48,
            moe_intermediate_size=48,
            num_local_experts=4,
            num_experts_per_tok=2,
        ),
        audio_config={
            "patch_sizes": [4, 4],
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_hidden_layers": 2,
            "out_hidden_size": 64,
        },
        out_hidden_size=128,
        projector_hidden_size=64,
        **ids,
    )


QFORMER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "initializer_range": 0.3,
}
ASKED = (
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ 'Question: ' + say(message, IMAGE) }}{% else %}{{ ' Answer: ' + say(message, '') + ' ' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ ' Answer:' }}{% endif %}"
)


def _opt_tokenizer() -> Tokenizer:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<image>"]
    named = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return byte_level(special, named=named, adds_bos=True)


def _blip2(tokenizer: Tokenizer) -> PreTrainedConfig:
    text = {
        "model_type": "opt",
        "vocab_size": -(-len(tokenizer) // 16) * 16,
        "hidden_size": 64,
        "ffn_dim": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 64,
        "max_position_embeddings": 512,
        "init_std": 0.15,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return transformers.Blip2Config(
        vision_config={**TOWER, "image_size": 28, "patch_size": 7},
        qformer_config=QFORMER,
        text_config=text,
        num_query_tokens=6,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )


def _nemotron_h_omni(tokenizer: Tokenizer) -> PreTrainedConfig:
    text = text_sizes(
        tokenizer,
        "nemotron_h",
        head_dim=16,
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=16,
        n_groups=2,
        layers_block_type=["linear_attention", "moe", "full_attention", "mlp"],
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        moe_shared_expert_intermediate_size=48,
    )
    del text["num_hidden_layers"]
    tower = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": 7,
        "image_size": 28,
        "max_img_size": 112,
        "num_cls_tokens": 2,
        "num_registers": 2,
        "video_temporal_patch_size": 2,
        "initializer_range": 0.3,
    }
    return transformers.NemotronH_Omni_Reasoning_V3_Config(
        vision_config=tower,
        text_config=text,
        projector_hidden_size=48,
        vision_hidden_size=32,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<video>"),
        audio_token_id=tokenizer.convert_tokens_to_ids("<so_embedding>"),
    )


OTHERS: dict[str, Family] = {
    "minicpmv4_6": family(
        tuple(MINICPM.values()),
        _minicpmv,
        VisionSide(
            "MiniCPMV4_6ImageProcessorPil",
            {"scale_resolution": 56, "patch_size": 7, "max_slice_nums": 4},
            "MiniCPMV4_6Processor",
            "<|image_pad|>",
        ),
        MINICPM,
    ),
    "ovis2": family(
        ("<image>", "<IMG_ATOM>", *INDICATORS),
        _ovis2,
        VisionSide(
            "Ovis2ImageProcessorPil",
            {"size": SQUARE_28, "crop_to_patches": True, "max_patches": 4},
            "Ovis2Processor",
            "<image>",
            {"image_seq_length": 4},
        ),
    ),
    "video_llava": family(
        ("<image>", "<video>"),
        _video_llava,
        VisionSide(
            "VideoLlavaImageProcessor",
            CLIP_IMAGE,
            "VideoLlavaProcessor",
            "<image>",
            {"patch_size": 14},
        ),
    ),
    "aria": family(
        ("<image>",),
        _aria,
        VisionSide(
            "AriaImageProcessorPil",
            {},
            "AriaProcessor",
            "<image>",
            {"size_conversion": {"980": 8}},
        ),
        {"image_token": "<image>"},
    ),
    "emu3": family(
        (*EMU3.values(), "<|extra_200|>", *CODES),
        _emu3,
        VisionSide(
            "Emu3ImageProcessor",
            {"min_pixels": 28 * 28, "max_pixels": 84 * 84, "spatial_factor": 8},
            "Emu3Processor",
            "<image>",
        ),
        EMU3,
        "You are a helpful assistant. " + LLAVA,  # the processor puts the first token before it
    ),
    "step3p7": family(
        ("<im_patch>", "<im_start>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>"),
        _step3p7,
        VisionSide(
            "Step3p7ImageProcessor",
            {
                "size": {"height": 56, "width": 56},
                "patch_size": 28,
                "max_image_size": 112,
                "vision_patch_size": 7,
                "downsampler_stride": 4,
            },
            "Step3p7Processor",
            "<im_patch>",
        ),
    ),
    "muse_spark": family(
        ("<|image_start|>", "<|image_end|>", "<|patch|>", "<|video|>", "<|audio|>"),
        _muse_spark,
        VisionSide(
            "MuseGlimmerImageProcessor",
            {"patch_size": 7, "max_image_tokens": 12},
            "MuseSparkProcessor",
            "<|patch|>",
        ),
    ),
    "nemotron_h_omni": family(
        ("<image>", "<video>", "<so_embedding>", "<img>", "</img>", "<so_start>", "<so_end>"),
        _nemotron_h_omni,
        VisionSide(
            "NemotronH_Omni_Reasoning_V3ImageProcessor",
            {"patch_size": 7, "min_num_patches": 4, "max_num_patches": 200, "max_model_len": 128},
            "NemotronH_Omni_Reasoning_V3Processor",
            "<image>",
        ),
    ),
    "blip-2": Family(
        _opt_tokenizer,
        _blip2,
        PARTS + ASKED.replace("IMAGE", "'<image>'"),
        ("</s>",),
        VisionSide(
            "BlipImageProcessorPil",
            {"size": SQUARE_28},
            "Blip2Processor",
            "<image>",
            {"num_query_tokens": 6},
        ),
    ),
}
