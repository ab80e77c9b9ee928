"""The hooks of the installed distribution: registered providers and imports."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from vlmkit.errors import ConfigError, PluginUnavailable
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins import loader
from vlmkit.plugins.registry import BuildContext
from vlmkit_mock.engine import MockEngine


@pytest.fixture
def offered() -> loader.Plugins:
    entries = importlib.metadata.entry_points(group="vlmkit", name="mock")
    found = loader.load(entry_points=list(entries))
    assert found.broken == {}
    return found


@pytest.fixture
def model(offered: loader.Plugins) -> Checkpoint:
    return offered.models.build("auto", {}, BuildContext("mock"))


def test_the_model_is_a_folder_of_the_package(model: Checkpoint) -> None:
    assert (model.name, model.model_type) == ("mock", "mock")


def test_auto_selects_every_component_of_the_model(
    offered: loader.Plugins, model: Checkpoint
) -> None:
    context = BuildContext("mock", model)
    assert offered.tokenizers.build("auto", {}, context).vocab_size == 269
    assert offered.media_encoders.build("auto", {}, context).identity == "vlmkit-mock 1"
    engine = offered.engines.build("auto", {"capacity_tokens": 64}, context)
    assert isinstance(engine, MockEngine)
    assert engine.limits.capacity_tokens == 64


def test_the_mock_serves_no_other_model(offered: loader.Plugins, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llava"}')
    context = BuildContext("llava", Checkpoint("llava", tmp_path))
    with pytest.raises(PluginUnavailable, match="it serves only the packaged model 'mock'"):
        offered.engines.build("auto", {}, context)
    with pytest.raises(PluginUnavailable, match="it has only the model 'mock'"):
        offered.models.build("mock", {}, BuildContext("llava"))


def test_a_misspelt_setting_is_refused(offered: loader.Plugins, model: Checkpoint) -> None:
    with pytest.raises(ConfigError, match="engine 'mock' has no setting 'latency'") as error:
        offered.engines.build("mock", {"latency": 1}, BuildContext("mock", model))
    assert error.value.hint == "did you mean 'latency_s'?"


def test_its_registration_imports_neither_numpy_nor_its_components() -> None:
    code = "import sys, vlmkit_mock.plugin; print(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(out.stdout.split())
    assert not loaded & {"numpy", "vlmkit_mock.engine", "vlmkit_mock.tokenizer"}
