"""Steps that start before the last one is read, on a simulated device (``tests/pretend``).

Numbers that the host reads too early are wrong there, and the device counts what the host waits
for.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zoo
from parity import hybrid
from pretend.steps import TEXTS
from pretend.torch_cuda import Device, pretended_cuda
from vlmkit.interfaces.engine import NUM_REPLAYED, Engine
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import Step
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit.running.engine_loop.step_executor import Outcome, StepExecutor
from vlmkit.running.engine_loop.step_overlap import StepOverlap
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.types.sampling import SamplingParams
from vlmkit_testing import new_sequence
from vlmkit_testing.contracts.engine_overlap_contract import EngineOverlapContract
from vlmkit_torch.engine.torch_engine import build
from vlmkit_torch.settings import EngineSettings

pytestmark = pytest.mark.torch

Load = Callable[..., Any]
ALWAYS = ("llama", "qwen2_vl")  # the other families are slow tests
FAMILIES = [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.slow) for n in zoo.NAMES_TEXT]


class Host:
    """Answers prompts as the engine loop does, in the thread of the simulated device.

    Attributes:
        num_overlapped: steps that were started before the last one was read.
        seen: of each of them, the host's reads, copies to the device, and waits with and without
            work for the device.
    """

    def __init__(self, engine: Engine, device: Device | None = None) -> None:
        self._engine, self._device = engine, device
        self._scheduler = ContinuousScheduler()
        executor = StepExecutor(engine, ArraySampler())
        self._overlap = StepOverlap(engine, self._scheduler, executor, lambda: 0)
        self._running: set[Sequence] = set()
        self.num_overlapped = 0
        self.seen: list[tuple[int, ...]] = []

    def answers(self, params: SamplingParams, lengths: tuple[int, ...] = (12, 5, 9)) -> list[Any]:
        """Return the samples of each prompt's answer, of several lengths."""
        found: dict[Sequence, list[Any]] = {}
        for seed, (prompt, max_tokens) in enumerate(zip(TEXTS, lengths, strict=True)):
            plan = self._engine.read(prompt)
            sequence = new_sequence(
                prompt, params=params, plan=plan, max_tokens=max_tokens, seed=seed
            )
            self._scheduler.add(sequence)
            found[sequence] = []
        self._running = set(found)
        while self._running:
            self._step(found)
        return list(found.values())

    def _step(self, found: dict[Sequence, list[Any]]) -> None:
        items = self._overlap.started_items(self._running)
        is_overlapped = bool(items)
        self.num_overlapped += is_overlapped
        items = items or self._scheduler.plan(self._engine).items
        if self._device is not None:
            self._device.reset()
        outcomes = self._overlap.compute(items)
        if self._device is not None and is_overlapped:
            device = self._device
            self.seen.append(
                (device.num_reads, device.num_copies, device.num_waits, device.num_idle_waits)
            )
        self._scheduler.commit(Step((), items), 0.01)
        for item, outcome in zip(items, outcomes, strict=True):
            assert isinstance(outcome, Outcome), outcome
            sequence = item.sequence
            found[sequence] += outcome.samples
            sequence.output_ids += [sample.token_id for sample in outcome.samples]
            if len(sequence.output_ids) == sequence.max_tokens:
                self._running.discard(sequence)
                self._scheduler.remove(sequence, self._engine)


def agree(found: list[Any], expected: list[Any]) -> None:
    for answer, wanted in zip(found, expected, strict=True):
        assert [each.token_id for each in answer] == [each.token_id for each in wanted]
        logprobs = ([each.logprob for each in samples] for samples in (answer, wanted))
        np.testing.assert_allclose(*logprobs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("has_graphs", [True, False])
def test_overlapped_answers_are_those_of_the_cpu(name: str, has_graphs: bool, load: Load) -> None:
    params = SamplingParams(temperature=0.7, logprobs=True, frequency_penalty=0.5)
    plain = Host(load(name)[0])
    expected = plain.answers(params)
    assert not plain.num_overlapped
    with pretended_cuda():
        engine, _ = load(name, device="cuda", cuda_graphs=has_graphs)
        host = Host(engine)
        found = host.answers(params)
        assert host.num_overlapped == 11, "every step but the one of all prompts"
        assert bool(engine.counters()[NUM_REPLAYED]) == has_graphs

    agree(found, expected)


def test_the_host_waits_for_one_copy_while_the_device_computes(load: Load) -> None:
    with pretended_cuda() as device:
        engine, _ = load("llama", device="cuda")
        host = Host(engine, device)
        host.answers(SamplingParams(), (30, 30, 30))

    *steady, last = host.seen
    assert len(steady) == 28
    # After the capture of a graph, the engine and the sampler each send their arrays at once.
    assert steady[3:] == [(0, 2, 1, 0)] * len(steady[3:])
    assert last == (0, 1, 1, 1), "no step follows the last one"


def test_overlapped_steps_can_be_switched_off(load: Load) -> None:
    with pretended_cuda():
        engine, _ = load("llama", device="cuda", overlap_steps=False)
        assert not engine.limits.overlaps_steps
        host = Host(engine)
        host.answers(SamplingParams())
        assert not host.num_overlapped


def test_recurrent_models_do_not_overlap_steps(tmp_path: Path) -> None:
    """Their states cannot be taken back."""
    files = Checkpoint("lfm2", hybrid.save("lfm2", tmp_path))
    settings = EngineSettings(cache_tokens=640, block_tokens=4, device="cuda")
    with pretended_cuda():
        engine = build(BuildContext("", files, settings, {}))
        assert not engine.limits.overlaps_steps


class TestEngineOnSimulatedDevice(EngineOverlapContract):
    """The contract of overlapped steps alone, since only a device claims it."""

    @pytest.fixture(autouse=True)
    def on_device(self, load: Load) -> Iterator[None]:
        with pretended_cuda():
            self.load = load
            yield

    def make(self) -> Engine:
        engine: Engine = self.load("llama", device="cuda")[0]
        return engine

    def prompts(self) -> list[Prompt]:
        return [*TEXTS, Prompt((*TEXTS[0].token_ids, *TEXTS[1].token_ids))]

    def answer_ids(self) -> list[int]:
        return [7, 11, 13, 17, 19]
