"""Graphs of other exporters on a simulated CUDA device; see ``tests/pretend``."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")  # makes the checkpoints

from pretend import onnx_cuda
from pretend.steps import logits_of
from vlmkit.errors import ConfigError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.build import build_engine
from vlmkit_onnx.settings import EngineSettings

pytestmark = pytest.mark.torch


def engine_of(folder: Path, device: str) -> Any:
    few = EngineSettings(device=device, cache_tokens=300, max_sequences=4, num_threads=1)
    return build_engine(BuildContext("", Checkpoint("m", folder), few))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-fp16", "llama-int4-fp16"])
def test_a_graph_in_half_precision_answers_on_a_device_as_on_the_cpu(
    name: str, genai_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits_of(engine_of(genai_folders[name], "cpu"))
    onnx_cuda.install(monkeypatch)

    found = logits_of(engine_of(genai_folders[name], "cuda"))
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, wanted)


def test_quantized_weights_in_single_precision_are_refused(
    genai_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx_cuda.install(monkeypatch)
    with pytest.raises(ConfigError, match="half precision, and 'model"):
        engine_of(genai_folders["llama-int4"], "cuda")
