"""Fields of numbers and of the tokenizer that llama.cpp's converter writes beside weights."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import transformers

VALUES: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3_text": {
        "query_pre_attn_scalar": 32,
        "num_hidden_layers": 6,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        },
    },
    "qwen3_moe": {"norm_topk_prob": True},
    "smollm3": {"no_rope_layer_interval": 4, "num_hidden_layers": 5},
    "cohere2": {"num_hidden_layers": 5},
}
"""Values of configurations that files do not state, as llama.cpp assumes them."""
TYPES = gguf.TokenType
BYTE = re.compile("<0x[0-9A-F]{2}>")


def fields_of(source: Path, family: str, pre: str = "gpt-2") -> Callable[[gguf.GGUFWriter], None]:
    """Return what writes the fields of a model.

    Args:
        source: its folder.
        family: its name.
        pre: the name of the pre-tokenizer; empty for pieces of SentencePiece.
    """
    config = transformers.AutoConfig.from_pretrained(source).get_text_config()

    def write(writer: gguf.GGUFWriter) -> None:
        if family not in ("jamba", "mamba", "mamba2"):
            _numbers(writer, config, family)
        if pre:
            _byte_level(writer, source, config.vocab_size, pre)
        else:
            _pieces(writer, source, config.vocab_size)
        template = source / "chat_template.jinja"
        writer.add_chat_template(template.read_text())

    return write


def _numbers(writer: gguf.GGUFWriter, config: Any, family: str) -> None:
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head)
    writer.add_value_length(head)
    rope = config.rope_parameters
    rope = rope.get("full_attention") or rope
    writer.add_rope_dimension_count(int(head * (rope.get("partial_rotary_factor") or 1)))
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if experts:
        inner = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(inner)
    if shared := getattr(config, "shared_expert_intermediate_size", None):
        writer.add_expert_shared_feed_forward_length(shared)
    if window := getattr(config, "sliding_window", None):
        writer.add_sliding_window(window)
    if family == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if family == "cohere2":
        writer.add_logit_scale(config.logit_scale)
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _pieces(writer: gguf.GGUFWriter, source: Path, num: int) -> None:
    """Write pieces of SentencePiece: earlier merges have higher scores."""
    whole = json.loads((source / "tokenizer.json").read_text())
    tokens, types = _tokens(whole, num)
    ranks = {
        "".join(merge): rank for rank, merge in reversed(list(enumerate(whole["model"]["merges"])))
    }
    for number, token in enumerate(tokens):
        if types[number] == TYPES.NORMAL and BYTE.fullmatch(token):
            types[number] = TYPES.BYTE
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_scores([float(-ranks.get(token, len(tokens))) for token in tokens])
    writer.add_add_space_prefix(False)
    _special(writer, source, tokens)
    writer.add_add_bos_token(whole["post_processor"] is not None)


def _byte_level(writer: gguf.GGUFWriter, source: Path, num: int, pre: str) -> None:
    """Write a byte-level tokenizer, padded to the rows of the embedding as the converter does."""
    whole = json.loads((source / "tokenizer.json").read_text())
    tokens, types = _tokens(whole, num)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in whole["model"]["merges"]])
    _special(writer, source, tokens)
    writer.add_add_bos_token(whole["post_processor"] is not None)


def _tokens(whole: dict[str, Any], num: int) -> tuple[list[str], list[Any]]:
    """Return tokens and their types, padded to a number."""
    tokens = [f"[PAD{number}]" for number in range(num)]
    types = [TYPES.UNUSED] * num
    for token, number in whole["model"]["vocab"].items():
        tokens[number], types[number] = token, TYPES.NORMAL
    for each in whole["added_tokens"]:
        tokens[each["id"]] = each["content"]
        types[each["id"]] = TYPES.CONTROL if each["special"] else TYPES.USER_DEFINED
    return tokens, types


def _special(writer: gguf.GGUFWriter, source: Path, tokens: list[str]) -> None:
    settings = json.loads((source / "tokenizer_config.json").read_text())
    for name, add in (
        ("bos_token", writer.add_bos_token_id),
        ("eos_token", writer.add_eos_token_id),
        ("pad_token", writer.add_pad_token_id),
    ):
        if settings.get(name):
            add(tokens.index(settings[name]))
