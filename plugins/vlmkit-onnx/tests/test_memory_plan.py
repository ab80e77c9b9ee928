"""Planned memory equals what the engine allocates, and the bytes of the graphs' files."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from vlmkit.errors import ConfigError
from vlmkit.interfaces.memory_plan import MemoryPlan, PlannedLoad
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx import build, memory_plan
from vlmkit_onnx.settings import EncoderSettings, EngineSettings

vlmkit_demo = pytest.importorskip("vlmkit_demo")
DEMO = Path(vlmkit_demo.__file__).with_name("checkpoint")


def context(settings: Any, folder: Path = DEMO) -> BuildContext:
    return BuildContext("", Checkpoint("m", folder), settings)


def need(plan: MemoryPlan, component: str) -> int:
    return sum(each.num_bytes for each in plan.needs if each.name == component)


@pytest.mark.parametrize(
    "settings", [{}, {"cache_tokens": 500}, {"max_sequence_tokens": 300, "max_sequences": 2}]
)
def test_the_plan_has_the_sizes_of_the_loaded_engine(settings: dict[str, int]) -> None:
    given = EngineSettings(**settings)
    plan = memory_plan.plan_engine(context(given), PlannedLoad(context_tokens=200))
    engine = build.build_engine(context(given))
    assert plan.limits is not None
    for name in ("vocab_size", "max_sequence_tokens", "max_sequences", "capacity_tokens"):
        assert getattr(plan.limits, name) == getattr(engine.limits, name), name
    assert need(plan, "KV cache") == 200 * engine._decoder.memory.token_bytes
    engine.close()


def test_weights_are_the_bytes_of_graphs_and_of_their_data() -> None:
    engine = memory_plan.plan_engine(context(EngineSettings()), PlannedLoad())
    files = [DEMO / "decoder.onnx", DEMO / "decoder.onnx.data"]
    stated, stored = need(engine, "weights"), sum(file.stat().st_size for file in files)
    assert 0.99 * stored < stated <= stored  # tensors begin at whole pages
    encoder = memory_plan.plan_encoder(context(EncoderSettings()), PlannedLoad())
    assert need(encoder, "weights") == (DEMO / "vision.onnx").stat().st_size


def test_graphs_that_are_still_to_be_exported_are_estimated_near_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    graphs = shutil.ignore_patterns("*onnx*", "embeddings.safetensors")
    folder = Path(shutil.copytree(DEMO, tmp_path / "model", ignore=graphs))
    made, planned = (
        memory_plan.plan_engine(context(EngineSettings(), each), PlannedLoad(context_tokens=500))
        for each in (DEMO, folder)
    )
    assert need(planned, "KV cache") == need(made, "KV cache")
    assert need(made, "weights") == pytest.approx(need(planned, "weights"), rel=0.25)
    assert "still to be exported" in planned.needs[0].detail


def test_a_cache_that_is_too_small_is_refused_as_at_load() -> None:
    settings = EngineSettings(cache_tokens=8)
    with pytest.raises(ConfigError) as planned:
        memory_plan.plan_engine(context(settings), PlannedLoad())
    with pytest.raises(ConfigError) as loaded:
        build.build_engine(context(settings))
    assert str(planned.value) == str(loaded.value)
