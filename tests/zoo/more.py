"""Vision families whose image processor in transformers requires torchvision.

They equal those of :mod:`.vision` except for the image processor, which is vlmkit-hf's. A test with
torchvision compares it with that of transformers.
"""

import transformers
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from zoo import template
from zoo.family import Family, VisionSide
from zoo.text import GEMMA, sizes
from zoo.tokenizer import byte_level, gemma
from zoo.vision import SIGLIP, SQUARE_28, TOWER

Tokenizer = PreTrainedTokenizerFast


def token_ids(tokenizer: Tokenizer, **tokens: str) -> dict[str, int]:
    """Return ids by the names that a config has for them."""
    return {name: tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()}


def _llama4_tokenizer() -> Tokenizer:
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|header_start|>", "<|header_end|>"]
    special += ["<|eot|>", "<|image_start|>", "<|image_end|>", "<|tile_x_separator|>"]
    special += ["<|tile_y_separator|>", "<|image|>", "<|patch|>", "<|finetune_right_pad|>"]
    named = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot|>",
        "pad_token": "<|finetune_right_pad|>",
    }
    return byte_level(special, named=named, adds_bos=True)


def _llama4(tokenizer: Tokenizer) -> PreTrainedConfig:
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
    text = sizes(
        tokenizer,
        num_hidden_layers=4,
        intermediate_size_mlp=96,
        head_dim=16,
        num_local_experts=4,
        attention_chunk_size=64,
    )
    ids = token_ids(tokenizer, image_token_index="<|patch|>", boi_token_index="<|image_start|>")
    return transformers.Llama4Config(vision_config=tower, text_config=text, **ids)


def _lfm2_tokenizer() -> Tokenizer:
    special = ["<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    special += ["<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"]
    special += [f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5)]
    named = {"bos_token": "<|startoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    extra = {
        "image_token": "<image>",
        "image_start_token": "<|image_start|>",
        "image_end_token": "<|image_end|>",
        "image_thumbnail": "<|img_thumbnail|>",
    }
    return byte_level(special, named=named, extra=extra)


def _lfm2_vl(tokenizer: Tokenizer) -> PreTrainedConfig:
    text = sizes(
        tokenizer,
        model_type="lfm2",
        num_hidden_layers=4,
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        block_ff_dim=96,
        block_auto_adjust_ff_dim=False,
    )
    tower = {**TOWER, "patch_size": 7, "num_patches": 16, "vision_use_head": False}
    return transformers.Lfm2VlConfig(
        vision_config={**tower, "model_type": "siglip2_vision_model"},
        text_config=text,
        image_token_id=tokenizer.image_token_id,
        projector_hidden_size=64,
        tie_word_embeddings=False,
    )


def cohere2_tokenizer(*others: str) -> Tokenizer:
    """Return a tokenizer with the special tokens of Cohere's vision models, and with others."""
    special = ["<PAD>", "<UNK>", "<BOS_TOKEN>", "<EOS_TOKEN>", "<|START_OF_TURN_TOKEN|>"]
    special += ["<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"]
    special += ["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>"]
    special += ["<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", *others]
    named = {
        "bos_token": "<BOS_TOKEN>",
        "eos_token": "<|END_OF_TURN_TOKEN|>",
        "pad_token": "<PAD>",
    }
    extra = {
        "boi_token": "<|START_OF_IMG|>",
        "eoi_token": "<|END_OF_IMG|>",
        "image_token": "<|IMG_PATCH|>",
        "img_line_break_token": "<|IMG_LINE_BREAK|>",
    }
    return byte_level(special, named=named, extra=extra, adds_bos=True)


def _cohere2_vision(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.Cohere2VisionConfig(
        vision_config={**SIGLIP, "image_size": 56},
        text_config=sizes(tokenizer, model_type="cohere2", sliding_window=8),
        image_token_id=tokenizer.image_token_id,
        downsample_factor=2,
        alignment_intermediate_size=64,
    )


def gemma4_tokenizer() -> Tokenizer:
    """Return a tokenizer with Gemma 4's special tokens."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|image|>", "<|image>"]
    special += ["<image|>", "<|audio|>", "<|audio>", "<audio|>", "<|video|>"]
    extra = {
        "image_token": "<|image|>",
        "boi_token": "<|image>",
        "eoi_token": "<image|>",
        "audio_token": "<|audio|>",
        "boa_token": "<|audio>",
        "eoa_token": "<audio|>",
    }
    return gemma(special, named=GEMMA, extra=extra)


def _gemma4_unified(tokenizer: Tokenizer) -> PreTrainedConfig:
    text = sizes(
        tokenizer,
        num_hidden_layers=4,
        head_dim=16,
        global_head_dim=16,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    ids = token_ids(
        tokenizer,
        image_token_id="<|image|>",
        boi_token_id="<|image>",
        eoi_token_id="<image|>",
        audio_token_id="<|audio|>",
        boa_token_id="<|audio>",
        eoa_token_index="<audio|>",
        video_token_id="<|video|>",
    )
    return transformers.Gemma4UnifiedConfig(
        vision_config={
            "patch_size": 7,
            "pooling_kernel_size": 2,
            "mm_embed_dim": 64,
            "mm_posemb_size": 80,
            "output_proj_dims": 64,
            "initializer_range": 0.3,
        },
        text_config=text,
        audio_config=None,
        tie_word_embeddings=False,
        **ids,
    )


def _molmo2_tokenizer() -> Tokenizer:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<im_start>", "<im_end>"]
    special += ["<im_patch>", "<im_col>", "<low_res_im_start>", "<|image|>", "<im_low>"]
    special += ["<frame_start>", "<frame_end>", "<|video|>"]
    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return byte_level(special, named=named)


def _molmo2(tokenizer: Tokenizer) -> PreTrainedConfig:
    ids = token_ids(
        tokenizer,
        image_start_token_id="<im_start>",
        low_res_image_start_token_id="<low_res_im_start>",
        image_end_token_id="<im_end>",
        image_patch_id="<im_patch>",
        frame_start_token_id="<frame_start>",
        frame_end_token_id="<frame_end>",
    )
    return transformers.Molmo2Config(
        text_config=sizes(tokenizer, head_dim=16),
        vision_config={
            **TOWER,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 7,
            "image_size": [28, 28],
            "num_hidden_layers": 3,
        },
        adapter_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "text_hidden_size": 64,
            "vision_feature_layer": [-1, -2],
            "initializer_range": 0.3,
        },
        **ids,
    )


def _kimi_tokenizer() -> Tokenizer:
    special = ["[BOS]", "[EOS]", "[PAD]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>"]
    special += ["<|im_system|>", "<|im_middle|>", "<|media_begin|>", "<|media_content|>"]
    special += ["<|media_end|>", "<|media_pad|>", "<|kimi_k25_video_placeholder|>"]
    named = {"bos_token": "[BOS]", "eos_token": "<|im_end|>", "pad_token": "[PAD]"}
    return byte_level(special, named=named)


def _kimi_k25(tokenizer: Tokenizer) -> PreTrainedConfig:
    text = sizes(
        tokenizer,
        model_type="deepseek_v3",
        num_key_value_heads=4,
        moe_intermediate_size=48,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=16,
        q_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
    )
    ids = token_ids(
        tokenizer,
        image_token_id="<|media_pad|>",
        video_token_id="<|kimi_k25_video_placeholder|>",
        vision_start_token_id="<|media_begin|>",
        vision_end_token_id="<|media_end|>",
    )
    return transformers.Kimi_K25Config(
        vision_config={
            **TOWER,
            "patch_size": 7,
            "pos_emb_height": 8,
            "pos_emb_width": 8,
        },
        text_config=text,
        projection_hidden_size=32,
        tie_word_embeddings=False,
        **ids,
    )


def _muse_tokenizer() -> Tokenizer:
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|header_start|>", "<|header_end|>"]
    special += ["<|eot|>", "<|image_start|>", "<|image_end|>", "<|patch|>", "<|video|>"]
    special += ["<|vid_start|>", "<|vid_end|>", "<|vid_frame_separator|>", "<|pad|>"]
    named = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot|>", "pad_token": "<|pad|>"}
    return byte_level(special, named=named, adds_bos=True)


def _muse_glimmer(tokenizer: Tokenizer) -> PreTrainedConfig:
    tower = {"pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16}
    return transformers.MuseGlimmerConfig(
        vision_config={**TOWER, **tower, "patch_size": 7, "num_hidden_layers": 4},
        text_config=sizes(tokenizer, num_hidden_layers=4, head_dim=16, sliding_window=8),
        out_hidden_size=128,
        projector_hidden_size=64,
        **token_ids(tokenizer, image_token_id="<|patch|>", video_token_id="<|video|>"),
    )


_IM_END = ("<|im_end|>",)
MORE: dict[str, Family] = {
    "llama4": Family(
        _llama4_tokenizer,
        _llama4,
        template.LLAMA4,
        ("<|eot|>", "<|end_of_text|>"),
        VisionSide(
            "Llama4ImageProcessor",
            {"size": SQUARE_28, "max_patches": 4},
            "Llama4Processor",
            "<|image|>",
            {"patch_size": 7},
        ),
    ),
    "lfm2_vl": Family(
        _lfm2_tokenizer,
        _lfm2_vl,
        template.LFM2,
        _IM_END,
        VisionSide(
            "Lfm2VlImageProcessor",
            {
                "size": SQUARE_28,
                "encoder_patch_size": 7,
                "tile_size": 28,
                "max_tiles": 4,
                "min_image_tokens": 2,
                "max_image_tokens": 9,
            },
            "Lfm2VlProcessor",
            "<image>",
        ),
    ),
    "cohere2_vision": Family(
        cohere2_tokenizer,
        _cohere2_vision,
        template.COHERE2,
        ("<|END_OF_TURN_TOKEN|>",),
        VisionSide(
            "Cohere2VisionImageProcessor",
            {"size": {"height": 56, "width": 56}, "max_patches": 3, "patch_size": 2},
            "Cohere2VisionProcessor",
            "<|IMG_PATCH|>",
        ),
    ),
    "gemma4_unified": Family(
        gemma4_tokenizer,
        _gemma4_unified,
        template.GEMMA4,
        ("<eos>", "<turn|>"),
        VisionSide(
            "Gemma4UnifiedImageProcessor",
            {"patch_size": 7, "pooling_kernel_size": 2, "max_soft_tokens": 70},
            "Gemma4UnifiedProcessor",
            "<|image|>",
        ),
    ),
    "molmo2": Family(
        _molmo2_tokenizer,
        _molmo2,
        template.MOLMO2,
        _IM_END,
        VisionSide(
            "Molmo2ImageProcessor",
            {
                "size": SQUARE_28,
                "max_crops": 3,
                "overlap_margins": [1, 1],
                "patch_size": 7,
            },
            "Molmo2Processor",
            "<|image|>",
        ),
    ),
    "kimi_k25": Family(
        _kimi_tokenizer,
        _kimi_k25,
        template.KIMI,
        _IM_END,
        VisionSide(
            "Kimi_K25ImageProcessor",
            {"patch_size": 7, "max_patches": 60, "size": {"max_height": 12, "max_width": 12}},
            "Kimi_K25Processor",
            "<|media_pad|>",
        ),
    ),
    "muse_glimmer": Family(
        _muse_tokenizer,
        _muse_glimmer,
        template.MUSE,
        ("<|eot|>",),
        VisionSide(
            "MuseGlimmerImageProcessor",
            {"patch_size": 7, "max_image_tokens": 12},
            "MuseGlimmerProcessor",
            "<|patch|>",
        ),
    ),
}
