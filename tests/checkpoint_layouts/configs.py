"""Layouts of config.json and generation_config.json, and folders that are not models."""

import shutil
from pathlib import Path

from checkpoint_layouts.layout import POINTER, Layout, both, drop, edit, keep, put, read

ENGINE = "engine 'torch' from 'vlmkit-torch' cannot be used: "
NO_MODEL = "folder '{folder}' holds no model: "
REMOTE = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
CODE = put("own.py", b"raise SystemExit('code of the checkpoint was run')")


def config(**values: object):
    return edit("config.json", **values)


def generation(**values: object):
    return edit("generation_config.json", **values)


def in_a_cache(folder: Path) -> None:
    """Move all to where the hub's cache has it."""
    place = folder / "snapshots" / "0123abc"
    place.mkdir(parents=True)
    for path in [path for path in folder.iterdir() if path.is_file()]:
        shutil.move(path, place / path.name)


def with_rope_of_old(folder: Path) -> None:
    scaling = {"type": "linear", "factor": 2.0}
    theta = read(folder, "config.json")["rope_parameters"]["rope_theta"]
    config(rope_parameters=None, rope_theta=theta, rope_scaling=scaling)(folder)


def not_ids(stated: object, shown: str) -> Layout:
    return Layout(
        f"end tokens that are {shown}",
        generation(eos_token_id=stated),
        f"eos_token_id in 'generation_config.json' of model 'm' is {shown}, and whole numbers are "
        "expected",
        "write the token's id",
    )


LAYOUTS = [
    Layout("nothing", keep(), NO_MODEL + "it has no config.json", "name the folder that holds"),
    Layout(
        "GGUF alone",
        both(keep(), put("m.gguf", b"GGUF\3\0\0\0")),
        NO_MODEL + "it has GGUF ('m.gguf') and no config.json",
        "name one file: {folder}/m.gguf",
    ),
    Layout(
        "a model in a folder of the cache",
        in_a_cache,
        NO_MODEL + "it has no config.json",
        "did you mean '{folder}/snapshots/0123abc'?",
    ),
    Layout(
        "a pipeline of diffusers",
        both(in_a_cache, put("model_index.json", b"{}")),
        NO_MODEL + "it is a pipeline of diffusers, which makes images",
        "models that answer in text",
    ),
    Layout(
        "no config.json",
        drop("config.json"),
        f"{ENGINE}config.json is missing",
        "fetch it, too",
    ),
    Layout(
        "a config of no family",
        config(model_type=None),
        f"{ENGINE}config.json names no 'model_type'",
        "in the form of transformers",
    ),
    Layout(
        "a family that is not known",
        config(model_type="noone"),
        f"{ENGINE}model type 'noone' is not one that the installed transformers defines",
        "a later vlmkit may know it",
    ),
    Layout(
        "a family that comes with its code",
        both(config(model_type="own", auto_map=REMOTE), CODE),
        f"{ENGINE}model type 'own' is defined by code in the checkpoint, which is never run",
        "there may be a conversion",
    ),
    Layout("code for a family that is known", both(config(auto_map=REMOTE), CODE)),
    Layout(
        "a config that is cut off",
        put("config.json", b'{"model_type": '),
        "'config.json' of model 'm' is not valid JSON",
        "fetch it again",
    ),
    Layout(
        "a config that is a list",
        put("config.json", b"[]"),
        "'config.json' of model 'm' is not a JSON object",
        "fetch it again",
    ),
    Layout(
        "a pointer of Git LFS in place of the config",
        put("config.json", POINTER),
        "'config.json' of model 'm' is a pointer of Git LFS and not the file itself",
        "git lfs pull",
    ),
    Layout(
        "a config with a text for a size",
        config(hidden_size="x"),
        "config.json of model 'm' is not one that transformers can read: "
        "its field 'hidden_size' is wrong",
        "compare it",
    ),
    Layout(
        "a config of a wider model",
        config(hidden_size=96),
        "model 'm' has the wrong shape for 30 weights, such as 'lm_head.weight'",
        "are not of the same model",
    ),
    Layout(
        "a config of a deeper model",
        config(num_hidden_layers=4),
        "model 'm' lacks 9 weights, such as 'model.layers.3.input_layernorm.weight'",
        "are not of the same model",
    ),
    Layout("a config of fewer layers", config(num_hidden_layers=2), is_as_before=False),
    Layout("positions as they were once written", with_rope_of_old, is_as_before=False),
    Layout(
        "an encoder with a decoder",
        config(model_type="t5", is_encoder_decoder=True),
        f"{ENGINE}encoder-decoder models are not supported",
        "take a model of another family",
    ),
    Layout(
        "a tower alone",
        config(model_type="siglip"),
        "model 'm' of type 'siglip' generates no text that transformers knows of",
        "take a model of another family",
    ),
    Layout(
        "a classifier",
        config(architectures=["LlamaForSequenceClassification"]),
        f"{ENGINE}it is a 'LlamaForSequenceClassification', which generates no text",
        "load the model that it was made from",
    ),
    Layout("no generation config", drop("generation_config.json")),
    Layout("an end token out of the vocabulary", generation(eos_token_id=[2, 99999])),
    Layout("an end token below none", generation(eos_token_id=-1)),
    not_ids("</s>", "'</s>'"),
    not_ids([[2]], "[[2]]"),
    not_ids(2.5, "2.5"),
    Layout(
        "a generation config that is cut off",
        put("generation_config.json", b"{"),
        "'generation_config.json' of model 'm' is not valid JSON",
        "fetch it again",
    ),
    Layout("a temperature that cannot be", generation(do_sample=True, temperature=-1)),
]
