"""The text families, and the language-model sizes that the vision families share.

Sliding windows are far shorter than the prompts, so a wrong mask cannot pass unseen.
"""

from typing import Any

import transformers
from tokenizers import AddedToken
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from zoo import template
from zoo.family import Family
from zoo.tokenizer import byte_level, gemma, sentencepiece

CHATML = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
THINK = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>")
THINK = (*THINK, "</think>")
SENTENCEPIECE = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
GEMMA = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
GEMMA_SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
MOE = {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}
ALTERNATING = ["sliding_attention", "full_attention"] * 2


def sizes(tokenizer: PreTrainedTokenizerFast, **more: Any) -> dict[str, Any]:
    """Return the config values of a tiny language model over this tokenizer's vocabulary."""
    values = {
        "vocab_size": -(-len(tokenizer) // 16) * 16,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.15,
        "max_position_embeddings": 2048,
        "pad_token_id": tokenizer.pad_token_id or 0,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "tie_word_embeddings": False,
    }
    return values | more


def _family(tokenizer: Any, name: str, chat: str, eos: tuple[str, ...], **values: Any) -> Family:
    def config(made: PreTrainedTokenizerFast) -> PreTrainedConfig:
        return getattr(transformers, name)(**sizes(made, **values))

    return Family(tokenizer, config, chat, eos)


def llama3() -> PreTrainedTokenizerFast:
    """Return a tokenizer with Llama 3's special tokens."""
    special = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|python_tag|>",
        "<|finetune_right_pad_id|>",
    ]
    named = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot_id|>",
        "pad_token": "<|finetune_right_pad_id|>",
    }
    return byte_level(special, named=named, adds_bos=True)


def chatml() -> PreTrainedTokenizerFast:
    """Return a tokenizer with the special tokens of Qwen 2 and 3."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
    named = {key: value for key, value in CHATML.items() if value}
    return byte_level([*special, "<|image_pad|>"], named=named, plain=THINK)


def mistral() -> PreTrainedTokenizerFast:
    """Return a tokenizer like that of Mistral 7B: a space is put before every section."""
    special = ["<unk>", "<s>", "</s>"]
    named = {**SENTENCEPIECE, "pad_token": "<unk>"}
    return sentencepiece(special, named=named, is_legacy=True)


def gemma2() -> PreTrainedTokenizerFast:
    """Return a tokenizer like that of Gemma."""
    return gemma(GEMMA_SPECIAL, named=GEMMA, plain=("<table>", "<unused0>"))


def phi3() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose control tokens swallow the white space that follows them."""
    roles = ["<|endoftext|>", "<|assistant|>", "<|end|>", "<|system|>", "<|user|>"]
    special = ["<unk>", "<s>", "</s>"]
    swallowing = [AddedToken(role, rstrip=True, normalized=False) for role in roles]
    named = {
        "bos_token": "<s>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<unk>",
    }
    return sentencepiece([*special, *swallowing], named=named, is_legacy=True, adds_bos=False)


def glm() -> PreTrainedTokenizerFast:
    """Return a tokenizer with GLM's special tokens."""
    special = [
        "<|endoftext|>",
        "[gMASK]",
        "<sop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
        "<|begin_of_image|>",
        "<|end_of_image|>",
        "<|begin_of_video|>",
        "<|end_of_video|>",
        "<|image|>",
        "<|video|>",
    ]
    return byte_level(
        special,
        named={"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"},
        plain=("<think>", "</think>", "<answer>", "</answer>"),
    )


def harmony() -> PreTrainedTokenizerFast:
    """Return a tokenizer with GPT-OSS's special tokens."""
    special = [
        "<|startoftext|>",
        "<|endoftext|>",
        "<|return|>",
        "<|constrain|>",
        "<|channel|>",
        "<|start|>",
        "<|end|>",
        "<|message|>",
        "<|call|>",
    ]
    named = {
        "bos_token": "<|startoftext|>",
        "eos_token": "<|return|>",
        "pad_token": "<|endoftext|>",
    }
    return byte_level(special, named=named)


_IM_END = ("<|im_end|>", "<|endoftext|>")
_TURN = ("<eos>", "<end_of_turn>")

TEXT: dict[str, Family] = {
    "llama": _family(llama3, "LlamaConfig", template.LLAMA, ("<|eot_id|>", "<|end_of_text|>")),
    "qwen2": _family(chatml, "Qwen2Config", template.QWEN2, _IM_END),
    "qwen3": _family(chatml, "Qwen3Config", template.QWEN3, _IM_END, head_dim=32),
    "qwen3_moe": _family(
        chatml,
        "Qwen3MoeConfig",
        template.QWEN3,
        _IM_END,
        head_dim=32,
        decoder_sparse_step=1,
        **MOE,
    ),
    "mistral": _family(mistral, "MistralConfig", template.MISTRAL, ("</s>",), sliding_window=8),
    "mixtral": _family(
        mistral,
        "MixtralConfig",
        template.MISTRAL,
        ("</s>",),
        sliding_window=8,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    "gemma2": _family(
        gemma2,
        "Gemma2Config",
        template.GEMMA2,
        _TURN,
        head_dim=32,
        num_hidden_layers=4,
        sliding_window=8,
        query_pre_attn_scalar=32,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3_text": _family(
        gemma2,
        "Gemma3TextConfig",
        template.GEMMA3,
        _TURN,
        head_dim=32,
        num_hidden_layers=4,
        sliding_window=8,
        query_pre_attn_scalar=32,
        layer_types=ALTERNATING,
    ),
    "phi3": _family(
        phi3, "Phi3Config", template.PHI3, ("<|endoftext|>", "<|end|>"), sliding_window=8
    ),
    "glm4": _family(
        glm,
        "Glm4Config",
        template.GLM4,
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
        head_dim=16,
    ),
    "gpt_oss": _family(
        harmony,
        "GptOssConfig",
        template.GPT_OSS,
        ("<|return|>", "<|call|>", "<|endoftext|>"),
        head_dim=16,
        num_hidden_layers=4,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
    ),
}
