"""The ``config.json`` of a model in a GGUF file alone, by its header.

A row of ``MODELS`` per architecture. Sources of the meaning of fields: the constants of the package
``gguf`` and llama.cpp's ``convert_hf_to_gguf.py``; llama.cpp's ``llama-model.cpp`` for numbers that
no field states. Architectures whose files leave out what changes answers are rejected by name.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vlmkit_quantized.gguf_metadata import Metadata
from vlmkit_quantized.gguf_names import MAX_LAYERS

Config = dict[str, Any]
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_CONTEXTS = (8192, 4096, 16384, 32768)
"""Original contexts of models with Llama 3's scaling of rotations, the likeliest first."""
CLOSE = 1e-4
FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")
NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "attention.causal": (True,),
    "expert_gating_func": (1, 0),  # softmax
    "expert_weights_scale": (1, 0),
    "rope.scale_linear": (1,),
    "rope.scaling.alpha": (0,),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_beta_fast": (32,),
    "rope.scaling.yarn_beta_slow": (1,),
    "rope.scaling.yarn_ext_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
}
"""Fields after the architecture, with the values that transformers computes with."""
LAYERS_OF_GEMMA2_27B, LAYERS_OF_GEMMA3_27B = 46, 62


@dataclass(frozen=True, slots=True)
class Model:
    """How a model is described.

    Attributes:
        model_type: in ``config.json``.
        class_name: of transformers.
        more: returns what the architecture has beside common fields.
        is_partial: whether a part of a head may be rotated.
        has_factors: whether files may have a factor for each rotation.
        norms_experts: whether the shares of experts are divided by their sum; None without experts.
        has_attention: whether any layer has attention.
    """

    model_type: str
    class_name: str
    more: Callable[[Metadata, Config], Config]
    is_partial: bool = False
    has_factors: bool = False
    norms_experts: bool | None = None
    has_attention: bool = True


def config_of(found: Metadata) -> Config:
    """Return the content of ``config.json``.

    Raises:
        FormatError: the architecture is not supported, or a field is absent or wrong.
    """
    if (model := MODELS.get(found.architecture)) is None:
        raise found.error(
            f"has the architecture {found.architecture!r}, which is not read without a folder; "
            f"supported are {', '.join(MODELS)}"
        )
    _check_neutral(found, model)
    config = _common(found)
    if model.has_attention:
        config |= _attention(found, model, config["hidden_size"])
    config |= {"model_type": model.model_type, "architectures": [model.class_name]}
    return config | model.more(found, config)


def _common(found: Metadata) -> Config:
    """Return what every model has."""
    key, tensors = found.of_model, found.file.tensors
    if "token_embd.weight" not in tensors:
        raise found.error("has no embedding ('token_embd.weight')")
    if (layers := found.size(key("block_count"))) > MAX_LAYERS:
        raise found.error(f"has {layers} layers, and {MAX_LAYERS} are supported")
    special = {
        name: found.integer(f"tokenizer.ggml.{stored}")
        for name, stored in SPECIAL.items()
        if found.has(f"tokenizer.ggml.{stored}")
    }
    return {
        **dict.fromkeys(SPECIAL),
        **special,
        "dtype": "bfloat16",  # the precision if float32 does not fit, and of GPUs
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": found.size(key("embedding_length")),
        "num_hidden_layers": layers,
        "max_position_embeddings": found.size(key("context_length")),
        "tie_word_embeddings": "output.weight" not in tensors,
    }


def _attention(found: Metadata, model: Model, hidden: int) -> Config:
    """Return what models with attention have."""
    key = found.of_model
    heads, key_heads, head = _heads(found, hidden)
    inner, has_experts = key("feed_forward_length"), found.integer(key("expert_count"), 0) > 0
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": head,
        "intermediate_size": found.integer(inner, 0) if has_experts else found.size(inner),
        "attention_bias": "blk.0.attn_q.bias" in found.file.tensors,
        "rope_parameters": _rope(found, head, model),
    }


def _heads(found: Metadata, hidden: int) -> tuple[int, int, int]:
    """Return the numbers of heads of queries and of keys, and the size of a head.

    Raises:
        FormatError: they are absent or impossible.
    """
    key = found.of_model
    heads = found.size(key("attention.head_count"))
    listed = found.of_layers(key("attention.head_count_kv"), heads)
    if not (key_heads := max(listed)) or {*listed} - {0, key_heads}:
        raise found.error(f"needs one number above zero in {key('attention.head_count_kv')!r}")
    if heads % key_heads:
        raise found.error(
            f"has {heads} heads, which is no multiple of {key_heads} in "
            f"{key('attention.head_count_kv')!r}"
        )
    head = found.size(key("attention.key_length"), hidden // heads)
    if found.integer(key("attention.value_length"), head) != head:
        raise found.error("has values of another size than keys, which is not supported")
    return heads, key_heads, head


SPECIAL = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "padding_token_id",
}


def _check_rotated(found: Metadata, head: int, model: Model) -> None:
    """Require that transformers rotates the part of a head that the file states.

    Raises:
        FormatError: it rotates another part, or otherwise.
    """
    key = found.of_model("rope.dimension_count")
    size = found.size(key, head)
    if size % 2 or size > head or (size < head and not model.is_partial):
        raise found.error(f"rotates {size} of {head} numbers of a head ({key!r}), not supported")
    stored = [name for name in FACTORS if name in found.file.tensors]
    if stored and not model.has_factors:
        raise found.error(f"has a tensor {stored[0]!r}, which is not supported")
    scaling = found.of_model("rope.scaling.type")
    needs_factors = bool(stored) or found.text(scaling, "none") == "longrope"
    if absent := [name for name in FACTORS if name not in stored and needs_factors]:
        raise found.error(f"has no tensor {absent[0]!r}, which its rotations need ({scaling!r})")


def _check_neutral(found: Metadata, model: Model) -> None:
    """Reject fields that change answers and that no ``config.json`` has.

    Raises:
        FormatError: there is one.
    """
    listed = dict(NEUTRAL)
    if model.norms_experts is not None:
        listed["expert_weights_norm"] = (model.norms_experts,)
    for name, neutral in listed.items():
        key = found.of_model(name)
        value = found.file.fields.get(key, neutral[0])
        if not isinstance(value, int | float) or value not in neutral:
            raise found.error(f"has a value in {key!r} that is not supported")


def _rope(found: Metadata, head: int, model: Model) -> Config:
    """Return the parameters of rotations."""
    key = found.of_model
    _check_rotated(found, head, model)
    rope: Config = {"rope_type": "default", "rope_theta": found.real(key("rope.freq_base"), 1e4)}
    size = found.integer(key("rope.dimension_count"), head)
    if size != head:
        rope["partial_rotary_factor"] = size / head
    stated = "linear" if found.has(key("rope.scaling.factor")) else "none"
    kind = found.text(key("rope.scaling.type"), stated)
    if "rope_freqs.weight" in found.file.tensors:
        return rope | _llama3(found, size, rope["rope_theta"])
    if kind in ("linear", "yarn"):
        rope |= {"rope_type": kind, "factor": found.real(key("rope.scaling.factor"))}
        if found.has(key("rope.scaling.original_context_length")):
            own = found.size(key("rope.scaling.original_context_length"))
            rope["original_max_position_embeddings"] = own
    elif kind not in ("none", "longrope"):
        raise found.error(f"scales rotations by {kind!r}, which is not supported")
    return rope


def _llama3(found: Metadata, size: int, theta: float) -> Config:
    """Return the parameters that give the factors in the file, which llama.cpp multiplies by."""
    stored = found.file.tensors["rope_freqs.weight"].floats()
    if stored.shape != (size // 2,) or not stored.all():
        raise found.error("has a tensor 'rope_freqs.weight' of another shape")
    wavelengths = 2 * math.pi * theta ** (np.arange(0, size, 2) / size)
    factor = float(stored.max())
    for context in LLAMA3_CONTEXTS:
        low, high = (context / LLAMA3[f"{each}_freq_factor"] for each in ("low", "high"))
        share = (context / wavelengths - 1) / (LLAMA3["high_freq_factor"] - 1)
        between = 1 / ((1 - share) / factor + share)
        wanted = np.where(wavelengths < high, 1, np.where(wavelengths > low, factor, between))
        if np.allclose(stored, wanted, rtol=CLOSE):
            own = {"original_max_position_embeddings": context}
            return {"rope_type": "llama3", "factor": factor, **LLAMA3, **own}
    raise found.error("has a tensor 'rope_freqs.weight' that is not Llama 3's, not supported")


def _rms(found: Metadata, _: Config) -> Config:
    key = found.of_model("attention.layer_norm_rms_epsilon")
    return {"rms_norm_eps": found.real(key)}


def _llama(found: Metadata, config: Config) -> Config:
    own = _rms(found, config)
    own["mlp_bias"] = "blk.0.ffn_up.bias" in found.file.tensors
    if num := found.integer(found.of_model("expert_count"), 0):
        own |= {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
        used = _used_experts(found, num)
        own |= {"num_local_experts": num, "num_experts_per_tok": used, "sliding_window": None}
    return own


def _granite(found: Metadata, config: Config) -> Config:
    key = found.of_model
    return _rms(found, config) | {
        "mlp_bias": "blk.0.ffn_up.bias" in found.file.tensors,
        "attention_multiplier": found.real(key("attention.scale")),
        "embedding_multiplier": found.real(key("embedding_scale")),
        "residual_multiplier": found.real(key("residual_scale")),
        "logits_scaling": found.real(key("logit_scale")),
    }


def _experts(found: Metadata) -> Config:
    key = found.of_model
    num = found.size(key("expert_count"))
    return {
        "num_experts": num,
        "num_experts_per_tok": _used_experts(found, num),
        "moe_intermediate_size": found.size(key("expert_feed_forward_length")),
    }


def _used_experts(found: Metadata, num: int) -> int:
    """Return how many experts a token has.

    Raises:
        FormatError: there are not so many.
    """
    key = found.of_model("expert_used_count")
    if (used := found.size(key)) > num:
        raise found.error(f"has {num} experts, and uses {used} ({key!r})")
    return used


def _qwen2_moe(found: Metadata, config: Config) -> Config:
    shared = found.size(found.of_model("expert_shared_feed_forward_length"))
    own = {"norm_topk_prob": False, "shared_expert_intermediate_size": shared}
    return _rms(found, config) | _experts(found) | own


def _qwen3_moe(found: Metadata, config: Config) -> Config:
    return _rms(found, config) | _experts(found) | {"norm_topk_prob": True}


def _gemma2(found: Metadata, config: Config) -> Config:
    key = found.of_model
    return _rms(found, config) | {
        "sliding_window": found.size(key("attention.sliding_window"), 4096),
        "attn_logit_softcapping": found.real(key("attn_logit_softcapping"), 50.0),
        "final_logit_softcapping": found.real(key("final_logit_softcapping"), 30.0),
        "query_pre_attn_scalar": _scalar(config, LAYERS_OF_GEMMA2_27B),
    }


def _gemma3(found: Metadata, config: Config) -> Config:
    key, num = found.of_model, config["num_hidden_layers"]
    if found.has(key("attention.sliding_window_pattern")):
        raise found.error("states an order of layers with windows, which is not supported")
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(num)]
    local = {"rope_type": "default", "rope_theta": found.real(key("rope.freq_base_swa"), 1e4)}
    rope = config["rope_parameters"]
    if not found.has(key("rope.freq_base")):
        rope = rope | {"rope_theta": 1e6}
    return _rms(found, config) | {
        "sliding_window": found.size(key("attention.sliding_window")),
        "layer_types": kinds,
        "query_pre_attn_scalar": _scalar(config, LAYERS_OF_GEMMA3_27B),
        "rope_parameters": {"full_attention": rope, "sliding_attention": local},
    }


def _scalar(config: Config, layers_of_27b: int) -> int:
    """Return by which scores are scaled; the largest model of a generation has another one."""
    if config["num_hidden_layers"] == layers_of_27b:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


def _phi3(found: Metadata, config: Config) -> Config:
    key, context = found.of_model, config["max_position_embeddings"]
    window = found.integer(key("attention.sliding_window"), 0) or None
    own: Config = {"sliding_window": window if window and window < context else None}
    tensors, rope = found.file.tensors, config["rope_parameters"]
    original = found.size(key("rope.scaling.original_context_length"), context)
    own["original_max_position_embeddings"] = original
    if "rope_factors_long.weight" in tensors:
        factors = {
            f"{which}_factor": tensors[f"rope_factors_{which}.weight"].floats().tolist()
            for which in ("long", "short")
        }
        rope = rope | {"rope_type": "longrope", "original_max_position_embeddings": original}
        own["rope_parameters"] = rope | factors
    return _rms(found, config) | own


def _olmo2(found: Metadata, config: Config) -> Config:
    if found.has(found.of_model("attention.sliding_window")):
        raise found.error("is of OLMo 3, which is not supported")
    return _rms(found, config)


def _starcoder2(found: Metadata, _: Config) -> Config:
    epsilon = found.real(found.of_model("attention.layer_norm_epsilon"))
    return {"norm_epsilon": epsilon, "use_bias": True, "sliding_window": None}


def _cohere2(found: Metadata, _: Config) -> Config:
    key = found.of_model
    return {
        "layer_norm_eps": found.real(key("attention.layer_norm_epsilon")),
        "logit_scale": found.real(key("logit_scale")),
        "sliding_window": found.size(key("attention.sliding_window")),
    }


def _mamba(found: Metadata, config: Config) -> Config:
    key = found.of_model
    if found.flag(key("ssm.dt_b_c_rms"), default=False):
        raise found.error("is of Falcon Mamba, which is not supported")
    return _convolved(found) | {
        "intermediate_size": found.size(key("ssm.inner_size")),
        "state_size": found.size(key("ssm.state_size")),
        "time_step_rank": found.size(key("ssm.time_step_rank")),
        "expand": found.size(key("ssm.inner_size")) // config["hidden_size"],
    }


def _mamba2(found: Metadata, config: Config) -> Config:
    key = found.of_model
    heads, inner = found.size(key("ssm.time_step_rank")), found.size(key("ssm.inner_size"))
    if inner % heads:
        raise found.error(f"has {inner} inner columns, which is no multiple of {heads} heads")
    return _convolved(found) | {
        "num_heads": heads,
        "head_dim": inner // heads,
        "state_size": found.size(key("ssm.state_size")),
        "n_groups": found.size(key("ssm.group_count")),
        "expand": inner // config["hidden_size"],
    }


def _convolved(found: Metadata) -> Config:
    key = found.of_model
    return {
        "layer_norm_epsilon": found.real(key("attention.layer_norm_rms_epsilon")),
        "conv_kernel": found.size(key("ssm.conv_kernel")),
    }


def _jamba(found: Metadata, config: Config) -> Config:
    key, tensors = found.of_model, found.file.tensors
    num = config["num_hidden_layers"]
    attention = [heads > 0 for heads in found.of_layers(key("attention.head_count_kv"))]
    experts = [f"blk.{layer}.ffn_gate_inp.weight" in tensors for layer in range(num)]
    own = _every(found, "attn_layer", attention) | _every(found, "expert_layer", experts)
    if any(experts):
        total = found.size(key("expert_count"))
        own |= {"num_experts": total, "num_experts_per_tok": _used_experts(found, total)}
    else:
        own |= {"num_experts": 1, "num_experts_per_tok": 1}
    return (
        _rms(found, config)
        | own
        | {
            "intermediate_size": found.size(key("feed_forward_length")),
            "mamba_d_conv": found.size(key("ssm.conv_kernel")),
            "mamba_d_state": found.size(key("ssm.state_size")),
            "mamba_dt_rank": found.size(key("ssm.time_step_rank")),
            "mamba_expand": found.size(key("ssm.inner_size")) // config["hidden_size"],
        }
    )


def _every(found: Metadata, kind: str, layers: list[bool]) -> Config:
    """Return after how many layers those of a kind recur, and the first of them.

    Raises:
        FormatError: they do not recur regularly.
    """
    places = [number for number, is_one in enumerate(layers) if is_one]
    period = places[1] - places[0] if len(places) > 1 else len(layers)
    offset = places[0] if places else 0
    if places and (offset >= period or places != [*range(offset, len(layers), period)]):
        raise found.error(f"has layers of the kind {kind!r} at irregular places, not supported")
    return {f"{kind}_period": period, f"{kind}_offset": offset}


def _lfm2(found: Metadata, _: Config) -> Config:
    key = found.of_model
    heads = found.of_layers(key("attention.head_count_kv"))
    return {
        "norm_eps": found.real(key("attention.layer_norm_rms_epsilon")),
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": found.size(key("shortconv.l_cache")),
        "layer_types": ["full_attention" if num else "conv" for num in heads],
    }


def _smollm3(found: Metadata, config: Config) -> Config:
    return _rms(found, config) | {"no_rope_layer_interval": 4}


MODELS: Mapping[str, Model] = {
    "cohere2": Model("cohere2", "Cohere2ForCausalLM", _cohere2),
    "gemma": Model("gemma", "GemmaForCausalLM", _rms),
    "gemma2": Model("gemma2", "Gemma2ForCausalLM", _gemma2),
    "gemma3": Model("gemma3_text", "Gemma3ForCausalLM", _gemma3),
    "glm4": Model("glm4", "Glm4ForCausalLM", _rms, is_partial=True),
    "granite": Model("granite", "GraniteForCausalLM", _granite),
    "llama": Model("llama", "LlamaForCausalLM", _llama, norms_experts=True),
    "jamba": Model("jamba", "JambaForCausalLM", _jamba, norms_experts=False),
    "lfm2": Model("lfm2", "Lfm2ForCausalLM", _lfm2),
    "mamba": Model("mamba", "MambaForCausalLM", _mamba, has_attention=False),
    "mamba2": Model("mamba2", "Mamba2ForCausalLM", _mamba2, has_attention=False),
    "olmo2": Model("olmo2", "Olmo2ForCausalLM", _olmo2),
    "phi3": Model("phi3", "Phi3ForCausalLM", _phi3, is_partial=True, has_factors=True),
    "qwen2": Model("qwen2", "Qwen2ForCausalLM", _rms),
    "qwen2moe": Model("qwen2_moe", "Qwen2MoeForCausalLM", _qwen2_moe, norms_experts=False),
    "qwen3": Model("qwen3", "Qwen3ForCausalLM", _rms),
    "qwen3moe": Model("qwen3_moe", "Qwen3MoeForCausalLM", _qwen3_moe, norms_experts=True),
    "smollm3": Model("smollm3", "SmolLM3ForCausalLM", _smollm3),
    "starcoder2": Model("starcoder2", "Starcoder2ForCausalLM", _starcoder2),
}
"""The models, by the architecture of a file."""
