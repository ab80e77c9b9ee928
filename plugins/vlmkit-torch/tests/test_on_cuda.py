"""The engine on a simulated CUDA device, see ``tests/pretend``: sampling, and a lost device.

``test_host_reads`` counts reads by the host; ``test_cuda_parity`` compares answers with the CPU.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pretend.steps import begin, for_sampler
from pretend.torch_cuda import CUDA, OnCuda, pretended_cuda
from vlmkit.errors import EngineError
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.engine_loop.step_executor import Outcome, StepExecutor
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.types.sampling import SamplingParams
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch.plugin import _examine_engine
from vlmkit_torch.settings import EngineSettings

pytestmark = pytest.mark.torch

Load = Callable[..., Any]


def test_tokens_are_sampled_on_the_device_of_the_logits(load: Load) -> None:
    params = [
        SamplingParams(),
        SamplingParams(temperature=1.0, top_p=0.9, top_k=20, logprobs=True, top_logprobs=3),
        SamplingParams(temperature=1.0, frequency_penalty=0.5, repetition_penalty=1.1),
    ]

    def sampled(device: str) -> list[Any]:
        engine, _ = load("llama", device=device)
        host = EngineHost(engine)
        sequences, _ = begin(host)
        for sequence, own in zip(sequences, params, strict=True):
            for_sampler(sequence, own)
        items = [host.next_item(sequence, 30) for sequence in sequences]
        outcomes: Any = StepExecutor(engine, ArraySampler()).compute(items)
        return [outcome.samples[0] for outcome in outcomes]

    expected = sampled("cpu")
    with pretended_cuda():
        found = sampled("cuda")
    assert [sample.token_id for sample in found] == [sample.token_id for sample in expected]
    assert len(found[1].top) == 3


def test_a_lost_device_ends_the_engine(load: Load) -> None:
    with pretended_cuda() as device:
        engine, _ = load("llama", device="cuda")
        host = EngineHost(engine)
        sequences, _ = begin(host)
        executor = StepExecutor(engine, ArraySampler())
        items = [host.next_item(for_sampler(sequence), 30) for sequence in sequences]
        assert all(isinstance(result, Outcome) for result in executor.compute(items))
        device.is_broken = True
        items = [host.next_item(sequence, 31) for sequence in sequences]

        with pytest.raises(EngineError, match="the engine can compute nothing any more") as caught:
            executor.compute(items)
    assert str(caught.value.__cause__) == ("device 'cuda:0' failed and computes nothing any more")


def test_the_simulated_device_enforces_the_rules_of_a_device() -> None:
    with pretended_cuda() as device:
        row = torch.arange(4.0).to(CUDA)
        assert isinstance(row * 2, OnCuda)
        assert (row.device, (row + 1).sum().item()) == (CUDA, 10.0)
        assert (device.num_copies, device.num_reads) == (1, 1)
        with pytest.raises(RuntimeError, match="at least two devices"):
            row + torch.ones(4)
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor"):
            row.numpy()
        assert row[torch.tensor([1, 3])].cpu().tolist() == [1.0, 3.0]


def test_the_doctor_names_the_command_that_verifies_a_cuda_device(
    saved: Callable[[str], Path],
) -> None:
    def examined(device: str) -> str:
        settings = EngineSettings(device=device)
        context = BuildContext("", Checkpoint("llama", saved("llama")), settings, {})
        return _examine_engine(context)

    with pretended_cuda():
        assert "python benchmarks/gpu_day.py" in examined("cuda")
    assert "gpu_day" not in examined("cpu")
