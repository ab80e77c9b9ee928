"""The tensors that llama.cpp's converter writes for a model, by its ``config.json``.

Source of names and of changed values: the package ``gguf`` and llama.cpp's
``convert_hf_to_gguf.py``. Covers decoders of texts, not vision towers. Opens no file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlmkit_quantized.errors import FormatError

MAX_SIZE = 2**24
MAX_LAYERS = 1024


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models, as the converter writes it.

    Attributes:
        architecture: the ``general.architecture`` of its files.
        reorders: whether rows of queries and keys are in the order of rotated pairs.
        adds_one: whether 1 was added to weights of norms.
        has_head_norms: whether queries and keys have norms.
        has_outer_norms: whether attention and MLP also have a norm after them.
        has_biases: whether queries, keys and values always have biases.
        is_sparse: whether layers have experts.
        head_size: the size of a head if ``config.json`` does not state it; 0 divides.
        is_tied: whether the head is the embedding if ``config.json`` does not state it.
    """

    architecture: str
    reorders: bool = False
    adds_one: bool = False
    has_head_norms: bool = False
    has_outer_norms: bool = False
    has_biases: bool = False
    is_sparse: bool = False
    head_size: int = 0
    is_tied: bool = False


FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", reorders=True),
    "mistral": Family("llama", reorders=True),
    "qwen2": Family("qwen2", has_biases=True),
    "qwen3": Family("qwen3", has_head_norms=True, head_size=128),
    "qwen3_moe": Family("qwen3moe", has_head_norms=True, is_sparse=True),
    "gemma3_text": Family(
        *("gemma3", False, True, True, True),
        head_size=256,
        is_tied=True,
    ),
}
"""The families, by ``model_type``."""

UNUSED = frozenset({"rope_freqs.weight"})
"""Tensors of constants that ``config.json`` states, too."""


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """What a tensor of a file is in a plain checkpoint.

    Attributes:
        name: the name of the weight; ``{expert}`` stands for the number of an expert.
        shape: the shape of the tensor, with an axis of experts in front if there are any.
        num_heads: the number of heads whose rows are in the order of rotated pairs; 0 for none.
        added: what the converter added to the values.
    """

    name: str
    shape: tuple[int, ...]
    num_heads: int = 0
    added: int = 0


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
        self.key_heads = self._integer("num_key_value_heads", default=self.heads)
        size = family.head_size or self.hidden // self.heads
        self.head = self._integer("head_dim", default=size)
        experts = "num_experts" if "num_experts" in config else "num_local_experts"
        self.experts = self._integer(experts) if family.is_sparse else 0
        inner = "moe_intermediate_size" if family.is_sparse else "intermediate_size"
        self.inner = self._integer(inner)
        self.is_tied = self.flag("tie_word_embeddings", default=family.is_tied)
        if family.is_sparse and (
            config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1
        ):
            raise FormatError("has layers without experts, which GGUF files do not support")

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
        value = self._config.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= largest:
            raise FormatError(f"its config.json needs a number of 1 to {largest} in {name!r}")
        return value


def plain_tensors(sizes: Sizes, family: Family) -> dict[str, PlainTensor]:
    """Return what each tensor of a complete file is, by its name in the file."""
    added = int(family.adds_one)
    table = (sizes.vocabulary, sizes.hidden)
    found = {
        "token_embd.weight": PlainTensor("model.embed_tokens.weight", table),
        "output_norm.weight": PlainTensor("model.norm.weight", (sizes.hidden,), added=added),
    }
    if not sizes.is_tied:
        found["output.weight"] = PlainTensor("lm_head.weight", table)
    for layer in range(sizes.layers):
        for name, plain in _of_layer(sizes, family, f"model.layers.{layer}"):
            found[f"blk.{layer}.{name}"] = plain
    return found


def _of_layer(sizes: Sizes, family: Family, layer: str) -> Iterator[tuple[str, PlainTensor]]:
    added, hidden = int(family.adds_one), (sizes.hidden,)
    norms = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if family.has_outer_norms:
        norms |= {
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        }
    for stored, name in norms.items():
        yield f"{stored}.weight", PlainTensor(f"{layer}.{name}.weight", hidden, added=added)
    yield from _of_attention(sizes, family, f"{layer}.self_attn")
    yield from _of_experts(sizes, layer) if family.is_sparse else _of_mlp(sizes, f"{layer}.mlp")


def _of_attention(sizes: Sizes, family: Family, layer: str) -> Iterator[tuple[str, PlainTensor]]:
    outer, inner = sizes.heads * sizes.head, sizes.key_heads * sizes.head
    is_biased = sizes.flag("attention_bias", default=False)
    reordered = {"q": sizes.heads, "k": sizes.key_heads} if family.reorders else {}
    for letter, rows in (("q", outer), ("k", inner), ("v", inner)):
        heads = reordered.get(letter, 0)
        name = f"{layer}.{letter}_proj"
        yield f"attn_{letter}.weight", PlainTensor(f"{name}.weight", (rows, sizes.hidden), heads)
        if is_biased or family.has_biases:
            yield f"attn_{letter}.bias", PlainTensor(f"{name}.bias", (rows,), heads)
    yield "attn_output.weight", PlainTensor(f"{layer}.o_proj.weight", (sizes.hidden, outer))
    if is_biased:
        yield "attn_output.bias", PlainTensor(f"{layer}.o_proj.bias", (sizes.hidden,))
    for letter in "qk" if family.has_head_norms else "":
        name, added = f"{layer}.{letter}_norm.weight", int(family.adds_one)
        yield f"attn_{letter}_norm.weight", PlainTensor(name, (sizes.head,), added=added)


def _of_mlp(sizes: Sizes, layer: str) -> Iterator[tuple[str, PlainTensor]]:
    is_biased = sizes.flag("mlp_bias", default=False)
    for which, shape in _projections(sizes):
        yield f"ffn_{which}.weight", PlainTensor(f"{layer}.{which}_proj.weight", shape)
        if is_biased:
            yield f"ffn_{which}.bias", PlainTensor(f"{layer}.{which}_proj.bias", shape[:1])


def _of_experts(sizes: Sizes, layer: str) -> Iterator[tuple[str, PlainTensor]]:
    router = (sizes.experts, sizes.hidden)
    yield "ffn_gate_inp.weight", PlainTensor(f"{layer}.mlp.gate.weight", router)
    for which, shape in _projections(sizes):
        name = f"{layer}.mlp.experts.{{expert}}.{which}_proj.weight"
        yield f"ffn_{which}_exps.weight", PlainTensor(name, (sizes.experts, *shape))


def _projections(sizes: Sizes) -> Iterator[tuple[str, tuple[int, int]]]:
    yield "gate", (sizes.inner, sizes.hidden)
    yield "up", (sizes.inner, sizes.hidden)
    yield "down", (sizes.hidden, sizes.inner)
