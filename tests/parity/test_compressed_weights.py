"""Checkpoints of compressed-tensors are answered as by transformers with that package."""

import importlib.util
import logging
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import vlmkit
import zoo
from checkpoint_layouts import compressed as made
from checkpoint_layouts.weights import sharded, tensors
from parity import pipeline, runner
from quantized_checkpoints import compressed as written
from vlmkit.errors import PluginUnavailable
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.install_command import install_command
from vlmkit_quantized import formats
from vlmkit_torch.engine import packing
from vlmkit_torch.loading.reading import read_config, read_model

Saved = Callable[[str], Path]
PYPROJECT = Path(__file__).parents[2] / "plugins/vlmkit-torch/pyproject.toml"
ONE = {
    "w4a16": made.W4A16,
    "w8a16": made.W8A16,
    "int8": made.INT8,
    "fp8": {**made.FP8, "input_activations": None},
}
WITH_ACTIVATIONS = {
    "int8": made.INT8_ACTIVATIONS,
    "fp8": made.FP8,
    "fp8, scales of activations computed": made.FP8_DYNAMIC,
}
SEEING = (
    "qwen2_5_vl",
    pytest.param("llava", marks=pytest.mark.slow),
)
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("compressed_tensors") is None, reason="needs vlmkit-torch[quantized]"
)


def quantized(family: str, saved: Saved, folder: Path, *groups: made.Group, **stated: Any) -> Path:
    """Return the folder of a quantized family, called as the family is."""
    kind = transformers.AutoModelForImageTextToText
    if family in zoo.NAMES_TEXT:
        kind = transformers.AutoModelForCausalLM
    numbered = {f"group_{number}": group for number, group in enumerate(groups)}
    return made.quantize(saved(family), folder / family, numbered, kind, **stated)


def answers(folder: Path, **settings: Any) -> list[list[int]]:
    """Return the tokens of all requests to the family by whose name a folder is called."""
    with pipeline.load(folder, **settings) as model:
        streamed = pipeline.stream_all(model, runner.requests(folder.name))
    return [[sample.token_id for sample in samples] for _, samples in streamed]


def expected(folder: Path, **stated: Any) -> list[list[int]]:
    """Return the answers of transformers for a folder with other quantization settings."""
    other = folder.with_name("reference")
    shutil.copytree(folder, other)
    made.state(other, **stated)
    told = runner.expected(folder.name, other, runner.requests(folder.name), banned=())
    return [answer.token_ids for answer in told]


def read(folder: Path) -> Any:
    """Return a model as the engine reads it."""
    checkpoint = Checkpoint("m", folder)
    return read_model(checkpoint, read_config(checkpoint), torch.float32)


@needs_package
@pytest.mark.parametrize("group", ONE.values(), ids=ONE)
def test_each_quantization_scheme_is_answered_as_by_transformers(
    group: made.Group, saved: Saved, tmp_path: Path
) -> None:
    folder = quantized("llama", saved, tmp_path, group)

    assert answers(folder) == expected(folder)


def by_the_package(parts: dict[str, torch.Tensor], group: made.Group) -> torch.Tensor:
    """Return the values of a layer as the package computes them in float32."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    scheme, scales = QuantizationScheme(**group), parts["weight_scale"]
    is_packed = "weight_packed" in parts
    if is_packed and parts["weight_packed"].dtype == torch.uint8:  # else, it returns bfloat16
        rows, columns = parts["weight_packed"].shape
        is_mx = scales.dtype == torch.uint8
        return dequantize(
            x_q=unpack_fp4_from_uint8(parts["weight_packed"], rows, 2 * columns, torch.float32),
            scale=decompress_mx_scale(scales).float() if is_mx else scales.float(),
            args=scheme.weights,
            global_scale=parts.get("weight_global_scale"),
            dtype=torch.float32,
        )
    if scales.dtype == torch.uint8:
        scales = decompress_mx_scale(scales).float()
        return dequantize(parts["weight"], scales, args=scheme.weights)
    compressor = BaseCompressor.get_value_from_registry(str(group["format"]))
    return compressor.decompress(parts | {"weight_scale": scales.float()}, scheme)["weight"]


def assert_has_the_values_of_the_package(folder: Path, group: made.Group) -> None:
    stored = tensors(folder)
    found = formats.weights(Checkpoint("m", folder))
    assert len(found) == 21
    for name, weight in found.items():
        prefix = name.removesuffix("weight")
        parts = {part.removeprefix(prefix): stored[part] for part in weight.tensors}
        assert torch.equal(torch.from_numpy(weight.dense()), by_the_package(parts, group)), name


BY_THE_TOOL = {
    **ONE,
    "asymmetric": made.ASYMMETRIC,
    **{f"{bits} bits": made.group(made.weights(bits, "group")) for bits in (2, 3, 5, 6, 7)},
    "one scale": made.group(made.weights(4, "tensor")),
    "asymmetric rows": made.group(made.weights(8, symmetric=False)),
    "asymmetric int8": made.group(made.weights(8, symmetric=False), format="int-quantized"),
    "fp8 of rows": made.group(made.weights(8, type="float")),
}


@needs_package
@pytest.mark.parametrize("group", BY_THE_TOOL.values(), ids=BY_THE_TOOL)
def test_weights_that_the_tool_wrote_have_its_values(
    group: made.Group, saved: Saved, tmp_path: Path
) -> None:
    folder = quantized("llama", saved, tmp_path, group)
    stated = Checkpoint("m", folder).config["quantization_config"]["config_groups"]["group_0"]

    assert_has_the_values_of_the_package(folder, stated)


@needs_package
@pytest.mark.parametrize("scheme", written.SCHEMES)
def test_weights_that_are_written_from_the_specification_have_the_values_of_the_package(
    scheme: str, saved: Saved, tmp_path: Path
) -> None:
    folder = written.make(saved("llama"), tmp_path, scheme=scheme).folder
    stated = Checkpoint("m", folder).config["quantization_config"]["config_groups"]["group_0"]

    assert_has_the_values_of_the_package(folder, stated)


@needs_package
def test_mixed_schemes_and_a_quantized_head_in_shards_are_read(
    saved: Saved, tmp_path: Path
) -> None:
    head = {**made.W8A16, "targets": ["lm_head"]}
    groups = (made.ATTENTION, made.REST, head)
    folder = quantized("llama", saved, tmp_path, *groups, ignore=[])
    sharded(folder)

    assert answers(folder) == expected(folder)


@needs_package
def test_asymmetric_weights_answer_as_dequantized_by_transformers(
    saved: Saved, tmp_path: Path
) -> None:
    folder = quantized("llama", saved, tmp_path, made.ASYMMETRIC)

    assert answers(folder) == expected(folder, dequantize=True)


@needs_package
def test_weights_of_earlier_versions_of_the_tool_are_read(saved: Saved, tmp_path: Path) -> None:
    group = ONE["fp8"]
    folder = quantized("llama", saved, tmp_path, group)
    wanted = expected(folder)
    made.state(folder, quantization_status="frozen", config_groups={"group_0": group})

    assert answers(folder) == wanted


@needs_package
def test_quantized_keys_and_values_are_answered_as_by_transformers(
    saved: Saved, tmp_path: Path
) -> None:
    folder = quantized("llama", saved, tmp_path, made.W4A16, kv_cache_scheme=made.STATIC_FP8)
    wanted = expected(folder)

    assert answers(folder) == wanted
    assert wanted != answers(quantized("llama", saved, tmp_path / "plain", made.W4A16))


@needs_package
@pytest.mark.parametrize("family", SEEING)
def test_quantized_towers_are_read(family: str, saved: Saved, tmp_path: Path) -> None:
    folder = quantized(family, saved, tmp_path, made.W4A16)

    assert answers(folder) == expected(folder, ignore=["re:.*lm_head"])


@needs_package
def test_an_unquantized_tower_is_found_under_any_name(saved: Saved, tmp_path: Path) -> None:
    plain = ["lm_head", "re:.*visual.*"]
    folder = quantized("qwen2_5_vl", saved, tmp_path, made.W4A16, ignore=plain)

    assert answers(folder) == expected(folder, ignore=plain)


@needs_package
@pytest.mark.parametrize(
    ("family", "group"),
    [
        ("mixtral", made.W4A16),
        pytest.param("qwen3_moe", ONE["fp8"], marks=pytest.mark.slow),
        pytest.param("qwen3_moe", made.W8A16, marks=pytest.mark.slow),
    ],
)
def test_quantized_experts_are_read(
    family: str, group: made.Group, saved: Saved, tmp_path: Path
) -> None:
    plain = ["lm_head", "re:.*gate$"]
    folder = quantized(family, saved, tmp_path, group, ignore=plain)

    assert answers(folder) == expected(folder)


@needs_package
@pytest.mark.parametrize("group", WITH_ACTIVATIONS.values(), ids=WITH_ACTIVATIONS)
def test_layers_quantize_activations_as_in_transformers(
    group: made.Group, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Layers are compared: a difference in the last bit may become one of a level, and of a token.
    monkeypatch.setattr(packing, "MIN_NUMBERS", 1)
    folder = quantized("llama", saved, tmp_path, group)
    model: Any = read(folder)
    views: Any = SimpleNamespace(model=model, decoder=model.model, renew_head=lambda: None)
    packs = packing.Packing(views, ())
    for _ in range(packing.FIRST_SEQUENCES):
        packs.count_sequence()
    for _ in range(100):
        packs.after_step()
    wanted: Any = runner.load_reference("llama", folder)
    random = torch.Generator().manual_seed(0)
    pairs = [
        (model.get_submodule(name), layer)
        for name, layer in wanted.named_modules()
        if hasattr(layer, "quantization_scheme")
    ]

    assert len(pairs) == 21
    for ours, theirs in pairs:
        rows = torch.randn(1, 5, theirs.in_features, generator=random)
        made_of_rows = theirs(rows)
        assert torch.equal(ours(rows), made_of_rows)
        assert not torch.equal(torch.nn.functional.linear(rows, theirs.weight), made_of_rows)
    assert answers(folder)


@needs_package
def test_dense_weights_with_quantized_activations_are_not_sparse(
    saved: Saved, tmp_path: Path
) -> None:
    folder = quantized("llama", saved, tmp_path, made.INT8_ACTIVATIONS)
    before = answers(folder)
    made.state(folder, sparsity_config={"format": "dense", "registry_requires_subclass": False})

    assert answers(folder) == before


@needs_package
def test_a_layer_with_two_axes_quantizes_each_row_separately(saved: Saved, tmp_path: Path) -> None:
    layer = read(quantized("llama", saved, tmp_path, made.FP8_DYNAMIC)).get_submodule(
        "model.layers.0.mlp.up_proj"
    )
    rows = torch.tensor([[1000.0], [1.0], [1.0]]) * torch.randn(
        3, 64, generator=torch.Generator().manual_seed(0)
    )

    assert torch.equal(layer(rows), layer(rows[None])[0])
    assert torch.allclose(layer(rows)[1:], layer(rows[1:]), rtol=1e-4, atol=1e-4)


@needs_package
def test_loading_writes_no_standard_error_and_logs_no_warning(
    saved: Saved,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = quantized("llama", saved, tmp_path, made.W4A16)
    capfd.readouterr()
    with caplog.at_level(logging.WARNING), vlmkit.load(folder, engine={"use": "torch"}):
        pass

    assert capfd.readouterr().err == ""
    assert not caplog.records


@needs_package
@pytest.mark.parametrize("group", [made.W4A16, made.ASYMMETRIC], ids=["w4a16", "asymmetric"])
def test_weights_alone_need_no_package(
    group: made.Group, saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = quantized("llama", saved, tmp_path, group)
    monkeypatch.setitem(sys.modules, "compressed_tensors", None)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "compressed_tensors" else found(name),
    )

    assert answers(folder)


def test_the_hint_names_an_extra_that_contains_the_package(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(saved("llama"), folder)
    made.LAYOUTS[0].change(folder)
    made.state(folder, sparsity_config={}, config_groups={"group_0": made.INT8_ACTIVATIONS})
    made.with_weight("model.layers.0.mlp.up_proj.weight_packed")(folder)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "compressed_tensors" else found(name),
    )
    with pytest.raises(
        PluginUnavailable, match="to read them compressed_tensors must be inst"
    ) as it:
        vlmkit.load(folder, engine={"use": "torch"})

    assert it.value.hint.startswith(install_command("vlmkit-torch[quantized]"))
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert any(needed.startswith("compressed-tensors>=") for needed in extras["quantized"])
