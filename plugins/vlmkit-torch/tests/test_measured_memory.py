"""On a CUDA device, the cache gets what the largest step leaves, on a simulated device.

The simulation (``tests/pretend``) counts the bytes of tensors, and runs out as a device does.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretend.steps import TEXTS, logits_of
from pretend.torch_cuda import CUDA, Device, pretended_cuda
from vlmkit.errors import ConfigError
from vlmkit.interfaces.engine import NUM_REPLAYED
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.step import WorkItem
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit_hf.settings import HfTokenizerSettings
from vlmkit_hf.text_side.tokenizer import HfTokenizer
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.plugin import _examine_engine
from vlmkit_torch.settings import EngineSettings
from vlmkit_torch.vision.encoder import TorchVisionEncoder

pytestmark = pytest.mark.torch

MIB = 2**20
LOGGED = "the largest step takes"
STEP_TOKENS = 2048
WIDE = {"max_sequences": 256, "max_sequence_tokens": 4096}
"""The cache could have a million tokens, for which this device has no room."""
SIZE = 128 / 1024  # GiB of the device
FEATURES = MIB


@pytest.fixture
def built(saved: Callable[[str], Path]) -> Callable[..., Any]:
    """Return a function that builds engine and encoder as a pipeline does."""

    def build(
        name: str, step_tokens: int = STEP_TOKENS, feature_bytes: int = FEATURES, **settings: Any
    ) -> Any:
        files = Checkpoint(name, saved(name))
        own = {"device": "cuda", "cuda_graphs": False, "self_check": False, **WIDE, **settings}
        context = BuildContext(
            "",
            files,
            EngineSettings(**own),
            text_side=HfTokenizer(files, HfTokenizerSettings()),
            components={
                "engine": ("torch", own),
                "media_encoder": ("torch", {"max_batch_images": 2}),
                "scheduler": ("fair", {"max_step_tokens": step_tokens}),
            },
            bounds=PipelineSettings(feature_cache_bytes=feature_bytes),
        )
        return torch_engine.build(context), context

    return build


def cache_bytes(engine: Any) -> int:
    """Return what the cache takes on the device."""
    pools = engine._context.cache._pools.values()
    return sum(pool.nbytes for each in pools for pool in each if isinstance(pool, torch.Tensor))


def run_largest(engine: Any) -> None:
    """Compute the last chunk of the longest prompt, with logits of all tokens."""
    host = EngineHost(engine)
    sequence = host.sequence(Prompt((5,) * (engine.limits.max_sequence_tokens - 1)))
    host.admit(sequence)
    start = len(sequence) - STEP_TOKENS
    engine.forward([WorkItem(sequence, start, STEP_TOKENS, num_rows=STEP_TOKENS)])
    engine.release(sequence)


def peak_of(device: Device, compute: Callable[[], object]) -> int:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(CUDA)
    compute()
    return device.memory.peak_bytes


def test_the_largest_step_fits_beside_the_cache(built: Callable[..., Any]) -> None:
    """With the planned cache, the same step does not, and is split from then on."""
    with pretended_cuda(gib=SIZE) as device:
        engine, _ = built("llama")
        measured, weights = cache_bytes(engine), device.memory.num_bytes - cache_bytes(engine)
        free = device.memory.total_bytes - weights
        peak = peak_of(device, lambda: run_largest(engine)) - weights
        assert engine.max_pass_tokens is None
        assert 0.8 * 0.9 * free < peak <= 0.9 * free + MIB, "the rest is for others"
        planned = 0.8 * free
        engine.close()
        assert measured < planned
        other, _ = built("llama", cache_gib=planned / 2**30)
        with pytest.raises(Exception, match="this request"):
            run_largest(other)


def test_a_larger_fraction_gives_the_cache_more(built: Callable[..., Any]) -> None:
    with pretended_cuda(gib=SIZE):
        sizes = [cache_bytes(built("llama", memory_fraction=part)[0]) for part in (0.5, 0.9)]
    assert sizes[1] - sizes[0] == pytest.approx(0.4 * SIZE * 2**30, rel=0.05)


def test_the_cache_leaves_room_for_an_image_batch_and_kept_features(
    built: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are encoded beside a step. The batch has as many images as the settings allow."""
    with pretended_cuda(gib=SIZE):
        usual, _ = built("qwen2_vl")
        without = cache_bytes(usual)
        usual.close()
        encode, nums = TorchVisionEncoder._encode_group, []

        def hungry(self: TorchVisionEncoder, slots: list[Any]) -> Any:
            nums.append(len(slots))
            more = torch.zeros(16 * MIB, dtype=torch.uint8, device=CUDA)
            return encode(self, slots) if more.nbytes else None

        monkeypatch.setattr(TorchVisionEncoder, "_encode_group", hungry)
        engine, _ = built("qwen2_vl")
        assert without - cache_bytes(engine) == pytest.approx(16 * MIB, rel=0.05)
        assert nums == [2]
        engine.close()
        many, _ = built("qwen2_vl", feature_bytes=8 * MIB)
        assert without - cache_bytes(many) == pytest.approx(24 * MIB - FEATURES, rel=0.05)


def test_the_measurement_leaves_nothing_behind(
    built: Callable[..., Any], load: Callable[..., Any]
) -> None:
    expected = logits_of(load("llama")[0])
    with pretended_cuda(gib=SIZE) as device:
        engine, _ = built("llama", cuda_graphs=True)
        pools = engine._context.cache._pools.values()
        assert not any(pool.any() for each in pools for pool in each)
        assert engine.num_free_tokens == engine.limits.capacity_tokens
        assert engine.counters()[NUM_REPLAYED] == 0
        assert not engine._runner.states
        assert not engine._runner.graphs.steps._steps
        weights = sum(p.nbytes for p in engine._views.model.state_dict().values())
        assert device.memory.num_bytes < weights + cache_bytes(engine) + MIB
        found = logits_of(engine)
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=1e-4, rtol=0)


def test_a_step_without_room_leaves_the_planned_cache(
    built: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with pretended_cuda(gib=SIZE) as device:
        engine, _ = built("llama", 4095, max_chunk_tokens=4095, max_sequence_tokens=8192)
        weights = device.memory.num_bytes - cache_bytes(engine)
        planned = 0.8 * (device.memory.total_bytes - weights)
        assert cache_bytes(engine) == pytest.approx(planned, rel=0.1)
        assert "the largest step is not measured: " in caplog.text
        assert logits_of(engine, TEXTS), "it serves"


def test_too_little_memory_is_refused_with_the_figures(built: Callable[..., Any]) -> None:
    with pretended_cuda(gib=SIZE), pytest.raises(ConfigError) as error:
        built("llama", memory_fraction=0.1)
    assert "too little memory is left for a cache" in str(error.value)
    assert LOGGED in str(error.value)
    assert "engine.memory_fraction = 0.1 leaves 0.0 MiB" in str(error.value)
    assert "scheduler.max_step_tokens" in str(error.value.hint)


@pytest.mark.parametrize("stated", [{"cache_tokens": 800}, {"cache_gib": 0.01}])
def test_a_stated_cache_is_not_measured(
    built: Callable[..., Any], caplog: pytest.LogCaptureFixture, stated: dict[str, Any]
) -> None:
    caplog.set_level(logging.INFO)
    with pretended_cuda(gib=SIZE):
        engine, _ = built("llama", **stated)
        if "cache_tokens" in stated:
            assert engine.limits.capacity_tokens == 800
        else:
            assert cache_bytes(engine) == pytest.approx(0.01 * 2**30, rel=0.05)
    assert LOGGED not in caplog.text


def test_a_cpu_measures_nothing(
    built: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    built("llama", device="cpu")
    assert LOGGED not in caplog.text


def test_log_and_doctor_state_figures_and_that_no_gpu_verified_them(
    built: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pretended_cuda(gib=SIZE):
        _, context = built("llama", cuda_graphs=True)
        examined = _examine_engine(context)
    (line,) = [each for each in caplog.messages if LOGGED in each]
    assert "MiB of 'cuda:0' are free beside the weights" in line
    assert "CUDA graphs" in line
    assert "`python benchmarks/gpu_day.py`" in line
    assert "what the largest step leaves of 90% of the free memory, measured at load" in examined
    assert "measured memory on CUDA devices were not verified" in examined
    stated = BuildContext("", context.files, EngineSettings(device="cuda", cache_gib=1), {})
    with pretended_cuda():
        assert "measured at load" not in _examine_engine(stated)


@pytest.mark.parametrize("name", ["minicpmv4_6", "mllama"])
def test_recurrent_models_and_cross_attention_are_measured(
    name: str, built: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pretended_cuda(gib=SIZE):
        engine, _ = built(name)
        assert engine.num_free_tokens == engine.limits.capacity_tokens
    (line,) = [each for each in caplog.messages if LOGGED in each]
    assert ("recurrent states" in line) is (name == "minicpmv4_6")
    assert "the largest image batch" in line
