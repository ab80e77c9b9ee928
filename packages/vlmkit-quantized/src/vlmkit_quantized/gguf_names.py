"""The tensors that llama.cpp's converter writes for a model, by its ``config.json``.

Source of names and of changed values: the package ``gguf`` and llama.cpp's
``convert_hf_to_gguf.py``. Covers decoders of texts, not vision towers. Opens no file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from vlmkit_quantized.errors import FormatError

MAX_SIZE = 2**24
MAX_LAYERS = 1024


Bias = tuple[str, bool]
"""The field of ``config.json`` that states whether there are biases, and its default; a constant
has no field."""

ALWAYS: Bias = ("", True)
NEVER: Bias = ("", False)
OF_ATTENTION: Bias = ("attention_bias", False)
OF_MLP: Bias = ("mlp_bias", False)

BEFORE: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
AFTER: Mapping[str, str] = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
AROUND: Mapping[str, str] = {
    **BEFORE,
    **AFTER,
    "ffn_norm": "pre_feedforward_layernorm",
}
"""Norms of a layer: before attention and MLP, after them, and both."""

Projections = tuple[tuple[str, str], ...]
GATED: Projections = (("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj"))
UNGATED: Projections = (("up", "up_proj"), ("down", "down_proj"))
FUSED = "gate_up_proj"
FUSED_GATED: Projections = (("up", FUSED), ("down", "down_proj"))
"""The projections of an MLP in a file, and in a plain checkpoint."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a family.

    Attributes:
        module: the module of a layer that has them.
        router: the name of the router in it.
        projections: of an expert.
        inner: the field of ``config.json`` with the inner size of an expert.
        shared: the name of the shared expert in the module; empty if there is none.
    """

    module: str = "mlp"
    router: str = "gate"
    projections: Projections = GATED
    inner: str = "moe_intermediate_size"
    shared: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of models, as the converter writes it.

    Attributes:
        architecture: the ``general.architecture`` of its files.
        reorders: whether rows of queries and keys are in the order of rotated pairs.
        adds_one: whether 1 was added to weights of norms.
        norms: the norms of a layer, in a file and in a plain checkpoint.
        has_norm_biases: whether norms have biases, those of queries and keys excepted.
        head_norms: the norms of queries and keys in a plain checkpoint, if they have any.
        has_whole_norms: whether these norms cover all heads together.
        is_fused: whether queries, keys and values are one weight.
        input_bias: of queries, keys and values.
        output_bias: of the projection after attention.
        mlp_bias: of the MLP.
        projections: of the MLP.
        experts: if layers have experts instead of an MLP.
        head_size: the size of a head if ``config.json`` does not state it; 0 divides.
        key_heads: the heads of keys if it does not state them; 0 is those of queries.
        is_tied: whether the head is the embedding if it does not state it.
    """

    architecture: str
    reorders: bool = False
    adds_one: bool = False
    norms: Mapping[str, str] = field(default_factory=lambda: BEFORE)
    has_norm_biases: bool = False
    head_norms: tuple[str, str] | None = None
    has_whole_norms: bool = False
    is_fused: bool = False
    input_bias: Bias = OF_ATTENTION
    output_bias: Bias = OF_ATTENTION
    mlp_bias: Bias = OF_MLP
    projections: Projections = GATED
    experts: Experts | None = None
    head_size: int = 0
    key_heads: int = 0
    is_tied: bool = False


NORMED = ("q_norm", "k_norm")
LLAMA = Family(architecture="llama", reorders=True)
MIXTRAL = Experts(
    module="block_sparse_moe",
    projections=(("gate", "w1"), ("up", "w3"), ("down", "w2")),
    inner="intermediate_size",
)
QWEN2 = Family(architecture="qwen2", input_bias=ALWAYS, output_bias=NEVER, mlp_bias=NEVER)
GEMMA = Family(architecture="gemma", adds_one=True, head_size=256, is_tied=True)
GEMMA2 = replace(GEMMA, architecture="gemma2", norms=AROUND)
GLM4_NORMS = {
    **BEFORE,
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
USED: Bias = ("use_bias", False)
USED_BY_DEFAULT: Bias = ("use_bias", True)
STARCODER2 = (("up", "c_fc"), ("down", "c_proj"))

FAMILIES: Mapping[str, Family] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": replace(LLAMA, experts=MIXTRAL),
    "granite": replace(LLAMA, architecture="granite"),
    "smollm3": replace(LLAMA, architecture="smollm3", key_heads=4, is_tied=True),
    "arcee": replace(LLAMA, architecture="arcee", projections=UNGATED),
    "qwen2": QWEN2,
    "qwen2_moe": replace(QWEN2, architecture="qwen2moe", experts=Experts(shared="shared_expert")),
    "qwen3": Family(architecture="qwen3", head_norms=NORMED, head_size=128),
    "qwen3_moe": Family(architecture="qwen3moe", head_norms=NORMED, experts=Experts()),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": replace(GEMMA2, architecture="gemma3", head_norms=NORMED),
    "phi3": Family(
        architecture="phi3",
        is_fused=True,
        input_bias=NEVER,
        output_bias=NEVER,
        mlp_bias=NEVER,
        projections=FUSED_GATED,
    ),
    "olmo2": Family(architecture="olmo2", norms=AFTER, head_norms=NORMED, has_whole_norms=True),
    "olmoe": Family(
        architecture="olmoe",
        head_norms=NORMED,
        has_whole_norms=True,
        experts=Experts(inner="intermediate_size"),
    ),
    "glm4": Family(
        architecture="glm4",
        norms=GLM4_NORMS,
        output_bias=NEVER,
        projections=FUSED_GATED,
        head_size=128,
        key_heads=2,
    ),
    "exaone4": Family(
        architecture="exaone4",
        norms=AFTER,
        head_norms=NORMED,
        input_bias=NEVER,
        output_bias=NEVER,
        mlp_bias=NEVER,
    ),
    "ernie4_5": Family(
        architecture="ernie4_5",
        input_bias=USED,
        output_bias=USED,
        mlp_bias=USED,
        is_tied=True,
    ),
    "seed_oss": Family(
        architecture="seed_oss",
        norms={"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm"},
        input_bias=("attention_bias", True),
        output_bias=("attention_out_bias", False),
        head_size=128,
    ),
    "hunyuan_v1_dense": Family(
        architecture="hunyuan-dense", head_norms=("query_layernorm", "key_layernorm")
    ),
    "cohere2": Family(architecture="cohere2", norms={"attn_norm": "input_layernorm"}, is_tied=True),
    "starcoder2": Family(
        architecture="starcoder2",
        has_norm_biases=True,
        input_bias=USED_BY_DEFAULT,
        output_bias=USED_BY_DEFAULT,
        mlp_bias=USED_BY_DEFAULT,
        projections=STARCODER2,
        key_heads=2,
        is_tied=True,
    ),
    "nemotron": Family(
        architecture="nemotron", adds_one=True, has_norm_biases=True, projections=UNGATED
    ),
}
"""The families, by ``model_type``."""

UNUSED = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""Tensors of constants that ``config.json`` states, too."""


class Join(Enum):
    """How several tensors of a file become one weight, in their order in the table."""

    ROWS = "concatenated along the first axis"
    FRAMES = "stacked along a new third axis"


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """What a tensor of a file is in a plain checkpoint.

    Attributes:
        name: the name of the weight; ``{expert}`` stands for the number of an expert.
        shape: the shape of the tensor, with an axis of experts in front if there are any.
        num_heads: the number of heads whose rows are in the order of rotated pairs; 0 for none.
        added: what the converter added to the values.
        join: how it is joined with the other tensors of the same name; None if it is the only one.
        is_log: whether the plain weight is the logarithm of the negated values.
        stored: the shape in the file, if it is another one.
    """

    name: str
    shape: tuple[int, ...]
    num_heads: int = 0
    added: int = 0
    join: Join | None = None
    is_log: bool = False
    stored: tuple[int, ...] | None = None


class Sizes:
    """The numbers in a ``config.json`` that determine names and shapes.

    Args:
        config: its content.
        family: of the model.

    Raises:
        FormatError: a number is absent, or is none.
    """

    def __init__(self, config: Mapping[str, Any], family: Family) -> None:
        self._config = config
        self.layers = self._integer("num_hidden_layers", MAX_LAYERS)
        self.vocabulary = self._integer("vocab_size")
        self.hidden = self._integer("hidden_size")
        self.heads = self._integer("num_attention_heads")
        key_heads = family.key_heads or self.heads
        self.key_heads = self._integer("num_key_value_heads", default=key_heads)
        size = family.head_size or self.hidden // self.heads
        self.head = self._integer("head_dim", default=size)
        experts = "num_experts" if "num_experts" in config else "num_local_experts"
        self.experts = self._integer(experts) if family.experts else 0
        self.inner = self._integer(family.experts.inner if family.experts else "intermediate_size")
        is_shared = family.experts is not None and family.experts.shared
        self.shared = self._integer("shared_expert_intermediate_size") if is_shared else 0
        self.is_tied = self.flag("tie_word_embeddings", default=family.is_tied)
        if family.experts and (
            config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1
        ):
            raise FormatError("has layers without experts, which GGUF files do not support")

    def has(self, bias: Bias) -> bool:
        """Return whether there are biases.

        Raises:
            FormatError: the field is no boolean.
        """
        name, default = bias
        return self.flag(name, default=default) if name else default

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean.

        Raises:
            FormatError: it is something else.
        """
        value = self._config.get(name)
        if value is not None and not isinstance(value, bool):
            raise FormatError(f"its config.json needs true or false in {name!r}")
        return default if value is None else value

    def _integer(self, name: str, largest: int = MAX_SIZE, default: int | None = None) -> int:
        return integer_of(self._config, name, largest, default)


def integer_of(
    config: Mapping[str, Any], name: str, largest: int = MAX_SIZE, default: int | None = None
) -> int:
    """Return a positive number of a ``config.json``.

    Raises:
        FormatError: it is absent and has no default, or is something else.
    """
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= largest:
        raise FormatError(f"its config.json needs a number of 1 to {largest} in {name!r}")
    return value


def plain_tensors(sizes: Sizes, family: Family) -> dict[str, PlainTensor]:
    """Return what each tensor of a complete file is, by its name in the file."""
    table = (sizes.vocabulary, sizes.hidden)
    found = {"token_embd.weight": PlainTensor("model.embed_tokens.weight", table)}
    found |= _norm(family, "output_norm", "model.norm", sizes.hidden)
    if not sizes.is_tied:
        found["output.weight"] = PlainTensor("lm_head.weight", table)
    for layer in range(sizes.layers):
        for name, plain in _of_layer(sizes, family, f"model.layers.{layer}"):
            found[f"blk.{layer}.{name}"] = plain
    return found


def _norm(family: Family, stored: str, name: str, size: int) -> dict[str, PlainTensor]:
    added = int(family.adds_one)
    found = {f"{stored}.weight": PlainTensor(f"{name}.weight", (size,), added=added)}
    if family.has_norm_biases:
        found[f"{stored}.bias"] = PlainTensor(f"{name}.bias", (size,))
    return found


def _of_layer(sizes: Sizes, family: Family, layer: str) -> Iterator[tuple[str, PlainTensor]]:
    for stored, name in family.norms.items():
        yield from _norm(family, stored, f"{layer}.{name}", sizes.hidden).items()
    yield from _of_attention(sizes, family, f"{layer}.self_attn")
    if family.experts is None:
        yield from _of_mlp(sizes, family, f"{layer}.mlp")
    else:
        yield from _of_experts(sizes, family.experts, f"{layer}.{family.experts.module}")


def _of_attention(sizes: Sizes, family: Family, layer: str) -> Iterator[tuple[str, PlainTensor]]:
    outer, inner = sizes.heads * sizes.head, sizes.key_heads * sizes.head
    reordered = {"q": sizes.heads, "k": sizes.key_heads} if family.reorders else {}
    rows = {"q": outer, "k": inner, "v": inner}
    parts = {"qkv": outer + 2 * inner} if family.is_fused else rows
    for part, num in parts.items():
        heads = reordered.get(part, 0)
        name = f"{layer}.{part}_proj"
        yield f"attn_{part}.weight", PlainTensor(f"{name}.weight", (num, sizes.hidden), heads)
        if sizes.has(family.input_bias):
            yield f"attn_{part}.bias", PlainTensor(f"{name}.bias", (num,), heads)
    yield "attn_output.weight", PlainTensor(f"{layer}.o_proj.weight", (sizes.hidden, outer))
    if sizes.has(family.output_bias):
        yield "attn_output.bias", PlainTensor(f"{layer}.o_proj.bias", (sizes.hidden,))
    for part, name in zip("qk", family.head_norms or (), strict=False):
        size = rows[part] if family.has_whole_norms else sizes.head
        added = int(family.adds_one)
        plain = PlainTensor(f"{layer}.{name}.weight", (size,), added=added)
        yield f"attn_{part}_norm.weight", plain


def _of_mlp(sizes: Sizes, family: Family, layer: str) -> Iterator[tuple[str, PlainTensor]]:
    has_biases = sizes.has(family.mlp_bias)
    for which, name in family.projections:
        rows, columns = _shape(sizes, which, sizes.inner)
        rows = 2 * rows if name == FUSED else rows
        yield f"ffn_{which}.weight", PlainTensor(f"{layer}.{name}.weight", (rows, columns))
        if has_biases:
            yield f"ffn_{which}.bias", PlainTensor(f"{layer}.{name}.bias", (rows,))


def _of_experts(sizes: Sizes, of: Experts, layer: str) -> Iterator[tuple[str, PlainTensor]]:
    router = (sizes.experts, sizes.hidden)
    yield "ffn_gate_inp.weight", PlainTensor(f"{layer}.{of.router}.weight", router)
    for which, name in of.projections:
        plain = f"{layer}.experts.{{expert}}.{name}.weight"
        whole = (sizes.experts, *_shape(sizes, which, sizes.inner))
        yield f"ffn_{which}_exps.weight", PlainTensor(plain, whole)
    if not of.shared:
        return
    for which, name in of.projections:
        shape = _shape(sizes, which, sizes.shared)
        yield (
            f"ffn_{which}_shexp.weight",
            PlainTensor(f"{layer}.{of.shared}.{name}.weight", shape),
        )
    gate = PlainTensor(f"{layer}.{of.shared}_gate.weight", (1, sizes.hidden))
    yield "ffn_gate_inp_shexp.weight", gate


def _shape(sizes: Sizes, which: str, inner: int) -> tuple[int, int]:
    """Return the shape of a projection of an MLP."""
    return (sizes.hidden, inner) if which == "down" else (inner, sizes.hidden)
