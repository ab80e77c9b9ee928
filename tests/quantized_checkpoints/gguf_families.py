"""Families that llama.cpp's converter knows, as tiny random checkpoints, with facts about it.

The facts are those of ``convert_hf_to_gguf.py``: which rows it reorders, and where it adds one.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers

from zoo import text

LLAMA_LIKE = frozenset({"llama", "mistral", "mixtral", "granite", "smollm3", "arcee"})
"""Whose rows of queries and keys the converter reorders."""
PLUS_ONE = frozenset({"gemma", "gemma2", "gemma3_text", "nemotron"})
"""To whose weights of norms the converter adds one."""


@dataclass(frozen=True)
class Made:
    """A family.

    Attributes:
        config: the name of its class of configurations.
        arch: of its files.
        values: of its configuration, beside sizes.
    """

    config: str
    arch: gguf.MODEL_ARCH
    values: dict[str, Any] = field(default_factory=dict)


A = gguf.MODEL_ARCH
MOE = text.MOE
FAMILIES: dict[str, Made] = {
    "llama": Made("LlamaConfig", A.LLAMA),
    "mistral": Made("MistralConfig", A.LLAMA, {"sliding_window": None}),
    "mixtral": Made(
        "MixtralConfig",
        A.LLAMA,
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "granite": Made(
        "GraniteConfig",
        A.GRANITE,
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
        },
    ),
    "smollm3": Made("SmolLM3Config", A.SMOLLM3, {"no_rope_layer_interval": 2}),
    "arcee": Made("ArceeConfig", A.ARCEE),
    "qwen2": Made("Qwen2Config", A.QWEN2),
    "qwen2_moe": Made("Qwen2MoeConfig", A.QWEN2MOE, {**MOE, "shared_expert_intermediate_size": 32}),
    "qwen3": Made("Qwen3Config", A.QWEN3, {"head_dim": 32}),
    "qwen3_moe": Made("Qwen3MoeConfig", A.QWEN3MOE, {**MOE, "head_dim": 32}),
    "gemma": Made("GemmaConfig", A.GEMMA, {"head_dim": 16}),
    "gemma2": Made(
        "Gemma2Config",
        A.GEMMA2,
        {"head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 32},
    ),
    "gemma3_text": Made("Gemma3TextConfig", A.GEMMA3, {"head_dim": 32, "sliding_window": 16}),
    "phi3": Made("Phi3Config", A.PHI3),
    "olmo2": Made("Olmo2Config", A.OLMO2),
    "olmoe": Made(
        "OlmoeConfig",
        A.OLMOE,
        {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4},
    ),
    "glm4": Made("Glm4Config", A.GLM4, {"head_dim": 16, "attention_bias": True}),
    "exaone4": Made("Exaone4Config", A.EXAONE4, {"sliding_window": 16}),
    "ernie4_5": Made("Ernie4_5Config", A.ERNIE4_5, {"head_dim": 16}),
    "seed_oss": Made("SeedOssConfig", A.SEED_OSS, {"head_dim": 16}),
    "hunyuan_v1_dense": Made("HunYuanDenseV1Config", A.HUNYUAN_DENSE, {"head_dim": 16}),
    "cohere2": Made("Cohere2Config", A.COHERE2, {"sliding_window": 16, "logit_scale": 0.25}),
    "starcoder2": Made("Starcoder2Config", A.STARCODER2, {"sliding_window": None}),
    "nemotron": Made("NemotronConfig", A.NEMOTRON, {"head_dim": 16}),
}
RECURRENT: dict[str, Made] = {
    "jamba": Made(
        "JambaConfig",
        A.JAMBA,
        {
            "num_hidden_layers": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 4,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
        },
    ),
    "lfm2": Made(
        "Lfm2Config",
        A.LFM2,
        {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 16},
    ),
    "mamba": Made("MambaConfig", A.MAMBA, {"intermediate_size": 128, "state_size": 8}),
    "mamba2": Made(
        "Mamba2Config",
        A.MAMBA2,
        {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 8, "chunk_size": 16},
    ),
}
"""Families with recurrent layers."""
TIED = frozenset(
    {"lfm2", "smollm3", "gemma", "gemma2", "gemma3_text", "ernie4_5", "cohere2", "starcoder2"}
)


def save(family: str, folder: Path, tokenizer: Path, **values: Any) -> None:
    """Fill a folder with a random checkpoint.

    Args:
        family: its name.
        folder: an empty one.
        tokenizer: a folder with the files of a tokenizer.
        values: of its configuration.
    """
    made = (FAMILIES | RECURRENT)[family]
    tokens = transformers.AutoTokenizer.from_pretrained(tokenizer)
    own = {"tie_word_embeddings": family in TIED} | made.values | values
    config = getattr(transformers, made.config)(**text.sizes(tokens, **own))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    for name, weight in model.named_parameters():
        if weight.ndim == 1:  # norms are ones and biases zeros, which would hide mistakes
            torch.nn.init.normal_(weight, float("norm" in name and family not in PLUS_ONE), 0.1)
    model.save_pretrained(folder)
    for file in tokenizer.glob("*"):
        if file.name.startswith(("tokenizer", "special_tokens", "chat_template")):
            shutil.copy(file, folder)
