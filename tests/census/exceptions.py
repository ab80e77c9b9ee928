"""Settings that single families need to be small: their own names, and rules that they check.

A rule receives the small configuration of the family as a tree of plain values and changes it.
"""

from collections.abc import Callable, Mapping
from typing import Any

Part = dict[str, Any]
Change = Callable[[Part], None]


def _with(*path: str, **values: Any) -> Change:
    """Return a rule that sets values of a part."""

    def change(config: Part) -> None:
        for step in path:
            config = config[step]
        config.update(values)

    return change


def _both(*changes: Change) -> Change:
    """Return a rule of several."""

    def change(config: Part) -> None:
        for one in changes:
            one(config)

    return change


_DECODERS = (
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie"),
    *("megatron-bert", "reformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert"),
    *("roformer", "xlm-roberta", "xlm-roberta-xl", "xmod"),
)
_BY_TURNS = ["linear_attention", "full_attention"] * 2
_EXPERTS = _with(n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1)
_GLM = _with("text_config", "rope_parameters", mrope_section=[1, 1, 2], partial_rotary_factor=0.5)
_DEEPSTACK = _with("vision_config", deepstack_visual_indexes=[0, 1])
_COMPASS = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e4},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

EXCEPTIONS: Mapping[str, Change] = {
    **dict.fromkeys(_DECODERS, _with(is_decoder=True)),
    **dict.fromkeys(("glm4v", "glm46v", "glm4v_moe", "glm_ocr", "glmga"), _GLM),
    "aya_vision": _with("vision_config", image_size=364),
    "bamba": _with(attn_layer_indices=[1, 3], num_hidden_layers=4),
    "cohere_compass": _both(_with("text_config", rope_parameters=_COMPASS), _DEEPSTACK),
    "cohere_compass_text": _with(rope_parameters=_COMPASS),
    "dbrx": _both(
        _with("attn_config", rope_theta=1e4, kv_n_heads=2, clip_qkv=8.0),
        _with("ffn_config", hidden_size=64, ffn_hidden_size=96, moe_num_experts=4, moe_top_k=2),
    ),
    **dict.fromkeys(("cosmos3_omni", "qwen3_vl_moe"), _DEEPSTACK),
    "deepseek_ocr2": _both(
        _with("text_config", mlp_layer_types=["dense", "sparse", "sparse"], num_experts_per_tok=2),
        _with("vision_config", "sam_config", downsample_channels=[64, 64]),
    ),
    **dict.fromkeys(("deepseek_vl", "deepseek_vl_hybrid"), _with("vision_config", image_size=384)),
    "deepseek_v2": _EXPERTS,
    "dots1": _both(_EXPERTS, _with(n_shared_experts=1)),
    "diffusion_gemma": _with(
        "text_config", moe_intermediate_size=48, num_experts=4, top_k_experts=2
    ),
    "ernie4_5_vl_moe": _both(
        _with("text_config", mlp_layer_types=["dense", "sparse", "sparse"]),
        _with("text_config", "rope_parameters", mrope_section=[3, 3, 2]),
    ),
    "gemma3n_text": _with(num_kv_shared_layers=0),
    "dots3_note": _both(
        _with("vision_config", adapter_in_dim=64, adapter_out_dim=64),
        _with("audio_config", adapter_input_size=64),
    ),
    "falcon_h1": _with(mamba_n_heads=4, mamba_d_head=16, mamba_d_ssm=64),
    "gpt_neo": _with(attention_types=[[["global", "local"], 2]], num_layers=4, window_size=32),
    "granite4_vision": _with(
        deepstack_layer_map=[[-2, 0], [-1, 2]],
        downsample_rate="1/2",
        spatial_target_layers=[1, 1, 2, 2],
    ),
    "granite_docling": _DEEPSTACK,
    "granitemoehybrid": _with(
        layer_types=_BY_TURNS, num_hidden_layers=4, shared_intermediate_size=48
    ),
    "lfm2_moe": _with(layer_types=["conv", "full_attention", "conv"]),
    "hunyuan_vl": _with("text_config", "rope_parameters", mrope_section=[2, 2, 2, 2]),
    "llava_next_video": _with("text_config", max_position_embeddings=8192),
    "mistral4": _with(qk_nope_head_dim=8, qk_head_dim=16, head_dim=16),
    "modernbert-decoder": _with(local_attention=64),
    "nemotron": _with(num_key_value_heads=2),
}
