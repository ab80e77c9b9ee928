"""Writes a random checkpoint of :mod:`shapes` as GGUF, for llama.cpp and OpenVINO GenAI.

    PYTHON benchmarks/gguf_files.py CHECKPOINT q8_0 FILE [--tower FILE]

The environment needs the ``gguf`` package, but no torch. The files are only for random weights:
rows of queries and keys are not in the order of llama.cpp, which does not change the speed.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

TOWER = gguf.MODEL_ARCH.MMPROJ
ARCHS = {  # by type of the language model
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen2_5_vl_text": gguf.MODEL_ARCH.QWEN2VL,
}
OF_TOWERS = ("vision_model.", "connector.", "visual.")
SUFFIXES = (".weight", ".bias", ".weight.1")
NO_MERGE = ["Ġw Ġw"]  # llama.cpp needs one


def tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the float32 tensors of a checkpoint with their names."""
    file = folder / "model.safetensors"
    with file.open("rb") as opened:
        num_bytes = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(num_bytes))
    header.pop("__metadata__", None)
    for name, facts in header.items():
        first = 8 + num_bytes + facts["data_offsets"][0]
        yield name, np.memmap(file, np.float32, "r", first, tuple(facts["shape"]))


def write_decoder(folder: Path, kind: gguf.GGMLQuantizationType, file: Path) -> None:
    """Write the language model with its tokenizer."""
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    arch = ARCHS[text["model_type"]]
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch])
    head_dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_block_count(text["num_hidden_layers"])
    writer.add_feed_forward_length(text["intermediate_size"])
    writer.add_head_count(text["num_attention_heads"])
    writer.add_head_count_kv(text["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    writer.add_rope_freq_base(text["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if sections := text["rope_parameters"].get("mrope_section"):
        writer.add_rope_dimension_sections([*sections, 0])
    writer.add_vocab_size(text["vocab_size"])
    as_file = gguf.LlamaFileType
    is_q8 = kind == gguf.GGMLQuantizationType.Q8_0
    writer.add_file_type(as_file.MOSTLY_Q8_0 if is_q8 else as_file.MOSTLY_Q4_0)
    _add_tokenizer(writer, folder)
    names = gguf.get_tensor_name_map(arch, text["num_hidden_layers"])
    for name, array in tensors(folder):
        if not _is_of_tower(name):
            plain = name.replace("text_model.", "").replace("language_model.", "")
            _add(writer, names, plain, array, kind)
    _finish(writer)


def write_tower(folder: Path, kind: gguf.GGMLQuantizationType, file: Path) -> None:
    """Write a vision tower and its projector."""
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    images = json.loads((folder / "preprocessor_config.json").read_text())
    num_layers = vision.get("depth") or vision["num_hidden_layers"]
    writer = gguf.GGUFWriter(file, "clip")
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(num_layers)
    writer.add_vision_head_count(vision.get("num_heads") or vision["num_attention_heads"])
    writer.add_vision_image_mean(images["image_mean"])
    writer.add_vision_image_std(images["image_std"])
    if config["model_type"] == "qwen2_5_vl":
        _say_of_qwen(writer, vision)
    else:
        _say_of_smolvlm(writer, config, images)
    names = gguf.get_tensor_name_map(TOWER, num_layers)
    for name, array in tensors(folder):
        if _is_of_tower(name):
            for part, values in _apart(name.removeprefix("model."), array):
                _add(writer, names, part, values, kind)
    _finish(writer)


def _say_of_smolvlm(writer: gguf.GGUFWriter, config: Any, images: Any) -> None:
    writer.add_clip_projector_type("idefics3")
    writer.add_vision_image_size(config["vision_config"]["image_size"])
    writer.add_vision_attention_layernorm_eps(config["vision_config"]["layer_norm_eps"])
    writer.add_vision_projector_scale_factor(config["scale_factor"])
    writer.add_vision_preproc_image_size(images["size"]["longest_edge"])
    writer.add_vision_use_gelu(True)


def _say_of_qwen(writer: gguf.GGUFWriter, vision: Any) -> None:
    writer.add_clip_projector_type("qwen2.5vl_merger")
    writer.add_vision_image_size(560)  # of the image for warm-up
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_use_silu(True)
    writer.add_vision_n_wa_pattern(vision["fullatt_block_indexes"][0] + 1)


def _is_of_tower(name: str) -> bool:
    return name.removeprefix("model.").startswith(OF_TOWERS)


def _apart(name: str, array: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of llama.cpp: packed projections and video frames are split."""
    if ".qkv." in name:
        parts = np.split(np.asarray(array), 3)
        yield from ((name.replace("qkv", k), part) for k, part in zip("qkv", parts, strict=True))
    elif array.ndim == 5:
        yield name, np.ascontiguousarray(array[:, :, 0])
        yield f"{name}.1", np.ascontiguousarray(array[:, :, 1])
    else:
        yield name, array


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    ids = content["model"]["vocab"]
    special = {token["content"] for token in content["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    kinds = [gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(NO_MERGE)
    writer.add_bos_token_id(ids["<|im_start|>"])
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_pad_token_id(ids["<pad>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def _add(
    writer: gguf.GGUFWriter,
    names: gguf.TensorNameMap,
    name: str,
    array: Any,
    kind: gguf.GGMLQuantizationType,
) -> None:
    # Some releases of gguf list a tower's projector with the name of the whole model.
    found = (names.get_name(known, SUFFIXES) for known in (name, f"model.{name}"))
    new = next(filter(None, found), None)
    if new is None:
        raise ValueError(f"no name for {name!r}")
    if array.ndim == 2 and "position_embd" not in new:
        array = gguf.quants.quantize(np.asarray(array), kind)
        writer.add_tensor(new, array, raw_dtype=kind)
    else:
        writer.add_tensor(new, np.asarray(array))


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Write the requested files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("kind", choices=["q8_0", "q4_0"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--tower", type=Path, help="write the vision tower here, in 8 bits")
    options = parser.parse_args()
    kind = gguf.GGMLQuantizationType[options.kind.upper()]
    write_decoder(options.checkpoint, kind, options.file)
    if options.tower:
        write_tower(options.checkpoint, gguf.GGMLQuantizationType.Q8_0, options.tower)


if __name__ == "__main__":
    main()
