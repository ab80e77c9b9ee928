"""Tiny random text models with recurrent layers; their prompts are token ids."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from parity import runner
from vlmkit.interfaces.prompt import Prompt

SIZES = {
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
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
DELTA = {
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
EXPERTS = {"moe_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}
FAMILIES: dict[str, Callable[[], Any]] = {
    "qwen3_5_text": lambda: transformers.Qwen3_5TextConfig(**SIZES, **DELTA),
    "qwen3_next": lambda: transformers.Qwen3NextConfig(
        **SIZES, **DELTA, **EXPERTS, shared_expert_intermediate_size=48
    ),
    "lfm2": lambda: transformers.Lfm2Config(
        **SIZES, layer_types=["conv", "full_attention"] * 2, block_multiple_of=16
    ),
    "falcon_h1": lambda: transformers.FalconH1Config(
        **SIZES, **{**MAMBA, "mamba_n_heads": 4}, mamba_d_ssm=64
    ),
    "bamba": lambda: transformers.BambaConfig(**SIZES, **MAMBA, attn_layer_indices=[1, 3]),
    "granitemoehybrid": lambda: transformers.GraniteMoeHybridConfig(
        **SIZES,
        **MAMBA,
        layer_types=["linear_attention", "full_attention"] * 2,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=48,
    ),
    "nemotron_h": lambda: transformers.NemotronHConfig(
        **{key: SIZES[key] for key in SIZES if key != "num_hidden_layers"},
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
    ),
}


def opt() -> Any:
    """Return a configuration without recurrent layers, whose decoder is nested deeper."""
    return transformers.OPTConfig(
        vocab_size=320,
        hidden_size=64,
        ffn_dim=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        word_embed_proj_dim=64,
        init_std=0.15,
        max_position_embeddings=512,
    )


def save(name: str, folder: Path) -> Path:
    """Write one of the families as a checkpoint; return the folder."""
    return runner.save_random(FAMILIES[name](), folder)


def prompts() -> list[Prompt]:
    """Return four prompts of different lengths."""
    random = torch.Generator().manual_seed(1)
    lengths = (41, 5, 23, 60)
    ids = (torch.randint(3, 300, (n,), generator=random).tolist() for n in lengths)
    return [Prompt(tuple(one)) for one in ids]
