"""A device that runs out of memory or fails: affected requests, new limits and messages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parity import hybrid
from pretend.steps import TEXTS, begin, for_sampler
from vlmkit.errors import EngineError, OutOfMemory
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.engine_loop.step_executor import Outcome, StepExecutor
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch.attention import sdpa
from vlmkit_torch.devices import hardware
from vlmkit_torch.engine.torch_engine import build
from vlmkit_torch.self_checks import text_check
from vlmkit_torch.settings import EngineSettings

pytestmark = pytest.mark.torch

Load = Callable[..., Any]
OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
ASSERTION = "CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA` to enable"
ASSERTIONS = [RuntimeError(ASSERTION)]
if hasattr(torch, "AcceleratorError"):  # since torch 2.8
    ASSERTIONS.append(torch.AcceleratorError(ASSERTION))


class FailingDecoder:
    """A decoder that fails for forward passes of more than a number of tokens."""

    def __init__(self, engine: Any, error: Exception, max_tokens: int = 0) -> None:
        self.decoder, self.error, self.max_tokens = (
            engine._views.decoder,
            error,
            max_tokens,
        )
        self.num_failures = 0
        engine._views.decoder = self

    def __call__(self, *, position_ids: torch.Tensor, **arguments: Any) -> Any:
        if position_ids.numel() > self.max_tokens:
            self.num_failures += 1
            raise self.error
        return self.decoder(position_ids=position_ids, **arguments)


def test_a_step_that_runs_out_of_memory_is_halved_from_then_on(load: Load) -> None:
    engine, _ = load("llama")
    host = EngineHost(engine)
    sequences, _ = begin(host)
    expected = [host.last_logits(prompt, (30, 31, 32, 33)).argmax() for prompt in TEXTS]
    executor, short = StepExecutor(engine, ArraySampler()), FailingDecoder(engine, OUT_OF_MEMORY, 2)
    for token in range(30, 34):
        items = [host.next_item(for_sampler(sequence), token) for sequence in sequences]
        results = executor.compute(items)

        assert all(isinstance(result, Outcome) for result in results)
    assert [result.samples[0].token_id for result in results] == expected
    assert short.num_failures == 1, "three tokens are too many, and that is not tried again"


def test_an_item_that_does_not_fit_alone_fails_alone(load: Load, caplog: Any) -> None:
    engine, _ = load("llama")
    host = EngineHost(engine)
    sequences, _ = begin(host)
    late = host.sequence(Prompt(tuple(range(50, 70))))
    host.admit(late)
    executor, _ = StepExecutor(engine, ArraySampler()), FailingDecoder(engine, OUT_OF_MEMORY, 4)

    *others, failed = executor.compute(
        [*(host.next_item(for_sampler(s), 30) for s in sequences), host.chunk(for_sampler(late))]
    )
    assert all(isinstance(result, Outcome) for result in others)
    assert isinstance(failed, OutOfMemory), "a client may try again"
    assert str(failed) == "there is not enough memory for this request on 'cpu'"
    assert "lower engine.max_chunk_tokens" in caplog.text
    assert "Tried to allocate" in caplog.text
    assert failed.__cause__ is None, "who keeps the error keeps no memory of what was computed"
    assert failed.__context__ is None


def test_a_recurrent_family_is_halved_too(tmp_path: Any) -> None:
    files = Checkpoint("lfm2", hybrid.save("lfm2", tmp_path))
    few = EngineSettings(cache_tokens=640, block_tokens=4, max_sequences=12)
    engine = build(BuildContext("", files, few, {}))
    host = EngineHost(engine)
    sequences, _ = begin(host)
    expected = [host.last_logits(prompt, (30,)) for prompt in TEXTS]
    short = FailingDecoder(engine, OUT_OF_MEMORY, 2)
    rows = host.step([host.next_item(sequence, 30) for sequence in sequences])

    np.testing.assert_allclose(rows, expected, atol=1e-5)
    assert short.num_failures == 1


@pytest.mark.parametrize("error", ASSERTIONS)
def test_a_device_error_is_reported_as_a_device_error(
    error: Exception, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = load("llama")
    host = EngineHost(engine)
    sequences, _ = begin(host)
    FailingDecoder(engine, error)
    item = host.next_item(sequences[0], 30)

    with pytest.raises(EngineError, match=r"^device 'cpu' failed at this request"):
        engine.forward([item])
    monkeypatch.setattr("vlmkit_torch.devices.faults.is_alive", lambda _: False)
    with pytest.raises(EngineError, match=r"^device 'cpu' failed and computes nothing any more"):
        engine.forward([item])


def test_a_device_that_fails_at_load_is_not_an_unknown_family(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError(ASSERTION)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    monkeypatch.setattr(text_check, "reference", fail)
    with pytest.raises(EngineError, match=r"^device 'cpu' failed at this model"):
        load("llama")


def test_a_long_sequence_does_not_widen_the_batch_of_short_ones(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_batch, widths = sdpa._in_batch, []

    def noted(rows: torch.Tensor, batch: int) -> torch.Tensor:
        widths.append(len(rows))
        return in_batch(rows, batch)

    monkeypatch.setattr(hardware, "call_bytes", lambda _: 2**14)
    engine, _ = load("llama")
    prompts = [*TEXTS, Prompt(tuple(range(20, 320)))]
    host = EngineHost(engine)
    expected = [host.last_logits(prompt, (30,)) for prompt in prompts]
    sequences = [host.sequence(prompt) for prompt in reversed(prompts)]
    for sequence in sequences:
        host.admit(sequence)
        host.prefill(sequence)
    items = [host.next_item(sequence, 30) for sequence in sequences]
    monkeypatch.setattr(sdpa, "_in_batch", noted)

    np.testing.assert_allclose(host.step(items), expected[::-1], atol=1e-5)
    num_pools = 2 * len(engine._context.cache.shapes)
    assert sum(widths) == num_pools * (3 * 35 + 301), "the short ones as wide as the widest of them"
