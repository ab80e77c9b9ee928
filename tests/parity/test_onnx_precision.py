"""``engine.precision = "fp32"`` applies to all parts: answers about images equal transformers'."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import vlmkit
from parity import pipeline, runner
from vlmkit.cli import run as command

Saved = Callable[[str], Path]
FAMILIES = (
    "llava",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2_5_vl", "gemma3", "smolvlm")),
)


def precisions(model: vlmkit.Model) -> tuple[str, str]:
    return model.facts.limits.precision, model.facts.encoder_precision


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_equal_after_an_earlier_export_with_an_8_bit_tower(
    family: str,
    saved: Saved,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, requests = saved(family), runner.requests(family)
    graphs = {"use": "onnx"}
    with vlmkit.load(folder, engine=graphs, media_encoder=graphs) as model:
        assert precisions(model) == ("w8a8", "w8a8")
    whole = {**graphs, "precision": "fp32"}
    with vlmkit.load(folder, engine=whole, media_encoder=graphs) as model:
        assert precisions(model) == ("fp32", "fp32")
        found = pipeline.stream_all(model, requests)

    wanted = runner.expected(family, folder, requests)  # placeholders are never chosen
    assert [[s.token_id for s in samples] for _, samples in found] == [a.token_ids for a in wanted]

    sets = ["engine.use=onnx", "engine.precision=fp32", "media_encoder.use=onnx"]
    options = [word for each in sets for word in ("--set", each)]
    assert command(["models", "info", str(folder), "--json", *options]) == 0
    precision = json.loads(capsys.readouterr().out)["precision"]
    assert (precision["engine"], precision["media_encoder"]) == ("fp32, cpu", "fp32, cpu")
    assert command(["doctor", str(folder), "--json", *options]) == 0
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    how = {each["component"]: each["how"] for each in verdicts if each["is_chosen"]}
    assert (how["engine"], how["media_encoder"]) == ("fp32, cpu", "fp32, cpu")
