"""The decoder and the vision tower of a model in GGUF files, by its ``config.json``.

A row of ``VISION_MODELS`` per ``model_type`` with images; text models have the rows of
:mod:`.gguf_names`. Opens no file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from vlmkit_quantized import gguf_towers as towers
from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_names import (
    FAMILIES,
    Family,
    PlainTensor,
    Sizes,
    integer_of,
    plain_tensors,
)
from vlmkit_quantized.gguf_recurrent import RECURRENT, FieldValues
from vlmkit_quantized.gguf_towers import Tower

Config = Mapping[str, Any]
ANY = ""
"""The key of a tower or a decoder that a model has whatever ``model_type`` is stated in it."""

_OF_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
}
_OF_QWEN2 = {**_OF_LLAMA, "vocab_size": 151936, "intermediate_size": 22016}
_OF_QWEN2 |= {"num_key_value_heads": 32}
_OF_QWEN2_VL = {
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
}
_OF_GEMMA3 = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}


@dataclass(frozen=True, slots=True)
class Text:
    """A decoder inside a model with images.

    Attributes:
        family: its row in :data:`.FAMILIES`.
        defaults: what transformers takes for absent fields of ``text_config``.
        architectures: the ``general.architecture`` of its files, if it is not the family's.
    """

    family: str
    defaults: Config
    architectures: tuple[str, ...] = ()


LLAMA = Text("llama", _OF_LLAMA)
MISTRAL = Text(
    "mistral", {**_OF_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8}, ("llama",)
)
QWEN2 = Text("qwen2", _OF_QWEN2)
QWEN3 = Text("qwen3", {**_OF_QWEN2, "head_dim": 128})
OF_LLAVA = {"llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN2}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionModel:
    """A family of models with images.

    Attributes:
        towers: by the ``model_type`` of ``vision_config``; the first one is the default.
        texts: the decoders, by the ``model_type`` of ``text_config``.
        prefix: of the names of the decoder's weights.
        head: the name of the head.
        is_tied: whether the head is the embedding if ``config.json`` does not state it.
        is_flat: whether the fields of the decoder may be beside ``vision_config``.
        defaults: what transformers takes for absent fields.
    """

    towers: Mapping[str, Tower]
    texts: Mapping[str, Text]
    prefix: str = "language_model.model"
    head: str = "language_model.lm_head"
    is_tied: bool = False
    is_flat: bool = False
    defaults: Config = field(default_factory=dict)


QWEN2_VL = VisionModel(
    towers={ANY: towers.QWEN2_VL},
    texts={ANY: Text("qwen2", _OF_QWEN2_VL, ("qwen2vl",))},
    prefix="model",
    head="lm_head",
    is_flat=True,
)
IDEFICS3 = VisionModel(
    towers={ANY: towers.IDEFICS3},
    texts={"llama": LLAMA},
    prefix="model.text_model",
    head="lm_head",
    defaults={"scale_factor": 2},
)
LLAVA = VisionModel(
    towers={"clip_vision_model": towers.LLAVA, "pixtral": towers.PIXTRAL}, texts=OF_LLAVA
)
VISION_MODELS: Mapping[str, VisionModel] = {
    "gemma3": VisionModel(
        towers={"siglip_vision_model": towers.GEMMA3},
        texts={"gemma3_text": Text("gemma3_text", _OF_GEMMA3)},
        is_tied=True,
        defaults={"mm_tokens_per_image": 256},
    ),
    "idefics3": IDEFICS3,
    "internvl": VisionModel(
        towers={"internvl_vision": towers.INTERNVL},
        texts={"qwen2": QWEN2, "qwen3": QWEN3, "llama": LLAMA},
        is_tied=True,
        defaults={"downsample_ratio": 0.5},
    ),
    "llava": LLAVA,
    "llava_next": replace(LLAVA, towers={"clip_vision_model": towers.LLAVA_NEXT}),
    "mistral3": VisionModel(
        towers={"pixtral": towers.MISTRAL3},
        texts={"mistral": replace(MISTRAL, architectures=("llama", "mistral3"))},
        is_tied=True,
        defaults={"spatial_merge_size": 2},
    ),
    "qwen2_5_vl": replace(QWEN2_VL, towers={ANY: towers.QWEN2_5_VL}),
    "qwen2_vl": QWEN2_VL,
    "qwen3_vl": VisionModel(
        towers={ANY: towers.QWEN3_VL},
        texts={
            ANY: Text(
                "qwen3",
                {**_OF_QWEN2, "head_dim": 128, "rope_theta": 5e5},
                ("qwen3vl",),
            )
        },
        prefix="model.language_model",
        head="lm_head",
    ),
    "smolvlm": IDEFICS3,
}
"""The models with images, by ``model_type``."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """The decoder of a model.

    Attributes:
        plain: returns its tensors by ``config.json``.
        config: its fields of ``config.json``.
        architectures: the ``general.architecture`` that its file may have.
        prefix: of the names of its weights.
        head: the name of its head.
        may_have_head: whether a head in the file is read, although the embedding is one.
        fields: numbers that its file must have, after the architecture.
    """

    plain: Callable[[Config], dict[str, PlainTensor]]
    config: Config
    architectures: tuple[str, ...]
    prefix: str = "model"
    head: str = "lm_head"
    may_have_head: bool = False
    fields: FieldValues = field(default_factory=dict)

    @property
    def width(self) -> int:
        """The size of an embedding.

        Raises:
            FormatError: ``config.json`` does not state it.
        """
        return integer_of(self.config, "hidden_size")

    def tensors(self, *, has_head: bool) -> dict[str, PlainTensor]:
        """Return what each tensor of a complete file is, by its name in the file.

        Args:
            has_head: whether the file has a head.

        Raises:
            FormatError: a number of ``config.json`` is absent, or is none.
        """
        config = self.config
        if self.may_have_head and has_head:
            config = {**config, "tie_word_embeddings": False}
        return {stored: self._named(plain) for stored, plain in self.plain(config).items()}

    def _named(self, plain: PlainTensor) -> PlainTensor:
        whole, _, rest = plain.name.partition(".")
        return replace(plain, name=f"{self.head if whole == 'lm_head' else self.prefix}.{rest}")


def decoder_of(config: Config) -> Decoder:
    """Return the decoder of a model.

    Raises:
        FormatError: it is not supported.
    """
    model_type = str(config.get("model_type", ""))
    if (model := VISION_MODELS.get(model_type)) is not None:
        return _inner_decoder(config, model)
    if (recurrent := RECURRENT.get(model_type)) is not None:
        return Decoder(
            recurrent.tensors,
            config,
            (recurrent.architecture,),
            recurrent.prefix,
            fields=recurrent.fields(config),
        )
    if (family := FAMILIES.get(model_type)) is None:
        raise FormatError(
            f"its weights are GGUF, which is not supported for the model_type {model_type!r}; "
            f"supported are {', '.join(sorted([*FAMILIES, *RECURRENT, *VISION_MODELS]))}"
        )
    return Decoder(partial(_plain, family), config, (family.architecture,))


def _plain(family: Family, config: Config) -> dict[str, PlainTensor]:
    return plain_tensors(Sizes(config, family), family)


def _inner_decoder(config: Config, model: VisionModel) -> Decoder:
    text = config.get("text_config")
    if text is None and model.is_flat:
        text = config
    if not isinstance(text, Mapping):
        raise FormatError("its config.json needs an object in 'text_config'")
    found = _row(model.texts, text, "text_config")
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    own = {**found.defaults, **(rope if isinstance(rope, Mapping) else {}), **text}
    tied = config.get("tie_word_embeddings")
    own["tie_word_embeddings"] = model.is_tied if tied is None else tied
    family = FAMILIES[found.family]
    architectures = found.architectures or (family.architecture,)
    may_have_head = tied is None
    plain = partial(_plain, family)
    return Decoder(plain, own, architectures, model.prefix, model.head, may_have_head=may_have_head)


def tower_of(config: Config) -> tuple[Tower, Config] | None:
    """Return the vision tower of a model, and ``config.json`` with defaults; None of a text model.

    Raises:
        FormatError: it is not supported.
    """
    if (model := VISION_MODELS.get(str(config.get("model_type", "")))) is None:
        return None
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        raise FormatError("its config.json needs an object in 'vision_config'")
    found = _row(model.towers, vision, "vision_config")
    own = {**model.defaults, **_present(config)}
    return found, {**own, "vision_config": {**found.defaults, **_present(vision)}}


def _present(config: Config) -> Config:
    return {name: value for name, value in config.items() if value is not None}


def _row(rows: Mapping[str, Any], part: Config, where: str) -> Any:
    """Return the row of a part of a model; the first one if the part does not state which it is.

    Raises:
        FormatError: it states another one.
    """
    if ANY in rows:
        return rows[ANY]
    stated = part.get("model_type", next(iter(rows)))
    if not isinstance(stated, str) or stated not in rows:
        raise FormatError(
            f"its config.json has the model_type {stated!r} in {where!r}, which is not supported "
            f"in GGUF files; supported are {', '.join(rows)}"
        )
    return rows[stated]
