"""A step runs without a host read, so the host prepares the next one while the device computes.

Two methods show this: a simulated CUDA device, which counts reads and copies, and the fake tensors
of torch, for which a read is an error because they hold no values.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch._subclasses.fake_tensor import DataDependentOutputException

import zoo
from parity import hybrid, runner
from pretend.fake_cuda import fake_cuda, move
from pretend.steps import TEXTS, begin
from pretend.torch_cuda import CUDA, Device, pretended_cuda
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch.engine.torch_engine import TorchEngine, build
from vlmkit_torch.loading.weights import shared_model
from vlmkit_torch.model.views import Views
from vlmkit_torch.settings import EngineSettings

pytestmark = pytest.mark.torch

Load = Callable[..., Any]
Saved = Callable[[str], Path]


def slow(name: str) -> Any:
    """Return a family whose test is slow."""
    return pytest.param(name, marks=pytest.mark.slow)


def some(*names: str) -> list[Any]:
    """Return all families of text; those that are not named are slow."""
    return [n if n in names else slow(n) for n in zoo.NAMES_TEXT]


def decoded(host: EngineHost, device: Device) -> list[tuple[int, int]]:
    """Return the host reads and the copies to the device of decode steps, after two of a shape."""
    sequences, _ = begin(host)
    for batch in (sequences[:1], sequences) * 2:  # the second is captured, and compared
        host.step([host.next_item(sequence, 30) for sequence in batch])
    seen = []
    for batch in (sequences[:1], sequences, sequences):
        items = [host.next_item(sequence, 30) for sequence in batch]
        device.reset()
        host.engine.forward(items)
        seen.append((device.num_reads, device.num_copies))
    return seen


@pytest.mark.parametrize("name", some("llama", "gpt_oss", "gemma2"))
def test_a_step_has_no_host_read_and_one_transfer(name: str, load: Load) -> None:
    with pretended_cuda() as device:
        engine, _ = load(name, device="cuda", cuda_graphs=False)

        assert decoded(EngineHost(engine), device) == [(0, 1)] * 3


@pytest.mark.parametrize("name", some("llama"))
def test_a_replayed_step_has_no_host_read_and_one_transfer(name: str, load: Load) -> None:
    with pretended_cuda() as device:
        engine, _ = load(name, device="cuda")

        assert decoded(EngineHost(engine), device) == [(0, 1)] * 3
        assert engine._runner.graphs.num_replays >= 3


@pytest.mark.parametrize("name", ["llama", slow("gpt_oss"), slow("gemma2")])
def test_a_step_over_a_cache_of_8_bits_has_no_host_read_and_one_transfer(
    name: str, load: Load
) -> None:
    with pretended_cuda() as device:
        engine, _ = load(name, device="cuda", cache_dtype="int8", cuda_graphs=False)

        assert decoded(EngineHost(engine), device) == [(0, 1)] * 3


@pytest.mark.parametrize("name", ["lfm2", slow("qwen3_next")])
def test_a_step_of_recurrent_layers_has_no_host_read_and_one_transfer(
    name: str, tmp_path: Path
) -> None:
    files = Checkpoint(name, hybrid.save(name, tmp_path))
    few = EngineSettings(cache_tokens=640, block_tokens=4, max_sequences=12, device="cuda")
    with pretended_cuda() as device:
        engine = build(BuildContext("", files, few, {}))

        assert decoded(EngineHost(engine), device) == [(0, 1)] * 3


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "gemma3", "mllama"])
def test_text_chunks_and_answers_after_images_have_no_host_read(
    name: str, load: Load, saved: Saved
) -> None:
    seeing = runner.prompts(name, runner.config_of(saved(name)))[0]
    with pretended_cuda() as device:
        engine, encoder = load(name, device="cuda")

        def features(prompt: Any) -> dict[int, Any]:
            return dict(enumerate(encoder.encode(prompt.media))) if prompt.media else {}

        host = EngineHost(engine, features)
        answering, text = host.sequence(seeing), host.sequence(TEXTS[0])
        for sequence in (answering, text):
            assert host.admit(sequence) == 0
        host.prefill(answering)
        host.step([host.chunk(text, 9)])
        items = [host.next_item(answering, 30), host.chunk(text, 9)]
        device.reset()
        engine.forward(items)

    assert (device.num_reads, device.num_copies) == (0, 1)


def test_draft_tokens_are_checked_without_a_host_read(load: Load) -> None:
    with pretended_cuda() as device:
        engine, _ = load("llama", device="cuda")
        host = EngineHost(engine)
        sequences, _ = begin(host)
        drafts = ((31, 32), (), (33,))
        items = [host.next_item(s, 30, own) for s, own in zip(sequences, drafts, strict=True)]
        device.reset()
        engine.forward(items)

    assert (device.num_reads, device.num_copies) == (0, 1)


def test_a_single_sequence_is_read_in_place_and_a_batch_is_gathered_once(load: Load) -> None:
    with pretended_cuda() as device:
        engine, _ = load(
            "llama", device="cuda", cuda_graphs=False, self_check=False
        )  # an unused cache
        host, num_layers = EngineHost(engine), len(engine._context.cache.shapes)
        sequences, _ = begin(host)
        seen = []
        for batch in (sequences[:1], sequences):
            device.reset()
            engine.forward([host.next_item(sequence, 30) for sequence in batch])
            names = ("index_select", "_scaled_dot_product_flash_attention_for_cpu")
            seen.append([device.kernels[name] / num_layers for name in names])

    assert seen == [[0, 1], [2, 1]], "keys, values and attention of each layer"


def test_the_counter_detects_a_read(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_cuda() as device:
        engine, _ = load("llama", device="cuda", cuda_graphs=False)
        reading_once(engine, monkeypatch)

        assert decoded(EngineHost(engine), device) == [(1, 1)] * 3


# With fake tensors.


@contextmanager
def fake_engine(name: str, saved: Saved) -> Iterator[TorchEngine]:
    """Return an engine on a CUDA device whose tensors hold no values."""
    settings = EngineSettings(cache_tokens=800, block_tokens=4, cuda_graphs=False)
    loaded = shared_model(
        BuildContext("", Checkpoint(name, saved(name)), settings), for_engine=True
    )
    with fake_cuda() as mode:
        move(loaded.model, mode)
        yield TorchEngine(loaded, Views(loaded.model), settings)


def two_steps(engine: TorchEngine) -> list[Any]:
    """Prefill prompts of different lengths and decode one token; return the logits."""
    host = EngineHost(engine)
    sequences = [host.sequence(prompt) for prompt in TEXTS]
    for sequence in sequences:
        assert host.admit(sequence) == 0
    first = engine.forward([host.chunk(sequence) for sequence in sequences])
    second = engine.forward([host.next_item(sequence, 30) for sequence in sequences])
    return [first.logits, second.logits]


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3_text", "qwen2_vl"])
def test_steps_run_on_tensors_without_values(name: str, saved: Saved) -> None:
    with fake_engine(name, saved) as engine:
        steps = two_steps(engine)

    for logits in steps:
        assert (logits.device, logits.shape) == (CUDA, (len(TEXTS), engine.limits.vocab_size))


def test_a_read_of_a_tensor_without_values_is_an_error(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_engine("llama", saved) as engine:
        reading_once(engine, monkeypatch)
        with pytest.raises(DataDependentOutputException):
            two_steps(engine)


def reading_once(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an engine read its states once in each step."""
    head = engine._views.head
    monkeypatch.setattr(
        engine._views, "head", lambda rows: head(rows * rows.isfinite().all().item())
    )
