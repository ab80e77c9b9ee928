"""Vision families that only some engines support, or none: timm towers, unusual layouts."""

import transformers
from transformers import PreTrainedConfig

from zoo.family import Family, VisionSide
from zoo.others import Tokenizer, family, text_sizes


def _fast_vlm(tokenizer: Tokenizer) -> PreTrainedConfig:
    tower = {
        "model_type": "timm_wrapper",
        "architecture": "fastvit_mci3",
        "hidden_size": 64,
        "model_args": {
            "inference_mode": True,
            "layers": [1, 1, 1, 1, 1],
            "embed_dims": [8, 8, 8, 32, 32],
        },
    }
    return transformers.FastVlmConfig(
        vision_config=tower,
        text_config=text_sizes(tokenizer, "qwen2"),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=4,
    )


def _perception_lm(tokenizer: Tokenizer) -> PreTrainedConfig:
    tower = {
        "model_type": "timm_wrapper",
        "architecture": "vit_pe_lang_large_patch14_448",
        "model_args": {
            "img_size": [28, 28],
            "patch_size": 7,
            "embed_dim": 32,
            "depth": 2,
            "num_heads": 2,
            "ref_feat_shape": [4, 4],
        },
    }
    return transformers.PerceptionLMConfig(
        vision_config={**tower, "num_features": 32},
        text_config=text_sizes(tokenizer, "llama"),
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
        projector_pooling_ratio=2,
        tie_word_embeddings=False,
    )


def _fuyu(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.FuyuConfig(
        text_config=text_sizes(tokenizer, "persimmon"),
        image_size=56,
        patch_size=14,
        image_token_id=tokenizer.convert_tokens_to_ids("|SPEAKER|"),
    )


UNKNOWN: dict[str, Family] = {
    "fuyu": family(
        ("|SPEAKER|", "|NEWLINE|", "<0x04>"),
        _fuyu,
        VisionSide(
            "FuyuImageProcessorPil",
            {"size": {"height": 56, "width": 56}, "patch_size": {"height": 14, "width": 14}},
            "FuyuProcessor",
            "|SPEAKER|",
        ),
    ),
}
"""Families whose pictures cannot be shown: their processor writes behind a text, too."""

PERCEPTION = {"image_token": "<|image|>", "video_token": "<|video|>"}
TIMM: dict[str, Family] = {
    "fast_vlm": family(
        ("<image>",),
        _fast_vlm,
        VisionSide(
            "CLIPImageProcessorPil",
            {"size": {"shortest_edge": 128}, "crop_size": {"height": 128, "width": 128}},
            "LlavaProcessor",
            "<image>",
            {
                "patch_size": 64,
                "vision_feature_select_strategy": "full",
                "num_additional_image_tokens": 0,
            },
        ),
    ),
    "perception_lm": family(
        tuple(PERCEPTION.values()),
        _perception_lm,
        VisionSide(
            "PerceptionLMImageProcessor",
            {"tile_size": 28, "max_num_tiles": 4, "vision_input_type": "thumb+tile"},
            "PerceptionLMProcessor",
            "<|image|>",
            {"patch_size": 7},
        ),
        PERCEPTION,
    ),
}
"""Families whose tower is one of timm's, which needs torchvision."""
