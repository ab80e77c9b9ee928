"""Vision families with audio or speech, or with their own way to merge image features.

Families with speech output occur in two forms: the thinker alone, which is a checkpoint of its own,
and the whole model that contains it.
"""

from collections.abc import Callable
from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from zoo import template
from zoo.family import Family, VisionSide
from zoo.text import CHATML, GEMMA, GEMMA_SPECIAL, SENTENCEPIECE, THINK, sizes
from zoo.tokenizer import byte_level, gemma, sentencepiece
from zoo.vision import MROPE, QWEN_IMAGE, SQUARE_28, TOWER

Tokenizer = PreTrainedTokenizerFast

_IM_END = ("<|im_end|>", "<|endoftext|>")
_IMAGE = "<|vision_bos|><|IMAGE|><|vision_eos|>"
_GEMMA3N_IDS = ("image", "boi", "eoi", "audio", "boa", "eoa")
_SPEECH = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32}


def _ids(tokenizer: Tokenizer, **tokens: str) -> dict[str, int]:
    return {name: tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()}


def _omni_tokenizer() -> Tokenizer:
    extra = {
        "image_token": "<|IMAGE|>",
        "audio_token": "<|AUDIO|>",
        "video_token": "<|VIDEO|>",
        "vision_bos_token": "<|vision_bos|>",
        "vision_eos_token": "<|vision_eos|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
    }
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *extra.values()]
    named = {name: token for name, token in CHATML.items() if token}
    return byte_level(special, named=named, extra=extra, plain=THINK)


def _qwen2_5_omni_thinker(tokenizer: Tokenizer) -> PreTrainedConfig:
    tower = {
        **TOWER,
        "depth": 2,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "window_size": 56,
        "fullatt_block_indexes": [1],
    }
    ears = {
        "d_model": 32,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "num_mel_bins": 16,
        "output_dim": 64,
    }
    ids = _ids(
        tokenizer,
        image_token_index="<|IMAGE|>",
        audio_token_index="<|AUDIO|>",
        video_token_index="<|VIDEO|>",
        audio_start_token_id="<|audio_bos|>",
        audio_end_token_id="<|audio_eos|>",
    )
    return transformers.Qwen2_5OmniThinkerConfig(
        vision_config=tower,
        audio_config=ears,
        text_config=sizes(tokenizer, rope_parameters=MROPE),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_bos|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_eos|>"),
        **ids,
    )


def _qwen2_5_omni(tokenizer: Tokenizer) -> PreTrainedConfig:
    speaker = {**_SPEECH, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 32}
    talker = {**speaker, "embedding_size": 64, "vocab_size": 64, "rope_parameters": MROPE}
    flow = {**_SPEECH, "head_dim": 16, "emb_dim": 16, "enc_dim": 8, "enc_emb_dim": 8, "mel_dim": 8}
    flow |= {"enc_channels": [8, 8, 8, 8, 24], "enc_attention_channels": 4, "num_embeds": 9}
    flow |= {"enc_res2net_scale": 2, "look_ahead_layers": [], "look_backward_layers": [0]}
    voice = {"mel_dim": 8, "upsample_initial_channel": 64}
    return transformers.Qwen2_5OmniConfig(
        thinker_config=_qwen2_5_omni_thinker(tokenizer).to_dict(),
        talker_config=talker,
        token2wav_config={"dit_config": flow, "bigvgan_config": voice},
        enable_audio_output=True,
    )


def _qwen3_omni_thinker(tokenizer: Tokenizer) -> PreTrainedConfig:
    tower = {
        **TOWER,
        "depth": 4,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1, 2],
    }
    ears = {
        "d_model": 32,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "num_mel_bins": 16,
        "output_dim": 64,
        "downsample_hidden_size": 8,
    }
    ids = _ids(
        tokenizer,
        image_token_id="<|IMAGE|>",
        audio_token_id="<|AUDIO|>",
        video_token_id="<|VIDEO|>",
        audio_start_token_id="<|audio_bos|>",
        vision_start_token_id="<|vision_bos|>",
        vision_end_token_id="<|vision_eos|>",
    )
    text = sizes(
        tokenizer,
        rope_parameters=MROPE,
        head_dim=16,
        num_hidden_layers=4,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
    )
    return transformers.Qwen3OmniMoeThinkerConfig(
        vision_config=tower, audio_config=ears, text_config=text, **ids
    )


def _qwen3_omni(tokenizer: Tokenizer) -> PreTrainedConfig:
    speaker = {**_SPEECH, "num_key_value_heads": 2, "intermediate_size": 32, "vocab_size": 64}
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    experts["shared_expert_intermediate_size"] = 16
    return transformers.Qwen3OmniMoeConfig(
        thinker_config=_qwen3_omni_thinker(tokenizer).to_dict(),
        talker_config={
            "text_config": {**speaker, **experts, "rope_parameters": MROPE},
            "code_predictor_config": {**speaker, "head_dim": 16},
            "thinker_hidden_size": 64,
            "num_code_groups": 2,
            "spatial_merge_size": 2,
        },
        code2wav_config={
            **_SPEECH,
            "num_key_value_heads": 2,
            "intermediate_size": 32,
            "codebook_size": 8,
            "decoder_dim": 32,
            "num_quantizers": 2,
        },
        enable_audio_output=True,
    )


def _gemma3n_tokenizer() -> Tokenizer:
    special = [*GEMMA_SPECIAL, "<start_of_image>", "<start_of_audio>"]
    special += ["<end_of_image>", "<image_soft_token>", "<end_of_audio>", "<audio_soft_token>"]
    extra = {
        "image_token": "<image_soft_token>",
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "audio_token": "<audio_soft_token>",
        "boa_token": "<start_of_audio>",
        "eoa_token": "<end_of_audio>",
    }
    return gemma(special, named=GEMMA, extra=extra)


def _gemma3n(tokenizer: Tokenizer) -> PreTrainedConfig:
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in _GEMMA3N_IDS}
    num_words = ids["eoi_token_id"]  # image and audio tokens have their own embedding tables
    text = sizes(
        tokenizer,
        num_hidden_layers=6,
        head_dim=16,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"] * 3,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=num_words,
        laurel_rank=8,
        activation_sparsity_pattern=[0.5, 0.5, 0.0, 0.0, 0.0, 0.0],
    )
    ears = {
        "hidden_size": 32,
        "conf_num_attention_heads": 2,
        "conf_num_hidden_layers": 1,
        "input_feat_size": 16,
        "sscp_conv_channel_size": [4, 4],
        "vocab_size": text["vocab_size"] - ids["eoa_token_id"],
        "vocab_offset": ids["eoa_token_id"],
    }
    return transformers.Gemma3nConfig(
        vision_config={
            "architecture": "test_efficientnet",
            "hidden_size": 256,
            "vocab_size": 2,
            "vocab_offset": num_words,
        },
        audio_config=ears,
        text_config=text,
        vision_soft_tokens_per_image=4,
        **ids,
    )


def _phi4_tokenizer() -> Tokenizer:
    extra = {"image_token": "<|endoftext10|>", "audio_token": "<|endoftext11|>"}
    special = ["<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    named = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")
    return byte_level([*special, *extra.values()], named=named, extra=extra)


def _phi4_multimodal(tokenizer: Tokenizer) -> PreTrainedConfig:
    # As many patches as in real ones: the processor counts on 16 rows of 16 tokens.
    tower = {**TOWER, "image_size": 64, "crop_size": 64, "patch_size": 2}
    ears = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_blocks": 1,
        "num_attention_heads": 2,
        "ext_pw_out_channel": 32,
        "depthwise_separable_out_channel": 32,
        "nemo_conv_channels": 16,
    }
    return transformers.Phi4MultimodalConfig(
        **sizes(tokenizer, num_hidden_layers=2, max_position_embeddings=4096),
        vision_config={**tower, "image_token_id": tokenizer.image_token_id},
        audio_config={**ears, "audio_token_id": tokenizer.audio_token_id},
        original_max_position_embeddings=4096,
    )


def _janus_tokenizer() -> Tokenizer:
    special = ["<|begin_of_sentence|>", "<|end_of_sentence|>", "<|pad|>"]
    extra = {
        "image_token": "<image_placeholder>",
        "boi_token": "<begin_of_image>",
        "eoi_token": "<end_of_image>",
    }
    named = dict(zip(("bos_token", "eos_token", "pad_token"), special, strict=True))
    special += [*extra.values(), "<|User|>", "<|Assistant|>"]
    return byte_level(special, named=named, extra=extra, adds_bos=True)


def _janus(tokenizer: Tokenizer) -> PreTrainedConfig:
    tower = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "mlp_ratio": 2,
        "image_size": 28,
        "patch_size": 14,
        "projection_dim": 64,
        "num_image_tokens": 4,
    }
    painter = {
        "embed_dim": 8,
        "num_embeddings": 16,
        "latent_channels": 32,
        "base_channels": 32,
        "channel_multiplier": [1, 1],
        "num_res_blocks": 1,
        "projection_dim": 64,
        "image_token_embed_dim": 64,
    }
    return transformers.JanusConfig(
        vision_config=tower,
        vq_config=painter,
        text_config=sizes(tokenizer, model_type="llama"),
        image_token_id=tokenizer.image_token_id,
        tie_word_embeddings=False,
    )


def _got_tokenizer() -> Tokenizer:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<imgpad>"]
    named = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    return byte_level(special, named=named)


def _got_ocr2(tokenizer: Tokenizer) -> PreTrainedConfig:
    # As many patches as in real ones: the processor counts on 256 tokens.
    tower = {
        "hidden_size": 16,
        "output_channels": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 128,
        "patch_size": 2,
        "initializer_range": 0.3,
        "window_size": 8,
        "global_attn_indexes": [],
        "mlp_dim": 32,
    }
    return transformers.GotOcr2Config(
        vision_config=tower,
        text_config=sizes(tokenizer, model_type="qwen2"),
        image_token_index=tokenizer.convert_tokens_to_ids("<imgpad>"),
        image_seq_length=256,
        tie_word_embeddings=False,
    )


def _idefics2_tokenizer() -> Tokenizer:
    special = ["<unk>", "<s>", "</s>", "<fake_token_around_image>", "<image>"]
    special += ["<end_of_utterance>"]
    named = {**SENTENCEPIECE, "pad_token": "<unk>"}
    return sentencepiece(special, named=named)


def _idefics2(tokenizer: Tokenizer) -> PreTrainedConfig:
    resampler = {
        "hidden_size": 64,
        "resampler_n_latents": 4,
        "resampler_depth": 2,
        "resampler_n_heads": 2,
        "resampler_head_dim": 16,
        "num_key_value_heads": 1,
        "initializer_range": 0.3,
    }
    return transformers.Idefics2Config(
        vision_config={**TOWER, "image_size": 56, "patch_size": 14},
        perceiver_config=resampler,
        text_config=sizes(tokenizer, model_type="mistral", sliding_window=None),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )


def _idefics2_side(*, is_split: bool) -> VisionSide:
    settings = {"size": {"shortest_edge": 28, "longest_edge": 56}, "do_image_splitting": is_split}
    name = "Idefics2ImageProcessorPil"
    return VisionSide(name, settings, "Idefics2Processor", "<image>", {"image_seq_len": 4})


def _omni(config: Callable[[Tokenizer], Any], name: str, **classes: str) -> Family:
    side = VisionSide("Qwen2VLImageProcessorPil", QWEN_IMAGE, f"{name}Processor", _IMAGE)
    return Family(_omni_tokenizer, config, template.OMNI, _IM_END, side, **classes)


def _thinker(name: str) -> dict[str, str]:
    thinker = f"{name}ThinkerForConditionalGeneration"
    return {"whole": f"{name}ForConditionalGeneration", "answers": thinker}


_IDEFICS2 = (_idefics2_tokenizer, _idefics2, template.IDEFICS2, ("</s>", "<end_of_utterance>"))
THINKERS: dict[str, Family] = {
    "qwen2_5_omni_thinker": _omni(_qwen2_5_omni_thinker, "Qwen2_5Omni"),
    "qwen2_5_omni": _omni(_qwen2_5_omni, "Qwen2_5Omni", **_thinker("Qwen2_5Omni")),
    "qwen3_omni_moe_thinker": _omni(_qwen3_omni_thinker, "Qwen3OmniMoe"),
    "qwen3_omni_moe": _omni(_qwen3_omni, "Qwen3OmniMoe", **_thinker("Qwen3OmniMoe")),
    "phi4_multimodal": Family(
        _phi4_tokenizer,
        _phi4_multimodal,
        template.PHI4,
        ("<|endoftext|>", "<|end|>"),
        VisionSide(
            "Phi4MultimodalImageProcessor",
            {"size": {"height": 64, "width": 64}, "patch_size": 2, "dynamic_hd": 2},
            "Phi4MultimodalProcessor",
            "<|endoftext10|>",
        ),
        answers="Phi4MultimodalForCausalLM",
        whole="Phi4MultimodalForCausalLM",
        attention="eager",  # any other is causal in the tower, where no image is padded
    ),
    "janus": Family(
        _janus_tokenizer,
        _janus,
        template.JANUS,
        ("<|end_of_sentence|>",),
        VisionSide(
            "JanusImageProcessorPil",
            {"size": SQUARE_28},
            "JanusProcessor",
            "<image_placeholder>",
            {"num_image_tokens": 4},
        ),
    ),
    "got_ocr2": Family(
        _got_tokenizer,
        _got_ocr2,
        None,
        ("<|im_end|>",),
        VisionSide(
            "GotOcr2ImageProcessorPil",
            {"size": {"height": 128, "width": 128}},
            "GotOcr2Processor",
            "<img><imgpad></img>",
        ),
    ),
    "idefics2": Family(*_IDEFICS2, _idefics2_side(is_split=False)),
    "idefics2_split": Family(*_IDEFICS2, _idefics2_side(is_split=True)),
}

LISTENERS: dict[str, Family] = {
    "gemma3n": Family(
        _gemma3n_tokenizer,
        _gemma3n,
        template.GEMMA3.replace("'<start_of_image>'", "'<image_soft_token>'"),
        ("<eos>", "<end_of_turn>"),
        VisionSide(
            "SiglipImageProcessorPil",
            {"size": {"height": 64, "width": 64}},
            "Gemma3nProcessor",
            "<image_soft_token>",
            {"image_seq_length": 4},
        ),
    ),
}
"""They hear as well; their tower for pictures is one of timm's, which needs torchvision."""
