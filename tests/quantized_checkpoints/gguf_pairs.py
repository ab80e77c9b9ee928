"""Folders with two GGUF files, a decoder and a vision tower, as llama.cpp's converters write.

The facts are those of ``convert_hf_to_gguf.py``, and of the older converter of LLaVA's towers.
Names come from the package ``gguf``, except LLaVA's, which that converter makes by replacing parts.
"""

import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from transformers import AutoConfig

from quantized_checkpoints import folders, gguf_folders
from quantized_checkpoints.folders import Quantized
from quantized_checkpoints.gguf_folders import FILE, Arrays, finish

PROJECTOR = "mmproj-tiny-F16.gguf"
PLACES = "v.position_embd.weight"
ARCH = gguf.MODEL_ARCH
MANY_BLOCKS = 64  # the package numbers the layers of projectors as it does blocks
Fields = dict[str, Any]
Part = tuple[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Pair:
    """A family with images, as the converters write it.

    Attributes:
        arch: of the decoder's file.
        prefix: of the decoder's weights in a plain checkpoint.
        text: whose rows and norms the decoder has, a family of text models.
        split: returns the tensors of a weight of the tower, by names that the package knows.
        fields: returns the fields of the tower's file.
        source: the family of the zoo that it is made from, if it is another one.
        values: of its configuration.
    """

    arch: gguf.MODEL_ARCH
    prefix: str
    text: str
    split: Callable[[str, Any, Any], Iterator[Part]]
    fields: Callable[[Any], Fields]
    source: str = ""
    values: Fields = field(default_factory=dict)


# Towers


def _common(config: Any, projector: str, **more: Any) -> Fields:
    vision = config.vision_config
    values = {
        "clip.has_vision_encoder": True,
        "clip.projector_type": projector,
        "clip.vision.projection_dim": config.get_text_config().hidden_size,
        "clip.vision.image_size": _one(getattr(vision, "image_size", None) or 560),
        "clip.vision.patch_size": _one(vision.patch_size),
        "clip.vision.embedding_length": vision.hidden_size,
        "clip.vision.feed_forward_length": getattr(vision, "intermediate_size", 0),
        "clip.vision.block_count": getattr(vision, "num_hidden_layers", 0),
        "clip.vision.attention.head_count": getattr(vision, "num_attention_heads", 0),
    }
    return values | {key.replace("__", "."): value for key, value in more.items()}


def _one(value: Any) -> int:
    return value[0] if isinstance(value, list | tuple) else value


def _qwen(projector: str) -> Callable[[Any], Fields]:
    def fields(config: Any) -> Fields:
        vision = config.vision_config
        own = {
            "clip.vision.block_count": vision.depth,
            "clip.vision.attention.head_count": vision.num_heads,
            "clip.vision.attention.layer_norm_epsilon": config.text_config.rms_norm_eps,
        }
        if projector == "qwen2vl_merger":  # whose fields the converter exchanges
            own["clip.vision.feed_forward_length"] = vision.hidden_size
            own["clip.vision.embedding_length"] = vision.embed_dim
        if projector == "qwen2.5vl_merger":
            own["clip.use_silu"] = True
            own["clip.vision.n_wa_pattern"] = vision.fullatt_block_indexes[0] + 1
        if projector == "qwen3vl_merger":
            deep = [layer in vision.deepstack_visual_indexes for layer in range(vision.depth)]
            own |= {
                "clip.use_gelu": True,
                "clip.vision.spatial_merge_size": vision.spatial_merge_size,
                "clip.vision.is_deepstack_layers": deep,
            }
        return _common(config, projector) | own

    return fields


def _split_qwen2(name: str, array: Any, _: Any) -> Iterator[Part]:
    if "patch_embed.proj.weight" in name:
        yield "v.patch_embd.weight", array[:, :, 0]
        yield "v.patch_embd.weight.1", array[:, :, 1]
    elif ".qkv." in name:
        for part, rows in zip("qkv", np.split(array, 3), strict=True):
            yield name.replace("qkv", part), rows
    else:
        yield name, array


def _split_qwen3(name: str, array: Any, config: Any) -> Iterator[Part]:
    name = name.removeprefix("model.")
    if found := re.fullmatch(r"visual\.deepstack_merger_list\.(\d+)\.(?:linear_)?(.*)", name):
        layer = config.vision_config.deepstack_visual_indexes[int(found[1])]
        yield f"v.deepstack.{layer}.{found[2]}", array
    elif found := re.fullmatch(r"visual\.merger\.linear_fc([12])\.(.*)", name):
        yield f"mm.{2 * int(found[1]) - 2}.{found[2]}", array
    elif found := re.fullmatch(r"visual\.merger\.norm\.(.*)", name):
        yield f"v.post_ln.{found[1]}", array
    elif "patch_embed.proj.weight" in name:
        yield from _split_qwen2(name, array, config)
    else:
        yield name, array


def _gemma3(config: Any) -> Fields:
    side = config.vision_config.image_size // config.vision_config.patch_size
    factor = int(side // config.mm_tokens_per_image**0.5)
    own = {"clip.vision.projector.scale_factor": factor} if factor != 4 else {}
    epsilon = config.vision_config.layer_norm_eps
    own |= {"clip.use_gelu": True, "clip.vision.attention.layer_norm_epsilon": epsilon}
    return _common(config, "gemma3") | own


def _split_gemma3(name: str, array: Any, _: Any) -> Iterator[Part]:
    name = name.replace("_weight", ".weight").replace("vision_tower.", "vision_tower.vision_model.")
    yield name, array + np.float32("soft_emb_norm" in name)


def _idefics3(config: Any) -> Fields:
    return _common(config, "idefics3") | {
        "clip.use_gelu": True,
        "clip.vision.attention.layer_norm_epsilon": config.vision_config.layer_norm_eps,
        "clip.vision.projector.scale_factor": config.scale_factor,
        "clip.vision.preproc_image_size": 2 * config.vision_config.image_size,
    }


def _as_it_is(name: str, array: Any, _: Any) -> Iterator[Part]:
    yield name, array


def _pixtral(config: Any) -> Fields:
    activation = config.vision_config.hidden_act
    own = {f"clip.use_{activation}": True, "clip.vision.attention.layer_norm_epsilon": 1e-5}
    if hasattr(config, "spatial_merge_size"):
        own["clip.vision.spatial_merge_size"] = config.spatial_merge_size
    return _common(config, "pixtral") | own


def _split_pixtral(name: str, array: Any, config: Any) -> Iterator[Part]:
    if re.search(r"\.[qk]_proj\.", name):
        array = gguf_folders.in_pairs(array, config.vision_config.num_attention_heads)
    yield name, array


def _internvl(config: Any) -> Fields:
    vision = config.vision_config
    return _common(config, "internvl") | {
        f"clip.use_{vision.hidden_act}": True,
        "clip.vision.attention.layer_norm_epsilon": vision.layer_norm_eps,
        "clip.vision.projector.scale_factor": int(1 / config.downsample_ratio),
    }


def _split_internvl(name: str, array: Any, _: Any) -> Iterator[Part]:
    numbers = {"layer_norm": 0, "linear_1": 1, "linear_2": 3}
    if found := re.fullmatch(r"multi_modal_projector\.(\w+)\.(weight|bias)", name):
        yield f"mlp1.{numbers[found[1]]}.{found[2]}", array
        return
    suffix = ".weight" if re.search(r"lambda_\d$|position_embeddings$", name) else ""
    yield f"model.{name}{suffix}", array


def _used_layers(config: Any) -> int:
    layer, num = config.vision_feature_layer, config.vision_config.num_hidden_layers
    return layer if layer >= 0 else num + layer + 1


def _llava(config: Any) -> Fields:
    used = _used_layers(config)
    return _common(config, "mlp") | {
        "clip.has_text_encoder": False,
        "clip.has_llava_projector": True,
        "clip.use_gelu": False,
        "clip.vision.projection_dim": config.vision_config.projection_dim,
        "clip.vision.block_count": used,
        "clip.vision.feature_layer": [used],
        "clip.vision.attention.layer_norm_epsilon": config.vision_config.layer_norm_eps,
    }


LLAVA_PARTS = (
    ("multi_modal_projector.linear_1", "mm.0"),
    ("multi_modal_projector.linear_2", "mm.2"),
    ("vision_tower", "v"),
    ("encoder.layers", "blk"),
    ("embeddings.", ""),
    ("_proj", ""),
    ("self_attn.", "attn_"),
    ("layer_norm", "ln"),
    ("layernorm", "ln"),
    ("mlp.fc1", "ffn_down"),
    ("mlp.fc2", "ffn_up"),
    ("embedding", "embd"),
    ("layrnorm", "ln"),
    ("image_newline", "model.image_newline"),
)


def _split_llava(name: str, array: Any, config: Any) -> Iterator[Part]:
    layer = re.search(r"layers\.(\d+)", name)
    is_used = layer is None or int(layer[1]) < _used_layers(config)
    if not is_used or "post_layernorm" in name:
        return
    for old, new in LLAVA_PARTS:
        name = name.replace(old, new)
    yield name, array


WRAPPED = "language_model."
QWEN2 = Pair(ARCH.QWEN2VL, "", "qwen2", _split_qwen2, _qwen("qwen2vl_merger"))
LLAVA = Pair(ARCH.LLAMA, WRAPPED, "llama", _split_llava, _llava)
IDEFICS3 = Pair(ARCH.LLAMA, "model.text_model.", "llama", _as_it_is, _idefics3)
PAIRS: dict[str, Pair] = {
    "qwen2_vl": QWEN2,
    "qwen2_5_vl": Pair(ARCH.QWEN2VL, "", "qwen2", _split_qwen2, _qwen("qwen2.5vl_merger")),
    "qwen3_vl": Pair(
        ARCH.QWEN3VL, "model.language_model.", "qwen3", _split_qwen3, _qwen("qwen3vl_merger")
    ),
    "gemma3": Pair(ARCH.GEMMA3, WRAPPED, "gemma3_text", _split_gemma3, _gemma3),
    "idefics3": IDEFICS3,
    "smolvlm": IDEFICS3,
    "llava": LLAVA,
    "llava_next": Pair(ARCH.LLAMA, WRAPPED, "mistral", _split_llava, _llava),
    "mistral3": Pair(ARCH.MISTRAL3, WRAPPED, "mistral", _split_pixtral, _pixtral),
    "internvl": Pair(
        ARCH.QWEN2,
        WRAPPED,
        "qwen2",
        _split_internvl,
        _internvl,
        values={"vision_config": {"attention_bias": True, "use_qk_norm": True}},
    ),
}
"""By the families of the zoo."""


def save(source: Path, folder: Path, pair: Pair, values: Fields | None = None) -> None:
    """Write a checkpoint whose norms and biases are random, too, which would hide mistakes.

    Weights that get another size by the values are random.
    """
    shutil.copytree(source, folder, dirs_exist_ok=True)
    stated = json.loads((folder / "config.json").read_text())
    for name, value in (pair.values | (values or {})).items():
        stated[name] = {**stated[name], **value} if isinstance(value, dict) else value
    (folder / "config.json").write_text(json.dumps(stated))
    kept = (folder / "generation_config.json").read_text()
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, ignore_mismatched_sizes=True
    )
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            is_one = "norm" in name and name.endswith("weight") and pair.text != "gemma3_text"
            torch.nn.init.normal_(weight, float(is_one or "lambda" in name), 0.1)
        elif not weight.any():  # as transformers makes a projection of another size
            torch.nn.init.normal_(weight, std=0.1)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(kept)


def make(
    source: Path,
    place: Path,
    family: str,
    kind: str = "Q8_0",
    tower: str = "F16",
    *,
    change: Callable[[Arrays], object] = lambda _: None,
    more: Callable[[gguf.GGUFWriter], object] = lambda _: None,
    fields: Fields | None = None,
    arch: gguf.MODEL_ARCH | None = None,
) -> Quantized:
    """Convert a checkpoint to two files.

    Args:
        source: the checkpoint.
        place: where the two folders are made, each called as the family.
        family: a row of ``PAIRS``.
        kind: the type of the decoder's matrices.
        tower: the types of the tower's matrices; several in turn, with spaces between them.
        change: changes the arrays of the tower's file.
        more: writes further fields of the decoder's file.
        fields: of the tower's file; None removes one.
        arch: of the decoder's file, if it is not the family's.
    """
    pair, config = PAIRS[family], AutoConfig.from_pretrained(source)
    folder, other = place / "quantized" / family, place / "plain" / family
    for made in (folder, other):
        shutil.copytree(source, made)
    (folder / folders.WEIGHTS).unlink()
    texts: folders.Tensors = {}
    stored: Arrays = {}
    values: folders.Tensors = {}
    kinds = itertools.cycle(tower.split())
    names = gguf.get_tensor_name_map(ARCH.MMPROJ, MANY_BLOCKS)
    for name, weight in sorted(folders.tensors(source).items()):
        if not _is_of_tower(name):
            texts[name] = weight
            continue
        values[name] = torch.zeros_like(weight, dtype=torch.float32)
        for part, array in _parts(pair, name, weight, config, names):
            is_added = part == PLACES and pair.split is not _split_llava
            type_ = _type(array, "F32" if is_added else next(kinds))
            packed = gguf.quants.quantize(np.ascontiguousarray(array), type_)
            stored[part] = (packed, type_)
        values[name] = _read_back(pair, name, weight, config, names, stored)
    change(stored)
    decoder = _decoder(pair, texts, config, kind, values)
    own = gguf_folders.fields_of(config.get_text_config())
    gguf_folders.write(folder / FILE, arch or pair.arch, own, decoder, more)
    write(folder / PROJECTOR, pair.fields(config) | images(source) | (fields or {}), stored)
    folders.write(other, values)
    return Quantized(folder, other, values)


def _is_of_tower(name: str) -> bool:
    return re.search(r"visual|vision|multi_modal|connector|image_newline", name) is not None


def _parts(
    pair: Pair, name: str, weight: torch.Tensor, config: Any, names: gguf.TensorNameMap
) -> Iterator[Part]:
    """Yield the tensors of a weight by their names in a file."""
    for part, array in pair.split(name, weight.float().numpy(), config):
        is_known = part.startswith(("v.", "mm.", "model.image_newline"))
        known = None if is_known else names.get_name(part, try_suffixes=(".weight", ".bias"))
        yield known or part, array


def _type(array: Any, kind: str) -> gguf.GGMLQuantizationType:
    if array.ndim == 1 or kind == "F32":
        return gguf.GGMLQuantizationType.F32
    size, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return gguf.GGMLQuantizationType["F16" if array.shape[-1] % size else kind]


def _read_back(
    pair: Pair, name: str, weight: torch.Tensor, config: Any, names: gguf.TensorNameMap, of: Arrays
) -> torch.Tensor:
    """Return the values of a weight as its tensors in the file have them; zeros if it has none.

    Finds where each number went by converting the numbers of the places.
    """
    places = torch.arange(weight.numel(), dtype=torch.float32).reshape(weight.shape)
    whole = torch.zeros(weight.numel())
    for part, numbers in _parts(pair, name, places, config, names):
        array, type_ = of[part]
        added = float("soft_emb_norm" in part)
        read = gguf.quants.dequantize(array, type_).astype(np.float32) - np.float32(added)
        where = torch.from_numpy(np.ascontiguousarray(numbers - np.float32(added)))
        whole[where.long().reshape(-1)] = torch.from_numpy(read.copy()).reshape(-1)
    return whole.reshape(weight.shape)


def _decoder(
    pair: Pair, texts: folders.Tensors, config: Any, kind: str, values: folders.Tensors
) -> Arrays:
    """Return the arrays of the decoder's file; add the values of its weights."""
    text = config.get_text_config()
    plain = {_inner(pair, name): weight for name, weight in texts.items()}
    if config.tie_word_embeddings:
        plain.pop("lm_head.weight", None)
    converted, dense = gguf_folders.converted(plain, pair.text, text, pair.arch, kind)
    outer = {_inner(pair, name): name for name in texts}
    values.update({outer[name]: value for name, value in dense.items()})
    return converted


def _inner(pair: Pair, name: str) -> str:
    if pair.prefix == WRAPPED:
        return name.removeprefix(WRAPPED)
    return name.replace(pair.prefix, "model.", 1) if pair.prefix else name


def images(source: Path) -> Fields:
    """Return how pixels are scaled, by the settings of a checkpoint."""
    stated = json.loads((source / "preprocessor_config.json").read_text())
    return {
        f"clip.vision.{name}": [float(value) for value in stated[name]]
        for name in ("image_mean", "image_std")
    }


def write(path: Path, fields: Fields, arrays: Arrays) -> None:
    """Write the file of a tower."""
    architecture = fields.pop("general.architecture", "clip")
    is_text = isinstance(architecture, str)
    writer = gguf.GGUFWriter(path, architecture if is_text else "clip")
    if not is_text:
        kind = gguf.GGUFValueType.get_type(architecture)
        writer.kv_data[0]["general.architecture"] = gguf.GGUFValue(architecture, kind)
    for name, value in fields.items():
        if value is None:
            continue
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add = (
            kinds.get(type(value)) or {str: writer.add_string, list: writer.add_array}[type(value)]
        )
        add(name, value)
    finish(writer, arrays)
