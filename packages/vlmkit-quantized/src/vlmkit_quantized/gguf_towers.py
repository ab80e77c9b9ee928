"""The tensors of vision towers and projectors in ``mmproj`` files, by ``config.json``.

Source of names and of changed values: the package ``gguf``, llama.cpp's ``convert_hf_to_gguf.py``,
and its older converter of LLaVA's towers, which exchanges the names of the two layers of an MLP.
Opens no file, and does not know decoders.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vlmkit_quantized.errors import FormatError
from vlmkit_quantized.gguf_file import GgufFile
from vlmkit_quantized.gguf_names import MAX_LAYERS, Join, PlainTensor, integer_of

Config = Mapping[str, Any]
Named = Iterator[tuple[str, PlainTensor]]
COLOURS, FRAMES = 3, 2
CLASS_TOKENS = 1
POOLED = 4  # patches on a side that Gemma 3's projector averages, unless a file says otherwise
GELU, SILU, QUICK_GELU = "use_gelu", "use_silu", ""
ACTIVATIONS: Mapping[str, str] = {
    "gelu": GELU,
    "gelu_pytorch_tanh": GELU,
    "gelu_new": GELU,
    "silu": SILU,
    "quick_gelu": QUICK_GELU,
}
"""The flags of files, by the ``hidden_act`` of ``config.json``."""


@dataclass(frozen=True)
class TowerSizes:
    """The numbers of a tower.

    Attributes:
        config: the whole ``config.json``, with the defaults of the family in ``vision_config``.
        file: the header of the ``mmproj`` file.
        text_width: the size of an embedding of the decoder.
    """

    config: Config
    file: GgufFile
    text_width: int

    @property
    def vision(self) -> Config:
        """The ``vision_config``."""
        found: Config = self.config["vision_config"]
        return found

    def size(self, name: str) -> int:
        """Return a number of ``vision_config``; of a pair of equal ones, one."""
        value = self.vision.get(name)
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]
        largest = MAX_LAYERS if name in ("depth", "num_hidden_layers") else 2**24
        return integer_of({f"vision_config.{name}": value}, f"vision_config.{name}", largest)

    @property
    def num_patches(self) -> int:
        """The number of patches of an image of the size in ``config.json``."""
        num = (self.size("image_size") // self.size("patch_size")) ** 2
        if not num:
            raise FormatError("its config.json has patches that are larger than an image")
        return num

    def patch(self, width: int) -> tuple[int, ...]:
        """Return the shape of the kernel that embeds patches."""
        return (width, COLOURS, self.size("patch_size"), self.size("patch_size"))


@dataclass(frozen=True, slots=True)
class Fact:
    """What a file must state.

    Attributes:
        key: the field, after ``clip.vision.``.
        wanted: the number or numbers that follow from ``config.json``.
        field: where they are in it.
        default: the number of a file without the field; None is any.
    """

    key: str
    wanted: float | list[int]
    field: str
    default: float | None = None


Build = Callable[[TowerSizes], Named]


def _none(_: TowerSizes) -> Named:
    yield from ()


def _no_facts(_: TowerSizes) -> Iterator[Fact]:
    yield from ()


@dataclass(frozen=True, kw_only=True)
class Tower:
    """A kind of vision tower with its projector.

    Attributes:
        projector: its ``clip.projector_type``.
        tensors: yields the tensors.
        stated: fields of a file after ``clip.vision.``, and those of ``vision_config`` that must
            equal them.
        facts: yields what else files state.
        defaults: what transformers takes for absent fields of ``vision_config``.
        unused: tensors that are not read.
        absent: yields weights that a file may lack, since no answer depends on them.
        states_width: whether ``projection_dim`` is the width of the decoder.
    """

    projector: str
    tensors: Build
    stated: tuple[tuple[str, str], ...]
    defaults: Mapping[str, Any]
    facts: Callable[[TowerSizes], Iterator[Fact]] = _no_facts
    unused: frozenset[str] = frozenset()
    absent: Build = _none
    states_width: bool = True


def _weight(stored: str, name: str, *shape: int, **how: Any) -> Named:
    yield f"{stored}.weight", PlainTensor(f"{name}.weight", shape, **how)


def _linear(stored: str, name: str, rows: int, columns: int, **how: Any) -> Named:
    """Yield a weight and a bias."""
    yield f"{stored}.weight", PlainTensor(f"{name}.weight", (rows, columns), **how)
    yield f"{stored}.bias", PlainTensor(f"{name}.bias", (rows,), **how)


def _norm(stored: str, name: str, size: int, *, has_bias: bool = True) -> Named:
    yield f"{stored}.weight", PlainTensor(f"{name}.weight", (size,))
    if has_bias:
        yield f"{stored}.bias", PlainTensor(f"{name}.bias", (size,))


def _mlp(sizes: TowerSizes, stored: str, names: tuple[str, str], width: int, inner: int) -> Named:
    """Yield the two layers of an MLP, whose names older files exchange."""
    up, down = "ffn_up", "ffn_down"
    found = sizes.file.tensors.get(f"{stored}.{down}.weight")
    has_shape_of_up = found is not None and found.shape == (inner, width)
    is_old = sizes.file.text("clip.projector_type") == LLAVA.projector
    if has_shape_of_up and (inner != width or is_old):
        up, down = down, up
    yield from _linear(f"{stored}.{up}", names[0], inner, width)
    yield from _linear(f"{stored}.{down}", names[1], width, inner)


# Qwen


def _qwen_patches(width: int, sizes: TowerSizes, name: str) -> Named:
    """Yield the kernel for pairs of frames, which files have as two kernels."""
    if sizes.size("temporal_patch_size") != FRAMES:
        raise FormatError("its config.json has patches of more or less than two frames")
    for number in range(FRAMES):
        suffix = ".1" if number else ""
        plain = PlainTensor(f"{name}.weight", sizes.patch(width), join=Join.FRAMES)
        yield f"v.patch_embd.weight{suffix}", plain


def _qwen2_attention(stored: str, name: str, width: int) -> Named:
    for part in "qkv":
        yield from _linear(f"{stored}.attn_{part}", f"{name}.qkv", width, width, join=Join.ROWS)
    yield from _linear(f"{stored}.attn_out", f"{name}.proj", width, width)


def _qwen2_vl(sizes: TowerSizes) -> Named:
    width = sizes.size("embed_dim")
    inner = width * sizes.size("mlp_ratio")
    yield from _qwen_patches(width, sizes, "visual.patch_embed.proj")
    for number in range(sizes.size("depth")):
        stored, name = f"v.blk.{number}", f"visual.blocks.{number}"
        for norm in (1, 2):
            yield from _norm(f"{stored}.ln{norm}", f"{name}.norm{norm}", width)
        yield from _qwen2_attention(stored, f"{name}.attn", width)
        names = (f"{name}.mlp.fc1", f"{name}.mlp.fc2")
        yield from _mlp(sizes, stored, names, width, inner)
    yield from _norm("v.post_ln", "visual.merger.ln_q", width)
    yield from _qwen2_merger(sizes, width)


def _qwen2_merger(sizes: TowerSizes, width: int) -> Named:
    joined = width * sizes.size("spatial_merge_size") ** 2
    yield from _linear("mm.0", "visual.merger.mlp.0", joined, joined)
    yield from _linear("mm.2", "visual.merger.mlp.2", sizes.text_width, joined)


def _qwen2_5_vl(sizes: TowerSizes) -> Named:
    width, inner = sizes.size("hidden_size"), sizes.size("intermediate_size")
    yield from _qwen_patches(width, sizes, "visual.patch_embed.proj")
    for number in range(sizes.size("depth")):
        stored, name = f"v.blk.{number}", f"visual.blocks.{number}"
        for norm in (1, 2):
            yield from _norm(f"{stored}.ln{norm}", f"{name}.norm{norm}", width, has_bias=False)
        yield from _qwen2_attention(stored, f"{name}.attn", width)
        for part in ("gate", "up"):
            yield from _linear(f"{stored}.ffn_{part}", f"{name}.mlp.{part}_proj", inner, width)
        yield from _linear(f"{stored}.ffn_down", f"{name}.mlp.down_proj", width, inner)
    yield from _norm("v.post_ln", "visual.merger.ln_q", width, has_bias=False)
    yield from _qwen2_merger(sizes, width)


def _windows(sizes: TowerSizes) -> Iterator[Fact]:
    """Yield which layers of Qwen 2.5's tower have no windows: each last one of so many."""
    name = "fullatt_block_indexes"
    found = sizes.vision.get(name)
    if not isinstance(found, list) or not found or not all(type(each) is int for each in found):
        raise FormatError(f"its config.json needs layers in 'vision_config.{name}'")
    step = found[0] + 1
    is_regular = found == [step * number - 1 for number in range(1, len(found) + 1)]
    yield Fact("n_wa_pattern", step if is_regular else 0, name)


def _qwen3_vl(sizes: TowerSizes) -> Named:
    width, inner = sizes.size("hidden_size"), sizes.size("intermediate_size")
    joined, whole = width * sizes.size("spatial_merge_size") ** 2, "model.visual"
    yield from _qwen_patches(width, sizes, f"{whole}.patch_embed.proj")
    yield "v.patch_embd.bias", PlainTensor(f"{whole}.patch_embed.proj.bias", (width,))
    num = sizes.size("num_position_embeddings")
    yield from _weight("v.position_embd", f"{whole}.pos_embed", num, width)
    for number in range(sizes.size("depth")):
        stored, name = f"v.blk.{number}", f"{whole}.blocks.{number}"
        for norm in (1, 2):
            yield from _norm(f"{stored}.ln{norm}", f"{name}.norm{norm}", width)
        yield from _linear(f"{stored}.attn_qkv", f"{name}.attn.qkv", 3 * width, width)
        yield from _linear(f"{stored}.attn_out", f"{name}.attn.proj", width, width)
        yield from _linear(f"{stored}.ffn_up", f"{name}.mlp.linear_fc1", inner, width)
        yield from _linear(f"{stored}.ffn_down", f"{name}.mlp.linear_fc2", width, inner)
    yield from _norm("v.post_ln", f"{whole}.merger.norm", width)
    yield from _linear("mm.0", f"{whole}.merger.linear_fc1", joined, joined)
    yield from _linear("mm.2", f"{whole}.merger.linear_fc2", sizes.text_width, joined)
    for number, layer in enumerate(deep_layers(sizes.vision)):
        stored, name = f"v.deepstack.{layer}", f"{whole}.deepstack_merger_list.{number}"
        yield from _norm(f"{stored}.norm", f"{name}.norm", joined)
        yield from _linear(f"{stored}.fc1", f"{name}.linear_fc1", joined, joined)
        yield from _linear(f"{stored}.fc2", f"{name}.linear_fc2", sizes.text_width, joined)


def deep_layers(vision: Config) -> list[int]:
    """Return the layers of a tower of Qwen 3 whose outputs reach the decoder, too.

    Raises:
        FormatError: they are no layers of it.
    """
    found, depth = vision.get("deepstack_visual_indexes"), vision.get("depth")
    are_layers = isinstance(found, list) and all(
        type(each) is int and 0 <= each < (depth or 0) for each in found
    )
    if not isinstance(found, list) or not are_layers or len(set(found)) != len(found):
        raise FormatError(
            "its config.json needs layers in 'vision_config.deepstack_visual_indexes'"
        )
    return found


def _deep(sizes: TowerSizes) -> Iterator[Fact]:
    name, depth = "deepstack_visual_indexes", sizes.size("depth")
    deep = deep_layers(sizes.vision)
    yield Fact("is_deepstack_layers", [int(layer in deep) for layer in range(depth)], name)


# SigLIP and CLIP


def _encoder(sizes: TowerSizes, whole: str, layers: range) -> Named:
    width, inner = sizes.size("hidden_size"), sizes.size("intermediate_size")
    for number in layers:
        stored, name = f"v.blk.{number}", f"{whole}.encoder.layers.{number}"
        for norm in (1, 2):
            yield from _norm(f"{stored}.ln{norm}", f"{name}.layer_norm{norm}", width)
        for part in "qkv":
            plain = f"{name}.self_attn.{part}_proj"
            yield from _linear(f"{stored}.attn_{part}", plain, width, width)
        yield from _linear(f"{stored}.attn_out", f"{name}.self_attn.out_proj", width, width)
        names = (f"{name}.mlp.fc1", f"{name}.mlp.fc2")
        yield from _mlp(sizes, stored, names, width, inner)


def _siglip(sizes: TowerSizes, whole: str) -> Named:
    width, inside = sizes.size("hidden_size"), f"{whole}.embeddings"
    yield from _weight("v.patch_embd", f"{inside}.patch_embedding", *sizes.patch(width))
    yield "v.patch_embd.bias", PlainTensor(f"{inside}.patch_embedding.bias", (width,))
    yield from _weight("v.position_embd", f"{inside}.position_embedding", sizes.num_patches, width)
    yield from _encoder(sizes, whole, range(sizes.size("num_hidden_layers")))
    yield from _norm("v.post_ln", f"{whole}.post_layernorm", width)


def _gemma3(sizes: TowerSizes) -> Named:
    width, inside = sizes.size("hidden_size"), "multi_modal_projector"
    yield from _siglip(sizes, "vision_tower.vision_model")
    projection = PlainTensor(f"{inside}.mm_input_projection_weight", (width, sizes.text_width))
    yield "mm.input_projection.weight", projection
    yield from _weight("mm.soft_emb_norm", f"{inside}.mm_soft_emb_norm", width, added=1)


def _pooling(sizes: TowerSizes) -> Iterator[Fact]:
    """Yield how many patches on a side become one token."""
    side = sizes.size("image_size") // sizes.size("patch_size")
    num = math.isqrt(integer_of(sizes.config, "mm_tokens_per_image"))
    yield Fact("projector.scale_factor", side // num, "mm_tokens_per_image", POOLED)


def _shuffling(sizes: TowerSizes) -> Iterator[Fact]:
    yield Fact("projector.scale_factor", _scale_factor(sizes), "scale_factor")


def _scale_factor(sizes: TowerSizes) -> int:
    return integer_of(sizes.config, "scale_factor")


def _idefics3(sizes: TowerSizes) -> Named:
    factor = _scale_factor(sizes)
    columns = sizes.size("hidden_size") * factor**2
    yield from _siglip(sizes, "model.vision_model")
    name = "model.connector.modality_projection.proj"
    yield from _weight("mm.model.fc", name, sizes.text_width, columns)


def used_layers(config: Config) -> tuple[int, ...]:
    """Return after how many layers the outputs of a tower are used.

    Raises:
        FormatError: ``vision_feature_layer`` names no layers.
    """
    num = config["vision_config"].get("num_hidden_layers")
    found = config.get("vision_feature_layer", -2)
    listed = found if isinstance(found, list) else [found]
    are_numbers = bool(listed) and all(type(each) is int for each in (num, *listed))
    used = [each + num + 1 if each < 0 else each for each in listed] if are_numbers else [0]
    if not all(0 < each <= (num or 0) for each in used):
        raise FormatError("its config.json needs layers of its tower in 'vision_feature_layer'")
    return tuple(used)


CLIP = "vision_tower.vision_model"


def _stored_layers(sizes: TowerSizes) -> int:
    """Return the layers of CLIP in a file, which may end after the last one that is used."""
    num_layers, used = sizes.size("num_hidden_layers"), max(used_layers(sizes.config))
    found = sizes.file.fields.get("clip.vision.block_count")
    return used if isinstance(found, int) and found == used else num_layers


def _clip(sizes: TowerSizes) -> Named:
    width, inside = sizes.size("hidden_size"), f"{CLIP}.embeddings"
    yield "v.class_embd", PlainTensor(f"{inside}.class_embedding", (width,))
    yield from _weight("v.patch_embd", f"{inside}.patch_embedding", *sizes.patch(width))
    num = sizes.num_patches + CLASS_TOKENS
    yield from _weight("v.position_embd", f"{inside}.position_embedding", num, width)
    yield from _norm("v.pre_ln", f"{CLIP}.pre_layrnorm", width)
    yield from _encoder(sizes, CLIP, range(_stored_layers(sizes)))
    if "v.post_ln.weight" in sizes.file.tensors:
        yield from _norm("v.post_ln", f"{CLIP}.post_layernorm", width)
    yield from _llava_projector(sizes, width * len(used_layers(sizes.config)), (0, 2))


def _features(sizes: TowerSizes) -> Iterator[Fact]:
    yield Fact("block_count", _stored_layers(sizes), "num_hidden_layers")
    yield Fact("feature_layer", list(used_layers(sizes.config)), "vision_feature_layer")


def _unused_of_clip(sizes: TowerSizes) -> Named:
    """Yield what a file may lack: the norm of an output that LLaVA ignores, and unused layers."""
    if "v.post_ln.weight" not in sizes.file.tensors:
        yield from _norm("v.post_ln", f"{CLIP}.post_layernorm", sizes.size("hidden_size"))
    layers = range(_stored_layers(sizes), sizes.size("num_hidden_layers"))
    yield from _encoder(sizes, CLIP, layers)


def _llava_projector(sizes: TowerSizes, columns: int, numbers: tuple[int, int]) -> Named:
    has_bias = sizes.config.get("multimodal_projector_bias", True)
    for number, stored in enumerate(numbers, 1):
        linear = _linear if has_bias else _weight
        name = f"multi_modal_projector.linear_{number}"
        yield from linear(f"mm.{stored}", name, sizes.text_width, columns)
        columns = sizes.text_width


def _clip_with_tiles(sizes: TowerSizes) -> Named:
    yield from _clip(sizes)
    yield "model.image_newline", PlainTensor("image_newline", (sizes.text_width,))


# Pixtral


def _pixtral(sizes: TowerSizes) -> Named:
    width, inner = sizes.size("hidden_size"), sizes.size("intermediate_size")
    heads, whole = sizes.size("num_attention_heads"), "vision_tower"
    yield from _weight("v.patch_embd", f"{whole}.patch_conv", *sizes.patch(width))
    yield from _weight("v.pre_ln", f"{whole}.ln_pre", width)
    for number in range(sizes.size("num_hidden_layers")):
        stored, name = f"v.blk.{number}", f"{whole}.transformer.layers.{number}"
        yield from _weight(f"{stored}.ln1", f"{name}.attention_norm", width)
        yield from _weight(f"{stored}.ln2", f"{name}.ffn_norm", width)
        for part, plain in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o")):
            rotated = heads if part in ("q", "k") else 0
            full = f"{name}.attention.{plain}_proj"
            yield from _weight(f"{stored}.attn_{part}", full, width, width, num_heads=rotated)
        for part in ("gate", "up", "down"):
            shape = (width, inner) if part == "down" else (inner, width)
            yield from _weight(f"{stored}.ffn_{part}", f"{name}.feed_forward.{part}_proj", *shape)
    yield from _llava_projector(sizes, width, (1, 2))


def _mistral3(sizes: TowerSizes) -> Named:
    width, inside = sizes.size("hidden_size"), "multi_modal_projector"
    merged = integer_of(sizes.config, "spatial_merge_size") ** 2
    own = {"multimodal_projector_bias": False, **sizes.config}
    yield from _pixtral(TowerSizes(own, sizes.file, sizes.text_width))
    yield from _weight("mm.input_norm", f"{inside}.norm", width)
    name = f"{inside}.patch_merger.merging_layer"
    yield from _weight("mm.patch_merger", name, width, width * merged)


def _merging(sizes: TowerSizes) -> Iterator[Fact]:
    merged = integer_of(sizes.config, "spatial_merge_size")
    yield Fact("spatial_merge_size", merged, "spatial_merge_size")


# InternVL


def _internvl(sizes: TowerSizes) -> Named:
    width, whole = sizes.size("hidden_size"), "vision_tower"
    inside = f"{whole}.embeddings"
    has_bias = sizes.vision.get("norm_type") != "rms_norm"
    yield "v.class_embd", PlainTensor(f"{inside}.cls_token", (1, 1, width))
    name = f"{inside}.patch_embeddings.projection"
    yield from _weight("v.patch_embd", name, *sizes.patch(width))
    yield "v.patch_embd.bias", PlainTensor(f"{name}.bias", (width,))
    shape = (1, sizes.num_patches + CLASS_TOKENS, width)
    yield "v.position_embd.weight", PlainTensor(f"{inside}.position_embeddings", shape)
    for number in range(sizes.size("num_hidden_layers")):
        name = f"{whole}.encoder.layer.{number}"
        yield from _layer_of_internvl(sizes, f"v.blk.{number}", name, has_bias=has_bias)
    joined, projector = width * _factor(sizes) ** 2, "multi_modal_projector"
    yield from _norm("mm.model.mlp.0", f"{projector}.layer_norm", joined)
    yield from _linear("mm.model.mlp.1", f"{projector}.linear_1", sizes.text_width, joined)
    yield from _linear(
        "mm.model.mlp.3", f"{projector}.linear_2", sizes.text_width, sizes.text_width
    )


def _factor(sizes: TowerSizes) -> int:
    """Return how many patches on a side become one token."""
    ratio = sizes.config.get("downsample_ratio")
    if not isinstance(ratio, int | float) or not 2**-8 <= ratio <= 1:
        raise FormatError("its config.json needs a number of 0 to 1 in 'downsample_ratio'")
    return round(1 / ratio)


def _downsampling(sizes: TowerSizes) -> Iterator[Fact]:
    yield Fact("projector.scale_factor", _factor(sizes), "downsample_ratio")


def _layer_of_internvl(sizes: TowerSizes, stored: str, name: str, *, has_bias: bool) -> Named:
    width, inner = sizes.size("hidden_size"), sizes.size("intermediate_size")
    for number, norm in ((1, "layernorm_before"), (2, "layernorm_after")):
        yield from _norm(f"{stored}.ln{number}", f"{name}.{norm}", width, has_bias=has_bias)
        yield f"{stored}.ls{number}.weight", PlainTensor(f"{name}.lambda_{number}", (width,))
    linear = _linear if sizes.vision.get("attention_bias") else _weight
    for part in "qkv":
        yield from linear(f"{stored}.attn_{part}", f"{name}.attention.{part}_proj", width, width)
    plain = f"{name}.attention.projection_layer"
    yield from _linear(f"{stored}.attn_out", plain, width, width)
    if sizes.vision.get("use_qk_norm"):
        for part in "qk":
            yield from _weight(f"{stored}.attn_{part}_norm", f"{name}.attention.{part}_norm", width)
    yield from _linear(f"{stored}.ffn_up", f"{name}.mlp.fc1", inner, width)
    yield from _linear(f"{stored}.ffn_down", f"{name}.mlp.fc2", width, inner)


PATCHES = (("patch_size", "patch_size"),)
OF_QWEN = (*PATCHES, ("block_count", "depth"), ("attention.head_count", "num_heads"))
INNER = ("feed_forward_length", "intermediate_size")
WIDTH = ("embedding_length", "hidden_size")
OF_TOWER = (
    *PATCHES,
    WIDTH,
    INNER,
    ("image_size", "image_size"),
    ("attention.head_count", "num_attention_heads"),
)
LAYERS = ("block_count", "num_hidden_layers")
EPSILON = ("attention.layer_norm_epsilon", "layer_norm_eps")

QWEN2_VL = Tower(
    projector="qwen2vl_merger",
    tensors=_qwen2_vl,
    stated=(*OF_QWEN, ("embedding_length", "embed_dim")),
    defaults={
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "depth": 32,
        "embed_dim": 1280,
        "mlp_ratio": 4,
        "num_heads": 16,
        "patch_size": 14,
        "hidden_act": "quick_gelu",
    },
)
QWEN2_5_VL = Tower(
    projector="qwen2.5vl_merger",
    tensors=_qwen2_5_vl,
    stated=(*OF_QWEN, WIDTH, INNER),
    facts=_windows,
    defaults={
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "depth": 32,
        "hidden_size": 3584,
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "hidden_act": "silu",
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
)
QWEN3_VL = Tower(
    projector="qwen3vl_merger",
    tensors=_qwen3_vl,
    stated=(*OF_QWEN, WIDTH, INNER, ("spatial_merge_size", "spatial_merge_size")),
    facts=_deep,
    defaults={
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "patch_size": 16,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
        "hidden_act": "gelu_pytorch_tanh",
    },
)
GEMMA3 = Tower(
    projector="gemma3",
    tensors=_gemma3,
    stated=(*OF_TOWER, LAYERS, EPSILON),
    facts=_pooling,
    defaults={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
)
IDEFICS3 = Tower(
    projector="idefics3",
    tensors=_idefics3,
    stated=(*OF_TOWER, LAYERS),
    facts=_shuffling,
    defaults={
        "hidden_size": 1152,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "image_size": 224,
        "patch_size": 32,
        "hidden_act": "gelu_pytorch_tanh",
    },
)
LLAVA = Tower(
    projector="mlp",
    tensors=_clip,
    absent=_unused_of_clip,
    states_width=False,
    stated=(*OF_TOWER, EPSILON),
    facts=_features,
    defaults={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 32,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
    },
)
LLAVA_NEXT = replace(LLAVA, tensors=_clip_with_tiles)
OF_PIXTRAL = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 1024,
    "patch_size": 16,
    "hidden_act": "gelu",
}
BREAK = frozenset({"v.token_embd.img_break"})
"""The embedding of a token, which the decoder's file has, too."""
PIXTRAL = Tower(
    projector="pixtral",
    tensors=_pixtral,
    stated=(*OF_TOWER, LAYERS),
    defaults=OF_PIXTRAL,
    unused=BREAK,
)
MISTRAL3 = Tower(
    projector="pixtral",
    tensors=_mistral3,
    stated=(*OF_TOWER, LAYERS),
    facts=_merging,
    defaults=OF_PIXTRAL,
    unused=BREAK,
)
INTERNVL = Tower(
    projector="internvl",
    tensors=_internvl,
    stated=(*OF_TOWER, LAYERS, EPSILON),
    facts=_downsampling,
    defaults={
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 448,
        "patch_size": 14,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-6,
    },
)
