"""The vision families.

Image sizes are a few patches, so that one image is 4 to 40 tokens; window, tile and merge sizes
are small enough that every mechanism of the family takes part.
"""

from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from zoo import template
from zoo.family import Family, VisionSide
from zoo.text import ALTERNATING, GEMMA, GEMMA_SPECIAL, SENTENCEPIECE, THINK, glm, sizes
from zoo.tokenizer import byte_level, gemma, sentencepiece

TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.3,
}
CLIP = {
    **TOWER,
    "model_type": "clip_vision_model",
    "image_size": 28,
    "patch_size": 14,
    "projection_dim": 32,
    "initializer_factor": 5.0,
}
SIGLIP = {
    **TOWER,
    "model_type": "siglip_vision_model",
    "image_size": 28,
    "patch_size": 14,
    "vision_use_head": False,
}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
SQUARE_28 = {"height": 28, "width": 28}
CLIP_IMAGE = {"size": {"shortest_edge": 28}, "crop_size": SQUARE_28}
TILES = [[28, 56], [56, 28], [56, 56]]
QWEN_IMAGE = {"min_pixels": 28 * 28, "max_pixels": 84 * 84, "patch_size": 14, "merge_size": 2}

Tokenizer = PreTrainedTokenizerFast


def _text(tokenizer: Tokenizer, model_type: str, **more: Any) -> dict[str, Any]:
    return {"model_type": model_type, **sizes(tokenizer, **more)}


def _llama2_tokenizer() -> Tokenizer:
    special = ["<unk>", "<s>", "</s>", "<pad>", "<image>"]
    named = {**SENTENCEPIECE, "pad_token": "<pad>"}
    extra = {"image_token": "<image>"}
    return sentencepiece(special, named=named, extra=extra, is_legacy=False)


def _llava(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.LlavaConfig(
        vision_config=CLIP,
        text_config=_text(tokenizer, "llama"),
        image_token_index=tokenizer.image_token_id,
        image_seq_length=4,
    )


def _llava_next(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.LlavaNextConfig(
        vision_config=CLIP,
        text_config=_text(tokenizer, "mistral", sliding_window=None),
        image_token_index=tokenizer.image_token_id,
        image_grid_pinpoints=TILES,
    )


def _idefics_tokenizer(first: list[str], bos: str) -> Tokenizer:
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    special = [*first, "<fake_token_around_image>", "<image>", "<end_of_utterance>"]
    special += ["<global-img>", *rows]
    named = {"bos_token": bos, "eos_token": "<end_of_utterance>", "pad_token": first[-1]}
    return byte_level(special, named=named, adds_bos=bos == "<|begin_of_text|>")


def _idefics3_tokenizer() -> Tokenizer:
    return _idefics_tokenizer(["<|begin_of_text|>", "<|end_of_text|>"], "<|begin_of_text|>")


def _smolvlm_tokenizer() -> Tokenizer:
    return _idefics_tokenizer(["<|im_start|>", "<|im_end|>"], "<|im_start|>")


def _idefics(config: str) -> Any:
    def make(tokenizer: Tokenizer) -> PreTrainedConfig:
        return getattr(transformers, config)(
            vision_config={**TOWER, "image_size": 28, "patch_size": 7},
            text_config=_text(tokenizer, "llama"),
            image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
            scale_factor=2,
        )

    return make


_IDEFICS_IMAGE = {
    "size": {"longest_edge": 56},
    "max_image_size": {"longest_edge": 28},
    "do_image_splitting": True,
}


def _qwen_tokenizer() -> Tokenizer:
    special = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|object_ref_start|>",
        "<|object_ref_end|>",
        "<|box_start|>",
        "<|box_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
    ]
    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return byte_level(special, named=named, plain=THINK)


def _qwen_ids(tokenizer: Tokenizer) -> dict[str, int]:
    ids = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return {name: tokenizer.convert_tokens_to_ids(token) for name, token in ids.items()}


def _qwen2_vl(tokenizer: Tokenizer) -> PreTrainedConfig:
    tower = {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 64,
        "num_heads": 2,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "mlp_ratio": 2,
        "initializer_range": 0.3,
    }
    text = sizes(tokenizer, rope_parameters=MROPE)
    return transformers.Qwen2VLConfig(text_config=text, vision_config=tower, **_qwen_ids(tokenizer))


_QWEN_TOWER = {
    "hidden_size": 32,
    "out_hidden_size": 64,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "initializer_range": 0.3,
}


def _qwen2_5_vl(tokenizer: Tokenizer) -> PreTrainedConfig:
    tower = {**_QWEN_TOWER, "depth": 2, "window_size": 56, "fullatt_block_indexes": [1]}
    text = sizes(tokenizer, rope_parameters=MROPE)
    return transformers.Qwen2_5_VLConfig(
        text_config=text, vision_config=tower, **_qwen_ids(tokenizer)
    )


def _qwen3_vl(tokenizer: Tokenizer) -> PreTrainedConfig:
    tower = {**_QWEN_TOWER, "depth": 4, "num_position_embeddings": 16}
    tower["deepstack_visual_indexes"] = [0, 1, 2]
    text = sizes(tokenizer, rope_parameters=MROPE, head_dim=16, num_hidden_layers=4)
    return transformers.Qwen3VLConfig(text_config=text, vision_config=tower, **_qwen_ids(tokenizer))


def _gemma3_tokenizer() -> Tokenizer:
    special = [*GEMMA_SPECIAL, "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
    extra = {
        "image_token": "<image_soft_token>",
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
    }
    return gemma(special, named=GEMMA, extra=extra, plain=("\n\n", "<table>"))


def _gemma3(tokenizer: Tokenizer) -> PreTrainedConfig:
    text = _text(
        tokenizer,
        "gemma3_text",
        head_dim=32,
        num_hidden_layers=4,
        sliding_window=8,
        query_pre_attn_scalar=32,
        layer_types=ALTERNATING,
    )
    return transformers.Gemma3Config(
        text_config=text,
        vision_config={**SIGLIP, "image_size": 56},
        mm_tokens_per_image=4,
        image_token_index=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        tie_word_embeddings=False,
    )


def _mistral3_tokenizer() -> Tokenizer:
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]"]
    special += ["[/AVAILABLE_TOOLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"]
    special += ["[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
    named = {**SENTENCEPIECE, "pad_token": "<pad>"}
    return byte_level(special, named=named, adds_bos=True)


def _mistral3(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.Mistral3Config(
        vision_config={**TOWER, "model_type": "pixtral", "image_size": 84, "patch_size": 14},
        text_config=_text(tokenizer, "mistral", sliding_window=None, head_dim=16),
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )


def _internvl_tokenizer() -> Tokenizer:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>"]
    special += ["<quad>", "</quad>", "<ref>", "</ref>", "<box>", "</box>", "<video>"]
    extra = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return byte_level(special, named=named, extra=extra, plain=THINK)


def _internvl(tokenizer: Tokenizer) -> PreTrainedConfig:
    return transformers.InternVLConfig(
        vision_config={**TOWER, "image_size": [28, 28], "patch_size": [7, 7]},
        text_config=_text(tokenizer, "qwen2"),
        image_token_id=tokenizer.context_image_token_id,
        image_seq_length=4,
    )


def _paligemma_tokenizer() -> Tokenizer:
    places = [f"<loc{place:04d}>" for place in range(1024)]
    places += [f"<seg{code:03d}>" for code in range(128)]
    special = [*GEMMA_SPECIAL[:4], "<image>"]
    extra = {"image_token": "<image>"}
    return gemma(special, named=GEMMA, extra=extra, plain=places)


def _paligemma(tokenizer: Tokenizer) -> PreTrainedConfig:
    text = _text(
        tokenizer,
        "gemma2",
        head_dim=32,
        num_hidden_layers=4,
        sliding_window=8,
        query_pre_attn_scalar=32,
        vocab_size=len(tokenizer),
    )
    return transformers.PaliGemmaConfig(
        vision_config={**SIGLIP, "projection_dim": 64},
        text_config=text,
        image_token_index=tokenizer.image_token_id,
        projection_dim=64,
        hidden_size=64,
        vocab_size=len(tokenizer),
        tie_word_embeddings=False,
    )


def _glm4v(tokenizer: Tokenizer) -> PreTrainedConfig:
    rope = {**MROPE, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
    ids = {
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
        "image_start_token_id": "<|begin_of_image|>",
        "image_end_token_id": "<|end_of_image|>",
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
    }
    return transformers.Glm4vConfig(
        text_config=sizes(tokenizer, rope_parameters=rope),
        vision_config={**_QWEN_TOWER, "depth": 2, "image_size": 56},
        **{name: tokenizer.convert_tokens_to_ids(token) for name, token in ids.items()},
    )


_CLIP_TOKENS = {
    "patch_size": 14,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
}
_IM_END = ("<|im_end|>", "<|endoftext|>")
_QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
_AREA_IMAGE = {
    "size": {"shortest_edge": 28 * 28, "longest_edge": 84 * 84},
    "patch_size": 14,
    "merge_size": 2,
}

VISION: dict[str, Family] = {
    "llava": Family(
        _llama2_tokenizer,
        _llava,
        template.LLAVA,
        ("</s>",),
        VisionSide("CLIPImageProcessorPil", CLIP_IMAGE, "LlavaProcessor", "<image>", _CLIP_TOKENS),
    ),
    "llava_next": Family(
        _llama2_tokenizer,
        _llava_next,
        template.LLAVA_NEXT,
        ("</s>",),
        VisionSide(
            "LlavaNextImageProcessorPil",
            {**CLIP_IMAGE, "image_grid_pinpoints": TILES},
            "LlavaNextProcessor",
            "<image>",
            _CLIP_TOKENS,
        ),
    ),
    "idefics3": Family(
        _idefics3_tokenizer,
        _idefics("Idefics3Config"),
        template.IDEFICS3,
        ("<end_of_utterance>",),
        VisionSide(
            "Idefics3ImageProcessorPil",
            _IDEFICS_IMAGE,
            "Idefics3Processor",
            "<image>",
            {"image_seq_len": 4},
        ),
    ),
    "smolvlm": Family(
        _smolvlm_tokenizer,
        _idefics("SmolVLMConfig"),
        template.SMOLVLM,
        ("<end_of_utterance>",),
        VisionSide(
            "SmolVLMImageProcessorPil",
            _IDEFICS_IMAGE,
            "SmolVLMProcessor",
            "<image>",
            {"image_seq_len": 4},
        ),
    ),
    "qwen2_vl": Family(
        _qwen_tokenizer,
        _qwen2_vl,
        template.QWEN_VL,
        _IM_END,
        VisionSide("Qwen2VLImageProcessorPil", QWEN_IMAGE, "Qwen2VLProcessor", _QWEN),
    ),
    "qwen2_5_vl": Family(
        _qwen_tokenizer,
        _qwen2_5_vl,
        template.QWEN_VL,
        _IM_END,
        VisionSide("Qwen2VLImageProcessorPil", QWEN_IMAGE, "Qwen2_5_VLProcessor", _QWEN),
    ),
    "qwen3_vl": Family(
        _qwen_tokenizer,
        _qwen3_vl,
        template.QWEN3_VL,
        _IM_END,
        VisionSide("Qwen2VLImageProcessorPil", _AREA_IMAGE, "Qwen3VLProcessor", _QWEN),
    ),
    "gemma3": Family(
        _gemma3_tokenizer,
        _gemma3,
        template.GEMMA3,
        ("<eos>", "<end_of_turn>"),
        VisionSide(
            "Gemma3ImageProcessorPil",
            {"size": {"height": 56, "width": 56}},
            "Gemma3Processor",
            "<start_of_image>",
            {"image_seq_length": 4},
        ),
    ),
    "mistral3": Family(
        _mistral3_tokenizer,
        _mistral3,
        template.MISTRAL3,
        ("</s>",),
        VisionSide(
            "PixtralImageProcessorPil",
            {"size": {"longest_edge": 84}, "patch_size": {"height": 14, "width": 14}},
            "PixtralProcessor",
            "[IMG]",
            {"patch_size": 14, "spatial_merge_size": 2},
        ),
    ),
    "internvl": Family(
        _internvl_tokenizer,
        _internvl,
        template.INTERNVL,
        _IM_END,
        VisionSide(
            "GotOcr2ImageProcessorPil",
            {"size": SQUARE_28, "min_patches": 1, "max_patches": 3, "crop_to_patches": True},
            "InternVLProcessor",
            "<IMG_CONTEXT>",
            {"image_seq_length": 4},
        ),
    ),
    "paligemma": Family(
        _paligemma_tokenizer,
        _paligemma,
        None,
        ("<eos>",),
        VisionSide(
            "SiglipImageProcessorPil",
            {"size": SQUARE_28, "image_seq_length": 4},
            "PaliGemmaProcessor",
            "<image>",
        ),
    ),
    "glm4v": Family(
        glm,
        _glm4v,
        template.GLM4V,
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
        VisionSide(
            "Glm4vImageProcessorPil",
            {
                "size": {"shortest_edge": 28 * 28, "longest_edge": 2 * 84 * 84},
                "patch_size": 14,
                "merge_size": 2,
            },
            "Glm4vProcessor",
            "<|begin_of_image|><|image|><|end_of_image|>",
        ),
    ),
}
