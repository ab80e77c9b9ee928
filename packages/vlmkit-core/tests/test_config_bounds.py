"""Bounds of numbers and types in a checkpoint's JSON files; errors name the value."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from vlmkit.assembly.sources import resolve
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.errors import CheckpointError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.config_bounds import refuse_unreasonable
from vlmkit.settings.plugins import PluginSettings

CONFIG: dict[str, Any] = {
    "model_type": "llava",
    "architectures": ["LlavaForConditionalGeneration"],
    "image_seq_length": 576,
    "vision_feature_layer": -2,
    "text_config": {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_experts": 0,
        "max_position_embeddings": 10_485_760,
        "rope_theta": 500_000_000,
        "vocab_size": 256_000,
        "sliding_window": None,
        "layer_types": ["full_attention"] * 32,
        "time_step_limit": [0.0, float("inf")],
    },
    "vision_config": {"image_size": 336, "patch_size": 14, "depths": [2, 2, 18, 2]},
}
GENERATION: dict[str, Any] = {"eos_token_id": [1, 2], "max_length": 2**40, "temperature": 0.6}
IMAGES: dict[str, Any] = {
    "size": {"shortest_edge": 336},
    "crop_size": {"height": 336, "width": 336},
    "image_mean": [0.5, 0.5, 0.5],
    "image_grid_pinpoints": [[336, 672]],
}
AREAS: dict[str, Any] = {
    "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
    "max_pixels": 10**9,
    "merge_size": 2,
}
TOKENIZER = {"model_max_length": int(1e30)}
HUGE = 10**30


def write_config(folder: Path, **files: Any) -> Checkpoint:
    contents = {
        "config": CONFIG,
        "generation_config": GENERATION,
        "preprocessor_config": IMAGES,
        "tokenizer_config": TOKENIZER,
    }
    for file, content in {**contents, **files}.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    return Checkpoint("m", folder)


def with_value(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(content))
    *before, last = path.split(".")
    inner = copy
    for name in before:
        inner = inner[name]
    inner[last] = value
    return copy


@pytest.mark.parametrize("images", [IMAGES, AREAS])
def test_configs_of_real_models_are_accepted(tmp_path: Path, images: dict[str, Any]) -> None:
    refuse_unreasonable(write_config(tmp_path, preprocessor_config=images))


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("text_config.max_position_embeddings", HUGE, "at most"),
        ("text_config.max_position_embeddings", -1, "at least 0"),
        ("text_config.num_hidden_layers", 1_000_000, "at most 1024"),
        ("text_config.hidden_size", 10**400, "at most"),
        ("text_config.attention_dropout", 10**400, "at most"),
        ("vision_config.depths", [2, 1_000_000], "at most 1024"),
        ("text_config.hidden_size", HUGE, "at most"),
        ("text_config.num_experts", 10**6, "at most"),
        ("text_config.vocab_size", 10**12, "at most"),
        ("text_config.rope_theta", float("nan"), "a number"),
        ("text_config.sliding_window", HUGE, "at most"),
        ("text_config.layer_types", 7, "a list of texts"),
        ("vision_config.image_size", [HUGE, 336], "at most 8192"),
        ("image_seq_length", 10**9, "at most"),
        ("vision_config", "x", "an object"),
        ("text_config", [1], "an object"),
        ("vision_config.model_type", {}, "a text"),
        ("model_type", 5, "a text"),
        ("architectures", "Llava", "a list of texts"),
    ],
)
def test_impossible_values_of_a_config_are_refused_with_their_path(
    tmp_path: Path, path: str, value: Any, expected: str
) -> None:
    checkpoint = write_config(tmp_path, config=with_value(CONFIG, path, value))

    with pytest.raises(CheckpointError) as caught:
        refuse_unreasonable(checkpoint)
    assert str(caught.value).startswith(f"'config.json' of model 'm': '{path}")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "path"),
    [
        ("preprocessor_config", with_value(IMAGES, "crop_size.height", 10**7), "crop_size.height"),
        (
            "preprocessor_config",
            with_value(IMAGES, "size.shortest_edge", 1e9),
            "size.shortest_edge",
        ),
        (
            "preprocessor_config",
            with_value(AREAS, "size.shortest_edge", 10**9),
            "size.shortest_edge",
        ),
        ("processor_config", {"num_image_tokens": 10**9}, "num_image_tokens"),
        ("generation_config", with_value(GENERATION, "eos_token_id", [HUGE]), "eos_token_id.0"),
    ],
)
def test_impossible_values_of_other_files_are_refused(
    tmp_path: Path, file: str, content: dict[str, Any], path: str
) -> None:
    checkpoint = write_config(tmp_path, **{file: content})

    with pytest.raises(CheckpointError, match=f"'{file}.json' of model 'm': '{path}' is"):
        refuse_unreasonable(checkpoint)


@pytest.mark.parametrize("file", ["config", "generation_config", "processor_config"])
@pytest.mark.parametrize("text", ["[", "5", "[1]", "9" * 10_000, "[" * 100_000])
def test_a_file_that_holds_no_object_is_named(tmp_path: Path, file: str, text: str) -> None:
    checkpoint = write_config(tmp_path)
    (tmp_path / f"{file}.json").write_text(text)

    with pytest.raises(CheckpointError, match=f"'{file}.json' of model 'm'"):
        refuse_unreasonable(checkpoint)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
PATHS = [
    *(f"text_config.{name}" for name in CONFIG["text_config"]),
    *(f"vision_config.{name}" for name in CONFIG["vision_config"]),
    *CONFIG,
]


@given(path=st.sampled_from(PATHS), value=JSON)
def test_any_value_is_accepted_or_refused_with_its_name(
    tmp_path_factory: pytest.TempPathFactory, path: str, value: Any
) -> None:
    folder = tmp_path_factory.mktemp("model")
    checkpoint = write_config(folder, config=with_value(CONFIG, path, value))
    message = ""
    try:
        refuse_unreasonable(checkpoint)
    except CheckpointError as error:
        message = str(error)

    assert not message or path in message


def test_a_model_is_refused_before_a_plugin_reads_it(tmp_path: Path) -> None:
    write_config(tmp_path, config=with_value(CONFIG, "vision_config", 5))

    with pytest.raises(CheckpointError, match="'vision_config' is 5, expected an object"):
        resolve(str(tmp_path), load_plugins(PluginSettings(), environ={}))
