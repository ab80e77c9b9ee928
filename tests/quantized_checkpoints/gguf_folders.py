"""Folders with one GGUF file, as llama.cpp's converter writes it, with the package ``gguf``."""

import itertools
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig

from quantized_checkpoints import folders
from quantized_checkpoints.folders import Quantized, Tensors
from quantized_checkpoints.gguf_families import FAMILIES, LLAMA_LIKE, PLUS_ONE, RECURRENT

FILE = "model.gguf"
EXPERT = re.compile(r"experts\.(\d+)\.")

HALVES = {
    "Q2_K": {80: 1.0, 82: 1.5},
    "Q3_K": {108: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ4_NL": {0: 1.0},
    "IQ4_XS": {0: 1.0},
}
"""The places of scales in blocks that the package cannot write, and their sizes.

Random ones are made; offsets are so large that the mean of all values is zero.
"""
SPREAD = 0.08
"""The standard deviation of their values."""

Arrays = dict[str, tuple[np.ndarray[Any, Any], gguf.GGMLQuantizationType]]


def make(
    source: Path,
    place: Path,
    kind: str = "Q8_0",
    *,
    is_tied: bool = False,
    change: Callable[[Arrays], object] = lambda _: None,
    more: Callable[[gguf.GGUFWriter], object] = lambda _: None,
    **fields: Any,
) -> Quantized:
    """Convert a checkpoint; matrices get a type, and other weights stay in float32.

    Args:
        source: the checkpoint.
        place: where the two folders are made, each called as the checkpoint's family.
        kind: the type; several in turn, with spaces between them.
        is_tied: whether the head is to be the embedding.
        change: changes the arrays of the file.
        more: writes further fields.
        fields: of the file, after the architecture; None removes one.
    """
    family = source.name.rpartition("-")[2]
    folder, other = place / "quantized" / family, place / "plain" / family
    for made in (folder, other):
        shutil.copytree(source, made)
        if is_tied:
            folders.edit(made, tie_word_embeddings=True)
    (folder / folders.WEIGHTS).unlink()
    config = AutoConfig.from_pretrained(source)
    plain = folders.tensors(source)
    if config.tie_word_embeddings or is_tied:
        plain.pop("lm_head.weight", None)
    arch = (FAMILIES | RECURRENT)[family].arch
    arrays, values = converted(plain, family, config, arch, kind)
    change(arrays)
    write(folder / FILE, arch, fields_of(config) | fields, arrays, more)
    folders.write(other, values)
    return Quantized(folder, other, values)


def converted(
    plain: Tensors, family: str, config: Any, arch: gguf.MODEL_ARCH, kind: str
) -> tuple[Arrays, Tensors]:
    """Return the arrays of a file by their names in it, and the values of the plain weights.

    Args:
        plain: the weights.
        family: whose rows and norms they have.
        config: its configuration.
        arch: of the file.
        kind: the type of matrices; several in turn, with spaces between them.
    """
    stored: dict[str, list[Any]] = {}
    values: Tensors = {}
    kinds = itertools.cycle(kind.split())
    numbers = np.random.default_rng(0)
    for name, weight in sorted(plain.items(), key=_by_expert):
        array = weight.float().numpy()
        merged = EXPERT.sub("experts.", name)
        kept = stored[merged][0].name if merged in stored else ""
        named = kept or ("F32" if array.ndim == 1 else _type_of(array, next(kinds)))
        is_recurrent = config.model_type in RECURRENT
        if is_recurrent and (changed := _of_recurrent(name, array, config)) is not None:
            stored[name] = [gguf.GGMLQuantizationType.F32, changed]
            values[name] = weight.float()
            continue
        type_ = gguf.GGMLQuantizationType[named]
        if family in PLUS_ONE and name.endswith("norm.weight"):
            array = array + np.float32(1)
            values[name] = torch.from_numpy(array - np.float32(1))
        else:
            made = named in HALVES
            array = random_blocks(array.shape, type_, numbers) if made else quantized(array, type_)
            values[name] = torch.from_numpy(gguf.quants.dequantize(array, type_).copy())
        for heads, part in _rotated(family, config):
            if part in name:
                array = in_pairs(array, heads)
        stored.setdefault(EXPERT.sub("experts.", name), [type_]).append(array)
    return dict(_named(arch, config.num_hidden_layers, stored)), values


def _of_recurrent(name: str, array: Any, config: Any) -> Any:
    """Return a weight of a recurrent layer as the converter changes it; None for others."""
    is_mamba2 = config.model_type == "mamba2"
    if name.endswith(".A_log"):
        array = -np.exp(array)
    if name.endswith((".A_log", ".D")):
        return array[:, None] if is_mamba2 else array
    if name.endswith(".mixer.norm.weight"):
        return array.reshape(config.n_groups, -1)
    if array.ndim > 2:
        return array.squeeze(1)
    return None


def quantized(array: np.ndarray[Any, Any], type_: gguf.GGMLQuantizationType) -> Any:
    """Return an array in a type that the package writes."""
    return gguf.quants.quantize(array, type_)


def random_blocks(
    shape: tuple[int, ...], type_: gguf.GGMLQuantizationType, numbers: np.random.Generator
) -> Any:
    """Return random blocks whose values are as small as weights are."""
    weights, octets = gguf.GGML_QUANT_SIZES[type_]
    blocks = numbers.integers(0, 256, (*shape[:-1], shape[-1] // weights, octets), dtype=np.uint8)

    def scale(by: float) -> Any:
        for place, size in HALVES[type_.name].items():
            half = np.float16(by * size).tobytes()
            blocks[..., place : place + 2] = np.frombuffer(half, np.uint8)
        return blocks.reshape(*shape[:-1], -1)

    spread = float(gguf.quants.dequantize(scale(1.0), type_).std())
    return scale(SPREAD / spread)


def _type_of(array: np.ndarray[Any, Any], kind: str) -> str:
    """Return the type that the converter gives a weight: rows may not fill whole blocks."""
    size, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return "F16" if array.shape[-1] % size else kind


def _by_expert(item: tuple[str, Any]) -> tuple[str, int]:
    found = EXPERT.search(item[0])
    return EXPERT.sub("experts.", item[0]), int(found[1]) if found else 0


def _rotated(family: str, config: Any) -> list[tuple[int, str]]:
    if family not in LLAMA_LIKE:
        return []
    return [(config.num_attention_heads, ".q_proj."), (config.num_key_value_heads, ".k_proj.")]


def in_pairs(rows: Any, heads: int) -> Any:
    """Return rows so that the two that a rotation mixes are neighbours, as llama.cpp has them."""
    size = len(rows) // heads
    order = [
        h * size + half * size // 2 + j
        for h in range(heads)
        for j in range(size // 2)
        for half in (0, 1)
    ]
    return rows[order]


def _named(arch: gguf.MODEL_ARCH, num_layers: int, stored: dict[str, list[Any]]) -> Iterator[Any]:
    names = gguf.get_tensor_name_map(arch, num_layers)
    for name, (type_, *arrays) in stored.items():
        known = name.replace(".dt_bias", ".dt_proj.bias")
        new = names.get_name(known, try_suffixes=(".weight", ".bias"))
        assert new is not None, name
        yield new, (np.stack(arrays) if "experts" in name else arrays[0], type_)


def fields_of(config: Any) -> dict[str, Any]:
    """Return the numbers of a decoder, after the architecture."""
    if config.model_type in RECURRENT:
        return fields_of_states(config)
    rope = config.rope_parameters
    theta = rope.get("rope_theta") or rope["full_attention"]["rope_theta"]
    epsilon = next(
        getattr(config, name)
        for name in ("rms_norm_eps", "norm_epsilon", "layer_norm_eps", "norm_eps")
        if hasattr(config, name)
    )
    is_rms = hasattr(config, "rms_norm_eps")
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        f"attention.layer_norm{'_rms' if is_rms else ''}_epsilon": float(epsilon),
        "rope.freq_base": float(theta),
        "vocab_size": config.vocab_size,
    }


def fields_of_states(config: Any) -> dict[str, Any]:
    """Return the numbers of a decoder with recurrent layers, after the architecture."""
    fields = {
        "block_count": config.num_hidden_layers,
        "context_length": getattr(config, "max_position_embeddings", 2**20),
        "embedding_length": config.hidden_size,
        "vocab_size": config.vocab_size,
    }
    if config.model_type == "jamba":
        heads = config.num_key_value_heads
        kinds = [number % 2 for number in range(config.num_hidden_layers)]
        return fields | {
            "feed_forward_length": config.intermediate_size,
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": [heads * kind for kind in kinds],
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "ssm.conv_kernel": config.mamba_d_conv,
            "ssm.inner_size": config.mamba_expand * config.hidden_size,
            "ssm.state_size": config.mamba_d_state,
            "ssm.time_step_rank": config.mamba_dt_rank,
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
        }
    if config.model_type == "lfm2":
        heads = config.num_key_value_heads
        return fields | {
            "feed_forward_length": 64,  # as the model rounds 96
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": [heads * (kind != "conv") for kind in config.layer_types],
            "attention.layer_norm_rms_epsilon": config.norm_eps,
            "rope.freq_base": float(config.rope_parameters["rope_theta"]),
            "shortconv.l_cache": config.conv_L_cache,
        }
    inner, rank = config.intermediate_size, config.time_step_rank
    groups = {}
    if config.model_type == "mamba2":
        inner, rank = config.num_heads * config.head_dim, config.num_heads
        groups["ssm.group_count"] = config.n_groups
    return (
        fields
        | groups
        | {
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
            "ssm.conv_kernel": config.conv_kernel,
            "ssm.inner_size": inner,
            "ssm.state_size": config.state_size,
            "ssm.time_step_rank": rank,
        }
    )


def write(
    path: Path,
    arch: gguf.MODEL_ARCH,
    fields: dict[str, Any],
    arrays: Arrays,
    more: Callable[[gguf.GGUFWriter], object] = lambda _: None,
) -> None:
    """Write a file."""
    architecture = fields.pop("architecture", gguf.MODEL_ARCH_NAMES[arch])
    writer = gguf.GGUFWriter(path, architecture)
    adds = {float: writer.add_float32, list: writer.add_array}
    for name, value in fields.items():
        add: Any = adds.get(type(value), writer.add_uint32)
        add(f"{architecture}.{name}", value)
    more(writer)
    finish(writer, arrays)


def finish(writer: gguf.GGUFWriter, arrays: Arrays) -> None:
    """Write the tensors of a file after its fields."""
    for name, (array, type_) in arrays.items():
        writer.add_tensor(name, np.ascontiguousarray(array), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def mutated_headers(file: Path, num: int) -> Iterator[int]:
    """Yield numbers; for each, another bit of a file's header is changed.

    The file is replaced and not written over, because an earlier one may be mapped into memory.
    """
    content = file.read_bytes()
    header = int(min(tensor.data_offset for tensor in gguf.GGUFReader(file).tensors))
    for number in range(num):
        dice = random.Random(number)
        changed = bytearray(content)
        changed[dice.randrange(header)] ^= 1 << dice.randrange(8)
        file.unlink()
        file.write_bytes(changed)
        yield number


def in_pieces(file: Path, folder: Path, num: int) -> list[Path]:
    """Write a file in several pieces, as llama.cpp's program for that does; return them."""
    reader = gguf.GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    each = -(-len(reader.tensors) // num)
    writer = gguf.GGUFWriter(folder / file.name, architecture, split_max_tensors=each)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        writer.add_key_value(name, field.contents(), field.types[0], *field.types[-1:])
    arrays = {each.name: (np.array(each.data), each.tensor_type) for each in reader.tensors}
    finish(writer, arrays)
    return sorted(folder.glob(f"{file.stem}-*-of-*.gguf"))
