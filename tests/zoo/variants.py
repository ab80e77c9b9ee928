"""Vision families that differ from those of :mod:`.vision` only in tower or projector."""

from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from zoo import template
from zoo.family import Family, VisionSide
from zoo.more import cohere2_tokenizer, gemma4_tokenizer, token_ids
from zoo.text import ALTERNATING, SENTENCEPIECE, glm, sizes
from zoo.tokenizer import byte_level, sentencepiece
from zoo.vision import CLIP, CLIP_IMAGE, MROPE, QWEN_IMAGE, SIGLIP, TILES, TOWER

Tokenizer = PreTrainedTokenizerFast


def _glm_ocr(tokenizer: Tokenizer) -> PreTrainedConfig:
    rope = {**MROPE, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
    ids = token_ids(
        tokenizer,
        image_token_id="<|image|>",
        video_token_id="<|video|>",
        image_start_token_id="<|begin_of_image|>",
        image_end_token_id="<|end_of_image|>",
        video_start_token_id="<|begin_of_video|>",
        video_end_token_id="<|end_of_video|>",
    )
    return transformers.GlmOcrConfig(
        text_config=sizes(tokenizer, rope_parameters=rope),
        vision_config={**_GRID_TOWER, "depth": 2, "out_hidden_size": 64, "image_size": 56},
        **ids,
    )


_GRID_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "initializer_range": 0.3,
}


def _paddleocr_tokenizer() -> Tokenizer:
    special = ["<unk>", "<s>", "</s>", "<|begin_of_sentence|>", "<|end_of_sentence|>"]
    special += ["<|IMAGE_START|>", "<|IMAGE_END|>", "<|IMAGE_PLACEHOLDER|>", "<|video_pad|>"]
    extra = {"image_token": "<|IMAGE_PLACEHOLDER|>"}
    named = {**SENTENCEPIECE, "pad_token": "<unk>"}
    return sentencepiece(special, named=named, extra=extra, adds_bos=False, is_legacy=False)


def _paddleocr(tokenizer: Tokenizer) -> PreTrainedConfig:
    ids = token_ids(
        tokenizer,
        image_token_id="<|IMAGE_PLACEHOLDER|>",
        video_token_id="<|video_pad|>",
        vision_start_token_id="<|IMAGE_START|>",
        vision_end_token_id="<|IMAGE_END|>",
    )
    return transformers.PaddleOCRVLConfig(
        text_config=sizes(tokenizer, rope_parameters=MROPE, head_dim=16),
        vision_config={**TOWER, "image_size": 56, "patch_size": 14, "spatial_merge_size": 2},
        tie_word_embeddings=False,
        **ids,
    )


def _exaone_tokenizer() -> Tokenizer:
    special = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", "[|system|]", "[|user|]", "[|assistant|]"]
    special += ["[|endofturn|]", "<|image_pad|>", "<|video_pad|>", "<vision>", "</vision>"]
    named = {"bos_token": "[BOS]", "eos_token": "[|endofturn|]", "pad_token": "[PAD]"}
    return byte_level(special, named=named)


def _exaone(tokenizer: Tokenizer) -> PreTrainedConfig:
    text = sizes(
        tokenizer,
        model_type="exaone4",
        num_hidden_layers=4,
        sliding_window=8,
        layer_types=ALTERNATING,
    )
    tower = {
        **_GRID_TOWER,
        "depth": 2,
        "num_heads": 4,
        "num_key_value_heads": 2,
        "out_hidden_size": 64,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    ids = token_ids(tokenizer, image_token_id="<|image_pad|>", video_token_id="<|video_pad|>")
    return transformers.Exaone4_5_Config(text_config=text, vision_config=tower, **ids)


def _llava_tokenizer() -> Tokenizer:
    special = ["<unk>", "<s>", "</s>", "<pad>", "<image>", "<video>"]
    named = {**SENTENCEPIECE, "pad_token": "<pad>"}
    extra = {"image_token": "<image>", "video_token": "<video>"}
    return sentencepiece(special, named=named, extra=extra, is_legacy=False)


def _vipllava(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.VipLlavaConfig(
        vision_config={**CLIP, "num_hidden_layers": 3},
        text_config=sizes(tokenizer, model_type="llama"),
        vision_feature_layer=[-2, -1, 1],
        image_token_index=tokenizer.image_token_id,
        image_seq_length=4,
    )


def _llava_next_video(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.LlavaNextVideoConfig(
        vision_config=CLIP,
        text_config=sizes(tokenizer, model_type="llama"),
        image_grid_pinpoints=TILES,
        image_seq_length=4,
        **token_ids(tokenizer, image_token_index="<image>", video_token_index="<video>"),
    )


def _granite4_vision(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.Granite4VisionConfig(
        vision_config={
            **SIGLIP,
            "image_size": 56,
            "hidden_size": 64,
            "intermediate_size": 64,
        },
        text_config=sizes(
            tokenizer, num_hidden_layers=3, embedding_multiplier=3.0, logits_scaling=2.0
        ),
        image_token_index=tokenizer.image_token_id,
        image_grid_pinpoints=_GRANITE_TILES,
        downsample_rate="1/2",
        deepstack_layer_map=[[-2, 0]],
        spatial_target_layers=[1, 1, 2, 2],
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


_GRANITE_TILES = [[56, 112], [112, 56], [112, 112]]


def _aya_tokenizer() -> Tokenizer:
    return cohere2_tokenizer("<image>", "TILE", "TILE_GLOBAL")


def _aya_vision(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.AyaVisionConfig(
        vision_config=SIGLIP | {"image_size": 56},
        text_config=sizes(tokenizer, model_type="cohere2", sliding_window=8),
        downsample_factor=2,
        alignment_intermediate_size=64,
        tie_word_embeddings=False,
        **token_ids(tokenizer, image_token_index="<|IMG_PATCH|>"),
    )


def _gemma4(**more: Any) -> Any:
    def make(tokenizer: Tokenizer) -> PreTrainedConfig:
        text = sizes(
            tokenizer,
            num_hidden_layers=2,
            head_dim=16,
            global_head_dim=32,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
            hidden_size_per_layer_input=0,
            **more,
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
        tower = {
            **TOWER,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 7,
            "pooling_kernel_size": 2,
            "position_embedding_size": 80,
        }
        return transformers.Gemma4Config(
            vision_config=tower,
            text_config=text,
            audio_config=None,
            tie_word_embeddings=False,
            **ids,
        )

    return make


_CLIP_TOKENS = {
    "patch_size": 14,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
}
VARIANTS: dict[str, Family] = {
    "glm_ocr": Family(
        glm,
        _glm_ocr,
        template.GLM4V,
        ("<|endoftext|>", "<|user|>"),
        VisionSide(
            "Glm46VImageProcessorPil",
            {
                "size": {"shortest_edge": 28 * 28, "longest_edge": 2 * 84 * 84},
                "patch_size": 14,
                "merge_size": 2,
            },
            "Glm46VProcessor",
            "<|begin_of_image|><|image|><|end_of_image|>",
        ),
    ),
    "paddleocr_vl": Family(
        _paddleocr_tokenizer,
        _paddleocr,
        template.PADDLEOCR,
        ("</s>",),
        VisionSide(
            "PaddleOCRVLImageProcessorPil",
            QWEN_IMAGE,
            "PaddleOCRVLProcessor",
            "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
        ),
    ),
    "exaone4_5": Family(
        _exaone_tokenizer,
        _exaone,
        template.EXAONE,
        ("[|endofturn|]",),
        VisionSide(
            "Qwen2VLImageProcessorPil",
            QWEN_IMAGE,
            "Exaone4_5_Processor",
            "<vision><|image_pad|></vision>",
        ),
    ),
    "vipllava": Family(
        _llava_tokenizer,
        _vipllava,
        template.LLAVA,
        ("</s>",),
        VisionSide("CLIPImageProcessorPil", CLIP_IMAGE, "LlavaProcessor", "<image>", _CLIP_TOKENS),
    ),
    "llava_next_video": Family(
        _llava_tokenizer,
        _llava_next_video,
        template.LLAVA,
        ("</s>",),
        VisionSide(
            "LlavaNextImageProcessorPil",
            {**CLIP_IMAGE, "image_grid_pinpoints": TILES},
            "LlavaNextVideoProcessor",
            "<image>",
            _CLIP_TOKENS,
        ),
    ),
    "granite4_vision": Family(
        _llava_tokenizer,
        _granite4_vision,
        template.LLAVA,
        ("</s>",),
        VisionSide(
            "LlavaNextImageProcessorPil",
            {
                "size": {"shortest_edge": 56},
                "crop_size": {"height": 56, "width": 56},
                "image_grid_pinpoints": _GRANITE_TILES,
            },
            "Granite4VisionProcessor",
            "<image>",
            {"patch_size": 14, "vision_feature_select_strategy": "full", "downsample_rate": "1/2"},
        ),
    ),
    "aya_vision": Family(
        _aya_tokenizer,
        _aya_vision,
        template.COHERE2.replace("<|IMG_PATCH|>", "<image>"),
        ("<|END_OF_TURN_TOKEN|>",),
        VisionSide(
            "GotOcr2ImageProcessorPil",
            {"size": {"height": 56, "width": 56}, "min_patches": 1, "max_patches": 3},
            "AyaVisionProcessor",
            "<image>",
            {"patch_size": 14, "img_size": 56, "downsample_factor": 2},
        ),
    ),
    "gemma4": Family(
        gemma4_tokenizer,
        _gemma4(use_bidirectional_attention="vision"),
        template.GEMMA4,
        ("<eos>", "<turn|>"),
        VisionSide(
            "Gemma4ImageProcessorPil",
            {"patch_size": 7, "pooling_kernel_size": 2, "max_soft_tokens": 70},
            "Gemma4Processor",
            "<|image|>",
        ),
    ),
}
