"""Layouts of weights: sharded, under old names, broken, or in a format that is never read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoint_layouts.layout import (
    POINTER,
    Change,
    Layout,
    both,
    drop,
    edit,
    keep,
    put,
    rename,
    unchanged,
)

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
Weights = dict[str, Any]


def tensors(folder: Path) -> Weights:
    """Return all weights."""
    from safetensors.torch import load

    return load((folder / WEIGHTS).read_bytes())


def write(folder: Path, weights: Weights, file: str = WEIGHTS) -> None:
    """Write weights as one file."""
    from safetensors.torch import save

    (folder / file).write_bytes(save(weights, metadata={"format": "pt"}))


def changed(function: Callable[[Weights], object]) -> Change:
    """Return a change that does something to the weights."""

    def change(folder: Path) -> None:
        weights = tensors(folder)
        function(weights)
        write(folder, weights)

    return change


def renamed(pairs: dict[str, str]) -> Change:
    """Return a change that gives weights other names, by how they begin."""

    def change(folder: Path) -> None:
        made = {}
        for name, value in tensors(folder).items():
            old = next(filter(name.startswith, pairs), "")
            made[pairs.get(old, "") + name.removeprefix(old)] = value
        write(folder, made)

    return change


def sharded(folder: Path) -> None:
    """Cut the weights into three files with an index."""
    weights = tensors(folder)
    drop(WEIGHTS)(folder)
    index: dict[str, str] = {}
    for number in range(3):
        file = piece(number + 1)
        own = sorted(weights)[number::3]
        write(folder, {name: weights[name] for name in own}, file)
        index |= dict.fromkeys(own, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))


def piece(number: int) -> str:
    return f"model-{number:05}-of-00003.safetensors"


def outside(folder: Path) -> None:
    """Let the index name a file that is not of the folder."""
    (folder / piece(2)).rename(folder.parent / "stray.safetensors")
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace(piece(2), "../stray.safetensors"))


def cut(file: str, num_bytes: int) -> Change:
    def change(folder: Path) -> None:
        path = folder / file
        path.write_bytes(path.read_bytes()[:-num_bytes])

    return change


def pickled(folder: Path) -> None:
    """Write the weights as a pickle beside the existing files."""
    import torch

    torch.save(tensors(folder), folder / "pytorch_model.bin")


def with_adapter(folder: Path) -> None:
    import torch

    stated = {"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 8}
    edit("adapter_config.json", **stated)(folder)
    weights = {"base_model.model.x.lora_A.weight": torch.ones(2, 2)}
    write(folder, weights, "adapter_model.safetensors")


def in_halves(folder: Path) -> None:
    import torch

    write(folder, {name: value.to(torch.bfloat16) for name, value in tensors(folder).items()})
    edit("config.json", dtype=None, torch_dtype="bfloat16")(folder)


def with_buffers(weights: Weights) -> None:
    import torch

    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)


def with_scales(weights: Weights) -> None:
    import torch

    weights["model.layers.0.mlp.up_proj.weight_scale"] = torch.ones(1)


def with_lora(weights: Weights) -> None:
    import torch

    weights["model.layers.0.mlp.up_proj.lora_A.default.weight"] = torch.ones(4, 64)


def shorter(weights: Weights) -> None:
    weights["model.norm.weight"] = weights["model.norm.weight"][:-1].clone()


CANNOT = "model 'm' cannot be loaded: "
OF_ANOTHER = "are not of the same model"
ADAPTER = f"{CANNOT}it is an adapter (LORA) of 'org/base', and not a model"
PICKLE = f"{CANNOT}its weights are a pickle ('pytorch_model.bin'), which can run code when it is "
PICKLE += "read, so it never is"
GGUF = both(keep("config.json", "tokenizer*"), put("m-Q4_K_M.gguf", b"GGUF\3\0\0\0"))
OLD_LLAVA = {
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}

LAYOUTS = [
    Layout("as saved", unchanged, is_as_before=False),
    Layout("as saved, of a model with eyes", unchanged, base="llava"),
    Layout("three shards", sharded),
    Layout(
        "shards without an index",
        both(sharded, drop(INDEX)),
        f"{CANNOT}its weights are in pieces such as 'model-00001-of-00003.safetensors', and "
        "'model.safetensors.index.json' is missing, which says what is in each",
        "fetch model.safetensors.index.json, too",
    ),
    Layout(
        "a missing shard",
        both(sharded, drop(piece(2))),
        f"{CANNOT}'{piece(2)}' is missing",
        "fetch it again",
    ),
    Layout(
        "a shard outside of the folder",
        both(sharded, outside),
        f"{CANNOT}'{INDEX}' names '../stray.safetensors', which is not a file of its folder",
        "fetch it again",
    ),
    Layout(
        "an index of nothing",
        both(sharded, put(INDEX, b'{"weight_map": 3}')),
        f"{CANNOT}'{INDEX}' does not say which weight is in which file",
        "fetch it again",
    ),
    Layout(
        "a shard without its last byte",
        both(sharded, cut(piece(3), 1)),
        f"{CANNOT}'{piece(3)}' has 124911 bytes, and should have 124912",
        "fetch it again",
    ),
    Layout(
        "an empty file",
        put(WEIGHTS, b""),
        f"{CANNOT}'{WEIGHTS}' is not a safetensors file",
        "fetch it again",
    ),
    Layout(
        "a web page in place of the weights",
        put(WEIGHTS, b"<!DOCTYPE html><html>" * 9),
        f"{CANNOT}'{WEIGHTS}' is not a safetensors file",
        "fetch it again",
    ),
    Layout(
        "a pointer of Git LFS in place of the weights",
        put(WEIGHTS, POINTER),
        f"{CANNOT}'{WEIGHTS}' is a pointer of Git LFS and not the file itself",
        "git lfs pull",
    ),
    Layout("a pickle", both(pickled, drop(WEIGHTS)), PICKLE, "save_pretrained"),
    Layout("a pickle beside safetensors", pickled),
    Layout(
        "TensorFlow's weights",
        rename(WEIGHTS, "tf_model.h5"),
        f"{CANNOT}its weights are in TensorFlow's form ('tf_model.h5'), which is not read",
        "load the safetensors model",
    ),
    Layout(
        "a variant of the weights",
        rename(WEIGHTS, "model.fp16.safetensors"),
        f"{CANNOT}'{WEIGHTS}' is missing, which its weights should be named, not "
        "'model.fp16.safetensors'",
        "name it model.safetensors",
    ),
    Layout(
        "GGUF",
        GGUF,
        "engine 'torch' from 'vlmkit-torch' cannot be used: its GGUF file "
        "'m-Q4_K_M.gguf' ends within its header",
        "load the model that it was made from",
    ),
    Layout(
        "Mistral's own form",
        rename(WEIGHTS, "consolidated.safetensors"),
        f"{CANNOT}'consolidated.safetensors' is in Mistral's own form, and '{WEIGHTS}' is missing",
        "in the form of transformers",
    ),
    Layout("names of before transformers 4.52", renamed(OLD_LLAVA), base="llava"),
    Layout(
        "names as first published",
        renamed({"model.language_model.": "model.", "model.visual.": "visual."}),
        base="qwen2_vl",
    ),
    Layout("names without a prefix", renamed({"model.": ""})),
    Layout(
        "no head",
        changed(lambda weights: weights.pop("lm_head.weight")),
        "model 'm' lacks 1 weights, such as 'lm_head.weight'",
        OF_ANOTHER,
    ),
    Layout(
        "a head that is the embedding",
        both(
            changed(lambda weights: weights.pop("lm_head.weight")),
            edit("config.json", tie_word_embeddings=True),
        ),
        is_as_before=False,
    ),
    Layout("buffers that were once saved", changed(with_buffers)),
    Layout(
        "a weight of another shape",
        changed(shorter),
        "model 'm' has the wrong shape for 1 weights, such as 'model.norm.weight'",
        OF_ANOTHER,
    ),
    Layout(
        "scales that the config does not speak of",
        changed(with_scales),
        "model 'm' has 1 weights that belong to others and are not used, such as "
        "'model.layers.0.mlp.up_proj.weight_scale'",
        "in a way that config.json does not say",
    ),
    Layout(
        "an adapter that was saved with the weights",
        changed(with_lora),
        "model 'm' has 1 weights that belong to others and are not used, such as "
        "'model.layers.0.mlp.up_proj.lora_A.default.weight'",
        "in a way that config.json does not say",
    ),
    Layout("bfloat16, by the old key", in_halves, is_as_before=False),
    Layout("an adapter", both(keep("tokenizer*"), with_adapter), ADAPTER, "merge_and_unload"),
    Layout(
        "an adapter with a config of its base",
        both(drop(WEIGHTS), with_adapter),
        ADAPTER,
        "merge_and_unload",
    ),
    Layout(
        "an adapter beside a model",
        with_adapter,
        f"{CANNOT}an adapter (LORA) lies beside the weights, and is not part of them",
        "take adapter_config.json out",
    ),
]
