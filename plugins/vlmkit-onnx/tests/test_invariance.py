"""Batch invariance stated by an exporter is checked on the machine that runs the graph."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vlmkit.kit import content, selfcheck_records
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx import build
from vlmkit_onnx.decoders.slots_decoder import SlotsDecoder
from vlmkit_onnx.engine.onnx_engine import OnnxEngine
from vlmkit_onnx.folder import layout
from vlmkit_onnx.self_checks import decoder_check
from vlmkit_onnx.self_checks.decoder_check import rows_are_invariant
from vlmkit_onnx.sessions.session import open_session
from vlmkit_onnx.settings import ComputeSettings, EngineSettings
from vlmkit_onnx.slots.memory import CacheSize

pytestmark = pytest.mark.torch  # the exporter makes the graph


class OtherRoundingOfSingleRows(SlotsDecoder):
    """Rounds a single row differently from the same row in a batch."""

    def decode(self, first_slot: int, starts: NDArray[np.int32], tokens: Any) -> Any:
        logits = super().decode(first_slot, starts, tokens)
        return logits if len(starts) > 1 else np.nextafter(logits, np.inf)


def opened(folder: Path, kind: type[SlotsDecoder], num_slots: int = 8) -> SlotsDecoder:
    graph = layout.own_layout(Checkpoint("model", folder), folder).decoder
    session = open_session(graph.file, ComputeSettings(num_threads=1))
    return kind(graph, session, CacheSize(num_slots, 16))


def built(folder: Path) -> OnnxEngine:
    settings = EngineSettings(cache_tokens=64, num_threads=1)
    return build.build_engine(BuildContext("", Checkpoint("model", folder), settings))


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3_vl"])
def test_a_graph_with_equal_sums_for_every_row_is_batch_invariant(
    name: str, exported: Callable[..., Path]
) -> None:
    assert rows_are_invariant(opened(exported(name), SlotsDecoder))


def test_different_rounding_of_single_rows_is_detected(exported: Callable[..., Path]) -> None:
    assert not rows_are_invariant(opened(exported("llama"), OtherRoundingOfSingleRows))


def test_an_engine_of_one_slot_is_batch_invariant(exported: Callable[..., Path]) -> None:
    assert rows_are_invariant(opened(exported("llama"), OtherRoundingOfSingleRows, 1))


@pytest.mark.parametrize("keeps", [True, False])
def test_invariance_is_promised_only_if_it_holds_here(
    keeps: bool, exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(content, "SETTLED_NS", 0)
    tried: list[object] = []
    monkeypatch.setattr(
        decoder_check, "rows_are_invariant", lambda decoder: tried.append(decoder) or keeps
    )
    for num_trials in (1, 1):  # the second load uses the record
        engine = built(exported("llama"))
        assert engine.limits.is_batch_invariant is keeps
        assert len(tried) == num_trials
        engine.close()


def test_a_decoder_is_checked_again_if_anything_changes(
    exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(content, "SETTLED_NS", 0)
    tried: list[str] = []
    monkeypatch.setattr(decoder_check, "refuse_discontinuous", lambda *_, **__: tried.append("it"))
    folder = tmp_path / "model"
    shutil.copytree(exported("llama"), folder)
    for count, change in enumerate(
        (
            lambda: None,
            (folder / "decoder.onnx").touch,
            lambda: monkeypatch.setattr(selfcheck_records, "packages", lambda: {"onnxruntime-9"}),
            lambda: monkeypatch.setattr(selfcheck_records, "_processor", lambda: "another"),
        ),
        1,
    ):
        change()
        for _ in range(2):
            built(folder).close()
        assert len(tried) == count
