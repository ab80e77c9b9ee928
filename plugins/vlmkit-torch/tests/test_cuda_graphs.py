"""Decode steps that are repeated as CUDA graphs, on a simulated device (``tests/pretend``).

A simulated replay runs the operators of the capture on the memory of the capture. So an answer is
wrong if a step depends on a number or an address that the host chooses anew.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from parity import runner
from pretend.cuda_graphs import Graph
from pretend.steps import TEXTS, begin, logits_about_images
from pretend.torch_cuda import CUDA, pretended_cuda
from vlmkit.errors import EngineError
from vlmkit.interfaces.engine import NUM_RECOMPUTED, NUM_REPLAYED
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.step import WorkItem
from vlmkit.running.engine_loop.step_executor import StepExecutor
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit_testing import new_sequence
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch.engine import cuda_graphs, static_steps

pytestmark = pytest.mark.torch

Load = Callable[..., Any]
NUM_STEPS = 12
ALWAYS = ("llama",)  # the other families are slow tests


def answered(host: EngineHost, num_steps: int = NUM_STEPS) -> list[np.ndarray]:
    """Return the logits of decodes: of one sequence, of all of them, and of some of them."""
    sequences, found = begin(host)
    for step in range(num_steps):
        batch = (sequences[:1], sequences, sequences[1:])[step // 2 % 3]
        found.append(host.step([host.next_item(sequence, 30 + step) for sequence in batch]).copy())
    for sequence in sequences:
        host.engine.release(sequence)
    return found


def graphs_of(engine: Any) -> Any:
    return engine._runner.graphs


def slow(name: str) -> Any:
    """Return a family whose test is slow."""
    return pytest.param(name, marks=pytest.mark.slow)


def families(*names: str) -> Any:
    """Return a mark that runs a test for families; most of them are slow."""
    return pytest.mark.parametrize("name", [n if n in ALWAYS else slow(n) for n in names])


@families(*zoo.NAMES_TEXT)
def test_answers_of_graphs_are_those_of_the_cpu(name: str, load: Load) -> None:
    expected = answered(EngineHost(load(name)[0]))
    with pretended_cuda():
        engine, _ = load(name, device="cuda")
        found = answered(EngineHost(engine))
        assert graphs_of(engine).num_replays > 0

    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=1e-4, rtol=0)


@families("gpt_oss", "llama")
def test_a_cache_of_8_bits_is_read_by_graphs(name: str, load: Load) -> None:
    expected = answered(EngineHost(load(name, cache_dtype="int8")[0]))
    with pretended_cuda():
        engine, _ = load(name, device="cuda", cache_dtype="int8")
        found = answered(EngineHost(engine))
        assert graphs_of(engine).num_replays > 0

    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["qwen3_vl", *map(slow, ("llava", "gemma3"))])
def test_answers_about_images_are_those_of_the_cpu(
    name: str, load: Load, saved: Callable[[str], Path]
) -> None:
    prompt = runner.prompts(name, runner.config_of(saved(name)))[0]

    expected = logits_about_images(*load(name), prompt)
    with pretended_cuda():
        engine, encoder = load(name, device="cuda")
        found = logits_about_images(engine, encoder, prompt)
        assert graphs_of(engine).num_replays > 0

    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=1e-4, rtol=0)


@families(*zoo.NAMES_TEXT)
def test_a_hundred_steps_of_a_shape_have_one_capture_and_one_transfer_each(
    name: str, load: Load
) -> None:
    with pretended_cuda() as device:
        engine, _ = load(name, device="cuda", cache_tokens=2000)
        host = EngineHost(engine)
        sequences, _ = begin(host)
        addresses = set()
        before = graphs_of(engine).num_replays
        for step in range(100):
            items = [host.next_item(sequence, 30) for sequence in sequences]
            device.reset()
            host.step(items)
            *_, static = graphs_of(engine).steps._steps.values()
            addresses.add(tuple(buffer._target.data_ptr() for buffer in static.uploads._buffers))
            if step > 2:
                assert (device.num_copies, device.num_reads) == (1, 1), "the logits are read"

        assert len(addresses) == 1
        assert graphs_of(engine).num_replays - before == 98


def test_rows_of_padding_are_no_sequences(load: Load) -> None:
    """They are written where no sequence reads, and are marked as nobody's."""
    with pretended_cuda():
        engine, _ = load("llama", device="cuda")
        host = EngineHost(engine)
        cache = engine._context.cache
        sequences, _ = begin(host)
        for _ in range(4):
            host.step([host.next_item(sequence, 30) for sequence in sequences])
        for pools in cache._pools.values():
            assert not pools.keys[cache.zero_slot].any()
            assert pools.keys[cache.padding_slot].any()
        assert not engine._cache.non_finite.sequences()


def test_shapes_are_few_and_cover_every_step() -> None:
    rows = [static_steps._rounded_rows(number) for number in range(1, 65)]
    assert all(rounded >= number for number, rounded in enumerate(rows, 1))
    assert len(set(rows)) == 11
    tokens = [static_steps._rounded_tokens(number, 5000) for number in range(1, 5001)]
    assert all(rounded >= number for number, rounded in enumerate(tokens, 1))
    assert set(tokens) == {256, 512, 1024, 2048, 4096, 5000}


def test_shapes_that_were_not_used_for_long_are_dropped_with_their_graphs(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_steps, "MAX_SHAPES", 1)
    with pretended_cuda():
        engine, _ = load("llama", device="cuda")
        answered(EngineHost(engine))

        assert len(graphs_of(engine).steps._steps) == 1
        assert len(graphs_of(engine)._captured) <= 1


def test_long_tables_of_short_sequences_are_not_gathered(load: Load) -> None:
    """The backend reads padding, too."""
    with pretended_cuda():
        engine, _ = load("llama", device="cuda", cache_tokens=4000, max_sequences=12)
        host = EngineHost(engine)
        long = host.sequence(Prompt(tuple(np.arange(1500) % 90)))
        short = [host.sequence(text) for text in TEXTS * 3]
        for sequence in (*short, long):
            assert host.admit(sequence) is not None
            host.prefill(sequence)
        shapes = set(graphs_of(engine).steps._steps)
        host.step([host.next_item(sequence, 30) for sequence in (*short, long)])

        assert set(graphs_of(engine).steps._steps) == shapes


# What must not be repeated.


def reads(rows: torch.Tensor) -> torch.Tensor:
    """Wait for the device."""
    return rows * float(rows.isfinite().all().item())


def copies(rows: torch.Tensor) -> torch.Tensor:
    """Copy a number from the host."""
    return rows * torch.tensor([1.0], device=CUDA)


def changes_shape(rows: torch.Tensor) -> torch.Tensor:
    """Give a result whose size depends on values."""
    return rows + rows.nonzero().shape[0] * 0


class CountsItsCalls:
    """Uses a number of the host that is another one in each step."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return rows + self.calls


def decoded_with(
    change: Callable[[torch.Tensor], torch.Tensor], load: Load, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Decode with a decoder whose result is changed; return the engine."""
    with pretended_cuda():
        engine, _ = load("llama", device="cuda", self_check=False)
        graphs = graphs_of(engine)
        own = graphs._compute
        monkeypatch.setattr(graphs, "_compute", lambda batch: change(own(batch)))
        answered(EngineHost(engine))
        return engine


@pytest.mark.parametrize("change", [reads, copies, changes_shape, CountsItsCalls()])
def test_a_step_that_breaks_a_rule_is_computed_without_a_graph(
    change: Any, load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = decoded_with(change, load, monkeypatch)

    assert graphs_of(engine).num_replays == 0
    assert "run without a CUDA graph" in caplog.text


def test_memory_that_was_freed_ends_a_replay(load: Load) -> None:
    """Nothing that a graph reads may belong to the plan of one step."""
    with pretended_cuda():
        graph = torch.cuda.CUDAGraph()
        rows = torch.ones(3, device=CUDA)
        with torch.cuda.graph(graph, pool=(0, 1), capture_error_mode="thread_local"):
            rows * 2
        graph.replay()
        del rows
        with pytest.raises(RuntimeError, match="memory that was freed"):
            graph.replay()


def test_a_device_error_in_a_graph_ends_the_request_with_the_devices_error(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    with pretended_cuda():
        engine, _ = load("llama", device="cuda", self_check=False)
        host = EngineHost(engine)
        sequences, _ = begin(host)
        for _ in range(3):
            host.step([host.next_item(sequence, 30) for sequence in sequences])
        monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", fail)
        items = [host.next_item(sequence, 30) for sequence in sequences]
        with pytest.raises(EngineError, match="device 'cuda:0' failed at this request"):
            host.step(items)


def test_a_result_that_cannot_be_used_is_computed_without_the_graph(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a graph that gives what is no number, the requests get the values of the plain step."""

    def decoded(engine: Any) -> list[Any]:
        executor, sequences = StepExecutor(engine, ArraySampler()), []
        for prompt in TEXTS:
            sequence = new_sequence(prompt, plan=engine.read(prompt), max_tokens=20)
            assert engine.admit(sequence) is not None
            sequences.append(sequence)
        items = [WorkItem(sequence, 0, len(sequence), 1) for sequence in sequences]
        for _ in range(12):
            for sequence, outcome in zip(sequences, executor.compute(items), strict=True):
                sequence.output_ids.append(outcome.samples[0].token_id)
                assert engine.reserve(sequence, len(sequence))
            items = [WorkItem(sequence, len(sequence) - 1, 1, 1) for sequence in sequences]
        return [sequence.output_ids for sequence in sequences]

    def spoil(graph: Any) -> None:
        replay(graph)
        if engine.counters()[NUM_REPLAYED] in {3, 7}:
            graph.operations[-1].results[0].fill_(torch.nan)

    replay = Graph.replay
    expected = decoded(load("llama")[0])
    with pretended_cuda():
        engine, _ = load("llama", device="cuda", self_check=False)
        monkeypatch.setattr(Graph, "replay", spoil)
        assert decoded(engine) == expected
        assert engine.counters() == {NUM_REPLAYED: 9, NUM_RECOMPUTED: 2 * len(TEXTS)}

    assert caplog.text.count("could not be used, and is computed without it") == 1


def test_a_shape_whose_arrays_change_loses_its_graph(load: Load) -> None:
    """A replay would read the arrays of the capture."""
    with pretended_cuda():
        engine, _ = load("llama", device="cuda", self_check=False)
        host, graphs = EngineHost(engine), graphs_of(engine)
        sequences, _ = begin(host)
        for _ in range(3):
            host.step([host.next_item(sequence, 30) for sequence in sequences])
        [static] = graphs.steps._steps.values()
        assert graphs._captured[static] is not None
        static._shapes = []
        before = graphs.num_replays
        host.step([host.next_item(sequence, 30) for sequence in sequences])

        assert static not in graphs._captured
        assert graphs.num_replays == before


def test_graphs_can_be_switched_off(load: Load) -> None:
    with pretended_cuda():
        engine, _ = load("llama", device="cuda", cuda_graphs=False)
        assert graphs_of(engine) is None


def test_values_that_are_not_finite_do_not_exclude_a_graph() -> None:
    rows = torch.tensor([[1.0, torch.nan], [2.0, 3.0]])
    assert cuda_graphs.excess_error(rows, rows) is None
    assert cuda_graphs.excess_error(rows.nan_to_num(0), rows) == float("inf")
