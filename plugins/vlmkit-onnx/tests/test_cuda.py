"""The engine on a simulated CUDA device; see ``tests/pretend``."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")  # exports the models

from pretend import onnx_cuda
from pretend.steps import logits_of
from vlmkit.errors import CheckpointError, ConfigError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.build import build_engine
from vlmkit_onnx.decoders.decoder import Tokens
from vlmkit_onnx.decoders.slots_decoder import SlotsDecoder
from vlmkit_onnx.sessions.runtime import onnxruntime
from vlmkit_onnx.settings import EngineSettings

pytestmark = pytest.mark.torch

Open = Callable[..., Any]


@pytest.fixture
def open_engine(
    one_thread: None, exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Return a function that opens a family, by default in half precision on the device."""
    made = []

    def build(
        name: str = "llama", device: str = "cuda", precision: str = "fp16", **settings: Any
    ) -> Any:
        if device != "cpu":
            onnx_cuda.install(monkeypatch)
        few = {"cache_tokens": 400, "max_sequences": 4, "num_threads": 1, **settings}
        files = Checkpoint(name, exported(name, precision))
        made.append(build_engine(BuildContext("", files, EngineSettings(device=device, **few))))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def test_a_device_that_copies_inputs_at_binding_answers_as_the_cpu(
    open_engine: Open,
) -> None:
    expected = logits_of(open_engine(device="cpu"))

    for found, wanted in zip(logits_of(open_engine()), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.gpu
def test_a_gpu_answers_as_the_cpu(exported: Callable[..., Path], one_thread: None) -> None:
    if onnx_cuda.PROVIDERS[0] not in onnxruntime.get_available_providers():
        pytest.skip("ONNX Runtime has no CUDA")
    files = Checkpoint("llama", exported("llama", "fp16"))
    rows = {}
    for device in ("cpu", "cuda"):
        few = EngineSettings(device=device, cache_tokens=400, max_sequences=4)
        rows[device] = logits_of(build_engine(BuildContext("", files, few)))

    for found, wanted in zip(rows["cuda"], rows["cpu"], strict=True):
        np.testing.assert_allclose(found, wanted, atol=0.05 * np.abs(wanted).max())


def test_an_exported_decoder_that_computes_other_logits_here_is_refused(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = SlotsDecoder.decode

    def forgetful(decoder: SlotsDecoder, slot: int, starts: np.ndarray, tokens: Tokens) -> Any:
        return decode(decoder, slot, np.zeros_like(starts), tokens)

    monkeypatch.setattr(SlotsDecoder, "decode", forgetful)
    with pytest.raises(CheckpointError, match="gives other logits for tokens in a batch than"):
        open_engine(device="cpu")


def test_slots_on_a_device_stay_within_the_cache_size(
    open_engine: Open, caplog: pytest.LogCaptureFixture
) -> None:
    gib = 4 * 120 * 384 / 2**30  # four sequences of 120 tokens of 384 bytes
    engine = open_engine(cache_tokens=None, cache_gib=gib)
    memory = engine._decoder.memory

    assert memory.token_bytes == 384
    assert memory.num_slots * memory.slot_tokens * memory.token_bytes <= gib * 2**30
    assert engine.limits.max_sequence_tokens == 119
    assert "sequences have at most 119 tokens, not 2048" in caplog.text
    limited = open_engine(cache_tokens=None, cache_gib=gib, max_sequence_tokens=200)
    assert limited.limits.max_sequence_tokens == 200


def test_single_precision_is_refused_on_a_device_with_a_hint(open_engine: Open) -> None:
    with pytest.raises(ConfigError) as caught:
        open_engine(precision="fp32")
    assert str(caught.value) == (
        "on 'cuda', attention computes in half precision, and 'decoder.onnx' keeps 'float32'"
    )
    assert "--precision fp16" in caught.value.hint


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
def test_a_session_that_fell_back_to_the_cpu_is_refused(
    exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Checkpoint("llama", exported("llama", "fp16"))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: onnx_cuda.PROVIDERS)
    with pytest.raises(ConfigError, match="could not load the CUDA libraries that it needs"):
        build_engine(BuildContext("", files, EngineSettings(device="cuda")))
