"""The report of `vlmkit doctor` about a model, before a graph is opened or exported."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vlmkit.errors import CheckpointError, ConfigError, PluginUnavailable, VlmkitError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx import build
from vlmkit_onnx.folder import export_cache, manifest
from vlmkit_onnx.sessions import products
from vlmkit_onnx.settings import EncoderSettings, EngineSettings

vlmkit_demo = pytest.importorskip("vlmkit_demo")
DEMO = Path(vlmkit_demo.__file__).with_name("checkpoint")


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the packaged model without graphs; the cache of exports is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    graphs = shutil.ignore_patterns("*onnx*", "embeddings.safetensors")
    return Path(shutil.copytree(DEMO, tmp_path / "model", ignore=graphs))


def engine(folder: Path, **settings: Any) -> str:
    context = BuildContext("", Checkpoint("m", folder), EngineSettings(**settings))
    return build.examine_engine(context)


def encoder(folder: Path, **settings: Any) -> str:
    context = BuildContext("", Checkpoint("m", folder), EncoderSettings(**settings))
    return build.examine_encoder(context)


@pytest.mark.parametrize("form", [products.SIGNED, products.UNSIGNED])
def test_the_kernels_of_this_cpu_are_named(
    form: products.Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "form", lambda: form)
    assert engine(DEMO) == f"w8a8, cpu, 8-bit products with {form.name}"
    assert encoder(DEMO) == "fp32, cpu"


def test_kernels_that_saturate_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "are_exact", lambda form: False)
    monkeypatch.setattr(products, "form", products.form.__wrapped__)
    with pytest.raises(CheckpointError, match="this CPU saturates sums"):
        engine(DEMO)


def test_a_pending_export_is_reported_and_not_started(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_cache, "missing_packages", list)
    assert engine(weights) == "to be exported as w8a8"
    assert engine(weights, precision="int4") == "to be exported as int4"
    assert encoder(weights) == "to be exported"
    assert encoder(weights, precision="w8a8") == "to be exported as w8a8"
    assert not (weights.parent / "cache").exists()


def test_an_export_without_the_exporter_is_reported(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_cache, "missing_packages", lambda: ["onnxscript"])
    for examine in (engine, encoder):
        with pytest.raises(PluginUnavailable, match="onnxscript must be installed"):
            examine(weights)


@pytest.mark.parametrize("run", [build.examine_engine, build.build_engine])
def test_graphs_of_another_precision_than_requested_are_refused(run: Any) -> None:
    settings = EngineSettings(precision="int8")
    with pytest.raises(ConfigError, match="'int8', and the graphs of model 'm' are 'w8a8'"):
        run(BuildContext("", Checkpoint("m", DEMO), settings))


@pytest.mark.parametrize("run", [build.examine_encoder, build.build_encoder])
def test_a_tower_of_another_precision_than_requested_is_refused(run: Any) -> None:
    settings = EncoderSettings(precision="w8a8")
    with pytest.raises(ConfigError, match="'w8a8', and that of the vision tower of model 'm' is"):
        run(BuildContext("", Checkpoint("m", DEMO), settings))
    assert encoder(DEMO, precision="fp32") == "fp32, cpu"


def beside_engine(folder: Path, of_engine: str, **settings: Any) -> str:
    context = BuildContext(
        "",
        Checkpoint("m", folder),
        EncoderSettings(**settings),
        components={"engine": ("onnx", {"precision": of_engine})},
    )
    return build.examine_encoder(context)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_tower_beside_such_an_engine_is_exported_in_single_precision(
    precision: str, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_cache, "missing_packages", list)
    assert beside_engine(weights, precision) == "to be exported as fp32"
    assert beside_engine(weights, precision, precision="w8a8") == "to be exported as w8a8"
    assert beside_engine(weights, "int8") == "to be exported"


def test_a_stored_8_bit_tower_is_refused_if_fp32_is_requested(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DEMO, tmp_path / "model"))
    stated = msgspec.structs.replace(manifest.read(DEMO), vision_precision="w8a8")
    manifest.write(folder, stated)
    with pytest.raises(ConfigError, match="'fp32', and the vision tower of model 'm' is 'w8a8'"):
        beside_engine(folder, "fp32")
    assert beside_engine(folder, "fp32", precision="w8a8").startswith("w8a8, cpu")
    assert beside_engine(DEMO, "fp32") == "fp32, cpu"


def test_an_8_bit_tower_is_refused_on_devices_other_than_cpus(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DEMO, tmp_path / "model"))
    stated = msgspec.structs.replace(manifest.read(DEMO), vision_precision="w8a8")
    manifest.write(folder, stated)
    assert encoder(folder).startswith("w8a8, cpu")
    with pytest.raises(ConfigError, match="on 'cuda', a vision tower in 'w8a8' does not run"):
        encoder(folder, device="cuda")


@pytest.mark.parametrize("file", ["decoder.onnx", "decoder.onnx.data"])
def test_a_missing_file_of_an_export_is_refused(file: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DEMO, tmp_path / "model"))
    (folder / file).unlink()
    with pytest.raises(VlmkitError, match=f"{file!r}.* is missing"):
        engine(folder)
