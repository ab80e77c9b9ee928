"""The tensors of families with recurrent layers, by their ``config.json``.

The same as :mod:`.gguf_names` for layers that have a state in place of attention. Sources are the
same. Opens no file.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_names import MAX_LAYERS, PlainTensor, integer_of

Config = Mapping[str, Any]
FieldValues = Mapping[str, int | list[int]]
Tensors = dict[str, PlainTensor]
Layer = Iterator[tuple[str, PlainTensor]]
CONVOLUTION, ATTENTION = "conv", "full_attention"
"""The kinds of layers of LFM2."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A family with recurrent layers, as the converter writes it.

    Attributes:
        architecture: the ``general.architecture`` of its files.
        tensors: returns what each tensor of a complete file is, by its name in the file.
        fields: returns numbers that its file must have, after the architecture. From them llama.cpp
            computes sizes that it does not check.
        prefix: of the names of its weights.
    """

    architecture: str
    tensors: Callable[[Config], Tensors]
    fields: Callable[[Config], FieldValues]
    prefix: str = "model"


def _mamba(config: Config) -> Tensors:
    return _of_mixers(config, _mamba_fields, _mamba_mixer, is_tied=True)


def _mamba2(config: Config) -> Tensors:
    return _of_mixers(config, _mamba2_fields, _mamba2_mixer, is_tied=False)


def _of_mixers(
    config: Config,
    fields_of: Callable[[Config], Mapping[str, int]],
    mixer: Callable[[Mapping[str, int], int, str], Layer],
    *,
    is_tied: bool,
) -> Tensors:
    """Return the tensors of a model whose layers are a norm and a mixer each."""
    _check_biases(config)
    hidden, fields = integer_of(config, "hidden_size"), fields_of(config)
    found = _around(config, "embeddings", "norm_f", is_tied=is_tied)
    for number in range(integer_of(config, "num_hidden_layers", MAX_LAYERS)):
        layer = f"model.layers.{number}"
        found[f"blk.{number}.attn_norm.weight"] = PlainTensor(f"{layer}.norm.weight", (hidden,))
        for name, plain in mixer(fields, hidden, f"{layer}.mixer"):
            found[f"blk.{number}.{name}"] = plain
    return found


def _mamba_fields(config: Config) -> Mapping[str, int]:
    hidden = integer_of(config, "hidden_size")
    if (inner := integer_of(config, "intermediate_size", default=2 * hidden)) != 2 * hidden:
        raise FormatError(f"has {inner} inner columns, and llama.cpp supports {2 * hidden}")
    return {
        "ssm.conv_kernel": _kernel(config, "conv_kernel", 4),
        "ssm.inner_size": inner,
        "ssm.state_size": integer_of(config, "state_size", default=16),
        "ssm.time_step_rank": integer_of(config, "time_step_rank", default=-(-hidden // 16)),
    }


def _mamba_mixer(fields: Mapping[str, int], hidden: int, layer: str) -> Layer:
    kernel, inner, state, rank = fields.values()
    yield from _convolved(layer, inner, kernel)
    for name, plain, shape in (
        ("ssm_in.weight", "in_proj.weight", (2 * inner, hidden)),
        ("ssm_x.weight", "x_proj.weight", (rank + 2 * state, inner)),
        ("ssm_dt.weight", "dt_proj.weight", (inner, rank)),
        ("ssm_dt.bias", "dt_proj.bias", (inner,)),
        ("ssm_d", "D", (inner,)),
        ("ssm_out.weight", "out_proj.weight", (hidden, inner)),
    ):
        yield name, PlainTensor(f"{layer}.{plain}", shape)
    yield "ssm_a", PlainTensor(f"{layer}.A_log", (inner, state), is_log=True)


def _mamba2_fields(config: Config) -> Mapping[str, int]:
    heads, size = integer_of(config, "num_heads"), integer_of(config, "head_dim")
    groups = integer_of(config, "n_groups", default=8)
    if heads % groups:
        raise FormatError(f"has {heads} heads, which is no multiple of {groups} groups")
    return {
        "ssm.conv_kernel": _kernel(config, "conv_kernel", 4),
        "ssm.inner_size": heads * size,
        "ssm.state_size": integer_of(config, "state_size", default=128),
        "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }


def _mamba2_mixer(fields: Mapping[str, int], hidden: int, layer: str) -> Layer:
    kernel, inner, state, heads, groups = fields.values()
    convolved = inner + 2 * groups * state
    yield from _convolved(layer, convolved, kernel)
    for name, plain, shape in (
        ("ssm_in.weight", "in_proj.weight", (inner + convolved + heads, hidden)),
        ("ssm_dt.bias", "dt_bias", (heads,)),
        ("ssm_d", "D", (heads,)),
        ("ssm_out.weight", "out_proj.weight", (hidden, inner)),
    ):
        yield name, PlainTensor(f"{layer}.{plain}", shape)
    yield "ssm_a", PlainTensor(f"{layer}.A_log", (heads,), is_log=True)
    norm = PlainTensor(f"{layer}.norm.weight", (inner,), stored=(groups, inner // groups))
    yield "ssm_norm.weight", norm


def _convolved(layer: str, rows: int, kernel: int) -> Layer:
    yield "ssm_conv1d.weight", PlainTensor(f"{layer}.conv1d.weight", (rows, 1, kernel))
    yield "ssm_conv1d.bias", PlainTensor(f"{layer}.conv1d.bias", (rows,))


def _kernel(config: Config, name: str, default: int) -> int:
    """Return how many tokens a convolution takes.

    Raises:
        FormatError: it is one alone, so that there would be no state.
    """
    if (found := integer_of(config, name, default=default)) < 2:
        raise FormatError(f"its config.json needs a number above 1 in {name!r}")
    return found


def _check_biases(config: Config) -> None:
    for name, wanted in (("use_bias", False), ("use_conv_bias", True)):
        if (found := config.get(name, wanted)) is not wanted:
            raise FormatError(f"its config.json has {name} {found!r}, not supported in GGUF files")


def _lfm2(config: Config) -> Tensors:
    hidden, inner = integer_of(config, "hidden_size"), _lfm2_inner(config)
    found = _around(config, "embed_tokens", "embedding_norm", "token_embd_norm", is_tied=True)
    for number, kind in enumerate(_lfm2_kinds(config)):
        layer = f"model.layers.{number}"
        mixer = _lfm2_attention if kind == ATTENTION else _lfm2_convolution
        for name, plain in mixer(config, hidden, layer):
            found[f"blk.{number}.{name}"] = plain
        for name, module, shape in (
            ("attn_norm", "operator_norm", (hidden,)),
            ("ffn_norm", "ffn_norm", (hidden,)),
            ("ffn_gate", "feed_forward.w1", (inner, hidden)),
            ("ffn_up", "feed_forward.w3", (inner, hidden)),
            ("ffn_down", "feed_forward.w2", (hidden, inner)),
        ):
            stored = f"blk.{number}.{name}.weight"
            found[stored] = PlainTensor(f"{layer}.{module}.weight", shape)
    return found


def _lfm2_attention(config: Config, hidden: int, layer: str) -> Layer:
    heads, key_heads = (integer_of(config, name) for name in HEADS)
    head = integer_of(config, "head_dim", default=hidden // heads)
    for name, plain, shape in (
        ("attn_q", "q_proj", (heads * head, hidden)),
        ("attn_k", "k_proj", (key_heads * head, hidden)),
        ("attn_v", "v_proj", (key_heads * head, hidden)),
        ("attn_output", "out_proj", (hidden, heads * head)),
        ("attn_q_norm", "q_layernorm", (head,)),
        ("attn_k_norm", "k_layernorm", (head,)),
    ):
        yield f"{name}.weight", PlainTensor(f"{layer}.self_attn.{plain}.weight", shape)


HEADS = ("num_attention_heads", "num_key_value_heads")


def _lfm2_convolution(config: Config, hidden: int, layer: str) -> Layer:
    kernel = _kernel(config, "conv_L_cache", 3)
    for name, plain, shape in (
        ("conv", "conv", (hidden, 1, kernel)),
        ("in_proj", "in_proj", (3 * hidden, hidden)),
        ("out_proj", "out_proj", (hidden, hidden)),
    ):
        yield f"shortconv.{name}.weight", PlainTensor(f"{layer}.conv.{plain}.weight", shape)


def _lfm2_fields(config: Config) -> FieldValues:
    if config.get("conv_bias"):
        raise FormatError("its config.json has conv_bias, not supported in GGUF files")
    heads = integer_of(config, "num_key_value_heads")
    kinds = _lfm2_kinds(config)
    return {
        "attention.head_count": integer_of(config, "num_attention_heads"),
        "attention.head_count_kv": [heads if kind == ATTENTION else 0 for kind in kinds],
        "shortconv.l_cache": _kernel(config, "conv_L_cache", 3),
    }


def _lfm2_kinds(config: Config) -> list[str]:
    """Return the kinds of layers.

    Raises:
        FormatError: one is another, or they are not as many as there are layers.
    """
    num = integer_of(config, "num_hidden_layers", MAX_LAYERS)
    kinds = config.get("layer_types")
    if kinds is None and isinstance(listed := config.get("full_attn_idxs"), list):
        kinds = [ATTENTION if number in listed else CONVOLUTION for number in range(num)]
    if not isinstance(kinds, list) or len(kinds) != num:
        raise FormatError(f"its config.json needs {num} kinds of layers in 'layer_types'")
    if other := [kind for kind in kinds if kind not in (CONVOLUTION, ATTENTION)]:
        raise FormatError(f"its config.json has a layer of the kind {other[0]!r}, not supported")
    return kinds


def _lfm2_inner(config: Config) -> int:
    """Return the inner size of feed-forward layers, which the model may round."""
    inner = integer_of(config, "block_ff_dim" if "block_ff_dim" in config else "intermediate_size")
    if not config.get("block_auto_adjust_ff_dim", True):
        return inner
    factor = config.get("block_ffn_dim_multiplier", 1.0)
    inner = int(factor * int(2 * inner / 3)) if factor is not None else int(2 * inner / 3)
    multiple = integer_of(config, "block_multiple_of", default=256)
    return -(-inner // multiple) * multiple


def _jamba(config: Config) -> Tensors:
    hidden = integer_of(config, "hidden_size")
    found = _around(config, "embed_tokens", "final_layernorm", is_tied=False)
    for number in range(integer_of(config, "num_hidden_layers", MAX_LAYERS)):
        layer = f"model.layers.{number}"
        has_attention = _is_in(config, "attn_layer", number)
        mixer = _jamba_attention if has_attention else _jamba_mixer
        has_experts = _num_experts(config) > 1 and _is_in(config, "expert_layer", number)
        feed_forward = _jamba_experts if has_experts else _jamba_dense
        for part in (mixer, feed_forward):
            for name, plain in part(config, hidden, layer):
                found[f"blk.{number}.{name}"] = plain
        for name, module in (("attn_norm", "input_layernorm"), ("ffn_norm", "pre_ff_layernorm")):
            stored = f"blk.{number}.{name}.weight"
            found[stored] = PlainTensor(f"{layer}.{module}.weight", (hidden,))
    return found


def _jamba_mixer(config: Config, hidden: int, layer: str) -> Layer:
    fields = _jamba_sizes(config)
    yield from _mamba_mixer(fields, hidden, f"{layer}.mamba")
    for name, size in (
        ("dt", fields["ssm.time_step_rank"]),
        ("b", fields["ssm.state_size"]),
        ("c", fields["ssm.state_size"]),
    ):
        plain = f"{layer}.mamba.{name}_layernorm.weight"
        yield f"ssm_{name}_norm.weight", PlainTensor(plain, (size,))


def _jamba_attention(config: Config, hidden: int, layer: str) -> Layer:
    heads, key_heads = (integer_of(config, name) for name in HEADS)
    keys = key_heads * (hidden // heads)
    for name, plain, rows in (
        ("attn_q", "q_proj", hidden),
        ("attn_k", "k_proj", keys),
        ("attn_v", "v_proj", keys),
        ("attn_output", "o_proj", hidden),
    ):
        yield f"{name}.weight", PlainTensor(f"{layer}.self_attn.{plain}.weight", (rows, hidden))


def _jamba_dense(config: Config, hidden: int, layer: str) -> Layer:
    inner = integer_of(config, "intermediate_size")
    for name, shape in (
        ("gate", (inner, hidden)),
        ("up", (inner, hidden)),
        ("down", (hidden, inner)),
    ):
        yield f"ffn_{name}.weight", PlainTensor(f"{layer}.feed_forward.{name}_proj.weight", shape)


def _jamba_experts(config: Config, hidden: int, layer: str) -> Layer:
    num = _num_experts(config)
    router = PlainTensor(f"{layer}.feed_forward.router.weight", (num, hidden))
    yield "ffn_gate_inp.weight", router
    for name, plain in _jamba_dense(config, hidden, layer):
        stored = name.replace(".weight", "_exps.weight")
        each = plain.name.replace("feed_forward.", "feed_forward.experts.{expert}.")
        yield stored, PlainTensor(each, (num, *plain.shape))


def _jamba_fields(config: Config) -> FieldValues:
    for name, wanted in (("mamba_proj_bias", False), ("mamba_conv_bias", True)):
        if (found := config.get(name, wanted)) is not wanted:
            raise FormatError(f"its config.json has {name} {found!r}, not supported in GGUF files")
    num = integer_of(config, "num_hidden_layers", MAX_LAYERS)
    heads = integer_of(config, "num_key_value_heads")
    with_heads = [heads * _is_in(config, "attn_layer", number) for number in range(num)]
    own = {"attention.head_count": integer_of(config, "num_attention_heads")}
    return {**_jamba_sizes(config), **own, "attention.head_count_kv": with_heads}


def _jamba_sizes(config: Config) -> Mapping[str, int]:
    own = {name: config.get(f"mamba_{name}") for name in ("d_conv", "d_state", "dt_rank", "expand")}
    hidden = integer_of(config, "hidden_size")
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": hidden * integer_of(own, "expand", default=2),
        "conv_kernel": own["d_conv"],
        "state_size": own["d_state"],
        "time_step_rank": own["dt_rank"],
    }
    return _mamba_fields(sizes)


def _num_experts(config: Config) -> int:
    return integer_of(config, "num_experts", default=16)


def _is_in(config: Config, kind: str, number: int) -> bool:
    """Return whether a layer is of a kind that recurs, such as ``attn_layer``."""
    period = integer_of(config, f"{kind}_period", default=8 if kind == "attn_layer" else 2)
    offset = config.get(f"{kind}_offset", 4 if kind == "attn_layer" else 1)
    return bool(number % period == offset)


def _around(
    config: Config, embedding: str, norm: str, stored_norm: str = "output_norm", *, is_tied: bool
) -> Tensors:
    """Return the tensors before and behind the layers.

    Args:
        config: of the model.
        embedding: the name of the embedding in a plain checkpoint.
        norm: that of the last norm.
        stored_norm: the name of the last norm in a file.
        is_tied: whether the head is the embedding if ``config.json`` does not state it.
    """
    hidden, vocabulary = (integer_of(config, name) for name in ("hidden_size", "vocab_size"))
    table = (vocabulary, hidden)
    found = {
        "token_embd.weight": PlainTensor(f"model.{embedding}.weight", table),
        f"{stored_norm}.weight": PlainTensor(f"model.{norm}.weight", (hidden,)),
    }
    if not config.get("tie_word_embeddings", is_tied):
        found["output.weight"] = PlainTensor("lm_head.weight", table)
    return found


RECURRENT: Mapping[str, Recurrent] = {
    "jamba": Recurrent("jamba", _jamba, _jamba_fields),
    "lfm2": Recurrent("lfm2", _lfm2, _lfm2_fields),
    "mamba": Recurrent("mamba", _mamba, _mamba_fields, "backbone"),
    "mamba2": Recurrent("mamba2", _mamba2, _mamba2_fields, "backbone"),
}
"""The families, by ``model_type``."""
