"""The exporter: a decoder computes the values of its model, or nothing is written."""

import functools
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from vlmkit.checkpoints.pooling import Pooling, read_pooling
from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit_onnx.folder import manifest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.torch

import onnx_ir  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

import zoo  # noqa: E402
from vlmkit_onnx.decoders.slots_decoder import SlotsDecoder  # noqa: E402
from vlmkit_onnx.export import decoder, exporter, sample  # noqa: E402
from vlmkit_onnx.export.check import check  # noqa: E402
from vlmkit_onnx.export.decoder import export_decoder  # noqa: E402
from vlmkit_onnx.export.decoder_traits import inspect_decoder, max_tokens  # noqa: E402
from vlmkit_onnx.export.exporter import export  # noqa: E402
from vlmkit_onnx.export.views import Parts  # noqa: E402
from vlmkit_onnx.folder.layout import DecoderGraph  # noqa: E402
from vlmkit_onnx.prompts.families import family_of  # noqa: E402
from vlmkit_onnx.self_checks.continuity import refuse_discontinuous  # noqa: E402
from vlmkit_onnx.sessions.session import open_session  # noqa: E402
from vlmkit_onnx.settings import ComputeSettings  # noqa: E402
from vlmkit_onnx.slots.memory import CacheSize  # noqa: E402

# tests/parity exports every family of the zoo and compares the whole pipeline.
FURTHER = {
    "granite": {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.5},
    "olmo2": {},
    "cohere2": {"sliding_window": 12, "sliding_window_pattern": 2},
    "smollm3": {"no_rope_layers": [1, 0]},
    "ctrl": {"dff": 96},  # scales embeddings in place
}
FALCON_H1 = {
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "head_dim": 16,
}
SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    yield
    transformers.utils.logging.set_verbosity_warning()
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Checkpoint]:
    @functools.cache
    def saved(name: str, dtype: str = "float32") -> Checkpoint:
        return Checkpoint(name, zoo.save(name, tmp_path_factory.mktemp(name), dtype=dtype))

    return saved


def _from_config(model_type: str, folder: Path, **values: Any) -> Checkpoint:
    config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **values})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return Checkpoint(model_type, folder)


class Exported(NamedTuple):
    path: Path
    sample: sample.Sample
    difference: float


def _decoder(checkpoint: Checkpoint, folder: Path) -> Exported:
    """Export a decoder alone; return the difference between its graph and the model."""
    parts = Parts(exporter.load(checkpoint))
    traits = inspect_decoder(parts, family_of(checkpoint.config).visibility)
    taken = sample.make_sample(parts, traits, sample.embeddings_of(parts))
    path = folder / "decoder.onnx"
    export_decoder(parts, traits, path)
    return Exported(path, taken, check(path, taken, "fp32"))


@pytest.fixture(scope="module")
def mistral(
    checkpoint: Callable[..., Checkpoint], tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    return _decoder(checkpoint("mistral"), tmp_path_factory.mktemp("mistral-onnx"))


def test_a_decoder_with_a_window_agrees_with_its_model(mistral: Exported) -> None:
    assert mistral.difference < 1e-5


def test_the_check_detects_a_window_that_is_one_too_wide(mistral: Exported, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"differs from the model by \d"):
        check(_changed(mistral.path, tmp_path, "local_window_size", 9), mistral.sample, "fp32")


def test_the_check_detects_a_wrong_window_within_rounding_tolerance(
    mistral: Exported, tmp_path: Path
) -> None:
    path = _changed(mistral.path, tmp_path, "local_window_size", 4)
    with pytest.raises(CheckpointError, match="cannot be exported"):
        check(path, mistral.sample, "w8a8", chooses=True)


def test_the_check_detects_swapped_halves_of_the_rotation(
    mistral: Exported, tmp_path: Path
) -> None:
    path = _changed(mistral.path, tmp_path, "rotary_interleaved", 1)
    with pytest.raises(CheckpointError, match="cannot be exported"):
        check(path, mistral.sample, "fp32")


def test_a_graph_that_cannot_be_opened_is_refused(mistral: Exported, tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    path.write_bytes(b"not a graph")
    with pytest.raises(CheckpointError, match=r"'decoder\.onnx' is not a whole ONNX file"):
        check(path, mistral.sample, "fp32")


def test_a_graph_that_cannot_run_is_refused(mistral: Exported) -> None:
    positions = mistral.sample.positions.astype(np.float64)  # a kind that graphs do not support
    with pytest.raises(CheckpointError, match="the exported decoder does not run"):
        check(mistral.path, replace(mistral.sample, positions=positions), "fp32")


def test_rotation_and_projection_are_folded_into_the_attention_operator(mistral: Exported) -> None:
    nodes = onnx_ir.load(mistral.path).graph
    attention = [node for node in nodes if node.op_type == "GroupQueryAttention"]
    assert len(attention) == 3
    assert all(node.attributes["do_rotary"].as_int() == 1 for node in attention)
    assert all(node.inputs[1] is None for node in attention)
    assert not [node for node in nodes if node.op_type == "RotaryEmbedding"]


def test_a_graph_contains_no_paths_of_the_exporting_machine(mistral: Exported) -> None:
    assert b"site-packages" not in mistral.path.read_bytes()
    assert b".py" not in mistral.path.read_bytes()


def _changed(path: Path, folder: Path, attribute: str, value: int) -> Path:
    model = onnx_ir.load(path)
    for node in model.graph:
        if attribute in node.attributes:
            node.attributes[attribute] = onnx_ir.AttrInt64(attribute, value)
    onnx_ir.external_data.load_to_model(model)
    onnx_ir.save(model, folder / "decoder.onnx")
    return folder / "decoder.onnx"


def test_sections_of_rotation_that_only_a_familys_code_states_are_three_axes() -> None:
    experts = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    config = transformers.Qwen3VLMoeConfig(
        text_config={**SIZES, **experts, "head_dim": 16, "rope_parameters": {"rope_theta": 1e4}},
        vision_config={"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64},
    )
    assert "mrope_section" not in config.text_config.rope_parameters
    model = transformers.AutoModelForImageTextToText.from_config(config)
    assert inspect_decoder(Parts(model), "causal").num_position_axes == 3


@pytest.mark.slow
def test_a_window_that_no_layer_uses_has_no_mask(tmp_path: Path) -> None:
    layers = {"layer_types": ["full_attention"] * 2, "sliding_window": 8, "head_dim": 16}
    made = _from_config("gemma3_text", tmp_path / "model", **layers)
    parts = Parts(exporter.load(made))
    traits = inspect_decoder(parts, "image_blocks")
    path = tmp_path / "decoder.onnx"
    export_decoder(parts, traits, path)

    session = open_session(path, ComputeSettings(num_threads=1))
    opened = SlotsDecoder(DecoderGraph(path, "slots"), session, CacheSize(2, 32))
    refuse_discontinuous(opened, path.name)
    opened.close()


@pytest.mark.slow
@pytest.mark.parametrize("model_type", FURTHER)
def test_unlisted_text_families_can_be_exported(model_type: str, tmp_path: Path) -> None:
    made = _from_config(model_type, tmp_path / "model", **FURTHER[model_type])
    assert _decoder(made, tmp_path).difference < 1e-5


def test_an_export_has_a_complete_manifest(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    stages: list[str] = []
    source = checkpoint("llama", "bfloat16")
    (source.path / "1_Pooling").mkdir(exist_ok=True)
    (source.path / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    made = export(source, tmp_path / "out", "w8a8", stages.append)
    folder = tmp_path / "out"
    assert read_pooling(Checkpoint("copy", folder)) == Pooling("mean")
    assert manifest.read(folder) == made
    assert made.precision == "w8a8"
    assert made.is_batch_invariant
    assert made.vision is None
    assert {"config.json", "tokenizer.json", "generation_config.json"} <= _names(folder)
    assert {"decoder.onnx", "decoder.onnx.data", "embeddings.safetensors"} <= _names(folder)
    assert not [name for name in _names(folder) if name.startswith("model")]
    assert "converting layers 22/22" in stages
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int4", "int8", "fp16"])
@pytest.mark.parametrize("name", ["llama"])
def test_every_precision_agrees_with_the_same_modules_in_torch(
    name: str, precision: manifest.Precision, exported: Callable[..., Path]
) -> None:
    folder = exported(name, precision)  # compares, and leaves nothing on a difference
    assert manifest.read(folder).is_batch_invariant == (precision != "fp16")
    inputs = onnx_ir.load(folder / "decoder.onnx").graph.inputs
    types = {item.name: item.dtype for item in inputs}
    half = onnx_ir.DataType.FLOAT16
    assert types["inputs_embeds"] == onnx_ir.DataType.FLOAT
    assert (types["past_key_values.0.key"] == half) == (precision == "fp16")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["w8a8", "int4", "int8"])
@pytest.mark.parametrize("name", ["llama"])
def test_quantized_queries_keys_and_values_are_one_projection(
    name: str, precision: manifest.Precision, exported: Callable[..., Path]
) -> None:
    nodes = onnx_ir.load(exported(name, precision) / "decoder.onnx").graph
    attention = [node for node in nodes if node.op_type == "GroupQueryAttention"]
    assert attention
    assert all(node.inputs[1] is node.inputs[2] is None for node in attention)


def test_8_bit_activations_are_quantized_once_for_all_readers(
    exported: Callable[..., Path],
) -> None:
    nodes = onnx_ir.load(exported("llama", "w8a8") / "decoder.onnx").graph
    kinds = [node.op_type for node in nodes]
    num_layers = kinds.count("GroupQueryAttention")
    # Readers: the packed projection, the output projection, gate and up, down; and the head.
    assert kinds.count("QuantizeLinear") == 4 * num_layers + 1
    assert kinds.count("MatMulIntegerToFloat") == 5 * num_layers + 1
    assert not {"Round", "Div", "MatMulInteger"} & set(kinds)


def test_the_scaled_table_equals_the_embeddings_of_the_model(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file

    from vlmkit_onnx.export.embedding import write_table

    model = exporter.load(checkpoint("gemma3_text"))
    stated = write_table(Parts(model), tmp_path)
    assert stated.scale == 8.0
    table = load_file(tmp_path / stated.file)[stated.tensor]
    wanted = model.get_input_embeddings()(torch.arange(30)).numpy()
    np.testing.assert_allclose(table[:30] * stated.scale, wanted, rtol=1e-6)


def test_an_interrupted_export_leaves_nothing(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    def interrupt(stage: str) -> None:
        if stage.startswith("tracing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(checkpoint("llama"), tmp_path / "out", "fp32", interrupt)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_there", [True, False])
def test_an_export_is_renamed_on_systems_that_cannot_replace_folders(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def as_on_windows(source: Path, target: Path) -> None:
        if Path(target).exists():
            raise PermissionError(13, "Access is denied", str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", as_on_windows)
    monkeypatch.setattr(os, "replace", as_on_windows)
    place, folder = tmp_path / "place", tmp_path / "out"
    place.mkdir()
    (place / "decoder.onnx").write_bytes(b"graph")
    if is_there:
        folder.mkdir()
    exporter._move_to_target(place, folder)

    assert (folder / "decoder.onnx").read_bytes() == b"graph"
    assert not place.exists()


@pytest.mark.posix
@pytest.mark.parametrize("is_link", [True, False])
def test_a_target_that_cannot_be_replaced_is_refused_before_the_work(
    *,
    is_link: bool,
    checkpoint: Callable[..., Checkpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    monkeypatch.chdir(tmp_path / "target")
    folder = tmp_path / "link" if is_link else Path()
    stages: list[str] = []
    with pytest.raises(ConfigError, match="which a finished export cannot replace"):
        export(checkpoint("llama"), folder, "fp32", stages.append)
    assert stages == []
    assert (tmp_path / "link").readlink() == tmp_path / "target"


def test_a_target_that_is_not_empty_is_refused(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ConfigError, match="is not empty"):
        export(checkpoint("llama"), tmp_path, "fp32", lambda _: None)
    assert _names(tmp_path) == {"mine"}


def test_a_model_that_lacks_a_weight_is_refused(
    checkpoint: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(checkpoint("llama").path, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 1 weights, such as 'model.norm.weight'"):
        export(Checkpoint("broken", folder), tmp_path / "out", "fp32", lambda _: None)
    assert _names(tmp_path) == {"model"}


@pytest.mark.parametrize(
    ("model_type", "values", "reason"),
    [
        ("opt", {"ffn_dim": 96, "word_embed_proj_dim": 32}, "does not take what an exported"),
        ("falcon_h1", FALCON_H1, "model type 'falcon_h1' has recurrent layers"),
        ("mamba", {"state_size": 4}, "recurrent layers"),
        ("qwen3_next", {"num_experts": 4}, "layers of type 'linear_attention'"),
        (
            "gemma3n_text",
            {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8},
            "embeddings for each layer",
        ),
        (
            "deepseek_v3",
            {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
            | {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8}
            | {"qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 2},
            "keys are 16 wide and its values 8",
        ),
    ],
)
def test_unsupported_decoders_are_refused_before_anything_costly(
    model_type: str, values: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    made = _from_config(model_type, tmp_path / "model", **values)
    stages: list[str] = []
    with pytest.raises(CheckpointError, match=reason):
        export(made, tmp_path / "out", "fp32", stages.append)
    assert stages == ["reading weights"]
    assert _names(tmp_path) == {"model"}


@pytest.mark.parametrize("by_layer", [False, True])
def test_a_graph_is_right_for_the_tokens_before_rotation_changes(by_layer: bool) -> None:
    table = {"rope_type": "longrope", "original_max_position_embeddings": 32}
    stated = {"sliding_attention": {"rope_type": "default"}, "full_attention": table}
    config = transformers.Gemma3TextConfig(max_position_embeddings=128)
    config.rope_parameters = stated if by_layer else table
    assert max_tokens(config) == 32


@pytest.mark.slow
def test_shortcuts_of_tracing_do_not_change_the_graph(
    mistral: Exported, checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = checkpoint("mistral")
    parts = Parts(exporter.load(source))
    monkeypatch.setattr(decoder, "tracing", lambda: warnings.catch_warnings(action="ignore"))
    slowly = decoder.trace_decoder(
        parts, inspect_decoder(parts, family_of(source.config).visibility)
    )
    assert _operators(slowly) == _operators(onnx_ir.load(mistral.path))


def _operators(model: onnx_ir.Model) -> list[tuple[str, list[str], list[str]]]:
    return [
        (
            node.op_type,
            ["" if value is None else str(value.name) for value in node.inputs],
            [str(value.name) for value in node.outputs],
        )
        for node in model.graph
    ]


def test_an_export_leaves_torch_and_transformers_as_they_were(mistral: Exported) -> None:
    names = list(transformers.AttentionInterface())
    assert not [name for name in names if name.startswith("vlmkit_export")]
    assert torch.split.__module__ == "torch.functional"


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
