"""Decode steps of compiled code: compiled once, compared, and left where the compiler fails.

The compiler is torch's own ``eager`` here, which runs what was traced: it needs no C++ compiler,
and shows whether steps are traced again. One slow test has the real one.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from parity import runner
from pretend.steps import begin, logits_about_images, logits_of
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch.engine import compiled_steps

pytestmark = pytest.mark.torch

Load = Callable[..., Any]
NUM_STEPS = 100
ALWAYS = ("llama",)  # the other families are slow tests


@pytest.fixture(autouse=True)
def _traced_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)  # pytest keeps it all
    monkeypatch.setattr(compiled_steps, "BACKEND", "eager")


def compiled_of(engine: Any) -> Any:
    return engine._runner._compiled


def families(*names: str) -> Any:
    """Return a mark that runs a test for families; most of them are slow."""
    slow = pytest.mark.slow
    return pytest.mark.parametrize(
        "name", [n if n in ALWAYS else pytest.param(n, marks=slow) for n in names]
    )


@families(*zoo.NAMES_TEXT)
def test_a_hundred_steps_are_compiled_once(name: str, load: Load) -> None:
    def answered(**settings: Any) -> tuple[list[np.ndarray], Any, list[int]]:
        engine, _ = load(name, cache_tokens=2000, **settings)
        host = EngineHost(engine)
        sequences, rows = begin(host)
        counts = []
        for step in range(NUM_STEPS):
            rows.append(host.step([host.next_item(each, 30 + step % 5) for each in sequences]))
            counts.append(compiled_of(engine).num_graphs if settings else 0)
        return rows, engine, counts

    expected, _, _ = answered()
    found, engine, counts = answered(compile=True)
    assert compiled_of(engine).is_used
    assert counts[0] > 0
    assert set(counts) == {counts[0]}, "a later step was compiled"
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_batches_of_other_sizes_are_compiled_once_for_one_row_and_once_for_several(
    load: Load,
) -> None:
    engine, _ = load("llama", compile=True)
    host = EngineHost(engine)
    sequences, _ = begin(host)
    counts = []
    for step in range(24):
        batch = sequences[: 1 + step % 3]
        host.step([host.next_item(sequence, 30) for sequence in batch])
        counts.append(compiled_of(engine).num_graphs)
    assert len(set(counts)) <= 2
    assert len(set(counts[3:])) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_vl", "llava", "gemma3"])
def test_answers_about_images_are_those_of_the_plain_model(
    name: str, load: Load, saved: Callable[[str], Path]
) -> None:
    prompt = runner.prompts(name, runner.config_of(saved(name)))[0]

    expected = logits_about_images(*load(name), prompt)
    engine, encoder = load(name, compile=True)
    found = logits_about_images(engine, encoder, prompt)
    assert compiled_of(engine).is_used
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=1e-4, rtol=0)


def halved(graph: Any, _: Any) -> Any:
    def run(*arguments: Any) -> Any:
        return tuple(
            each * 0.5 if isinstance(each, torch.Tensor) and each.is_floating_point() else each
            for each in graph.forward(*arguments)
        )

    return run


def failing(*_: Any) -> Any:
    raise RuntimeError("there is no compiler")


@pytest.mark.parametrize(
    ("backend", "reason"), [(halved, "values differ by"), (failing, "there is no compiler")]
)
def test_a_compiler_that_fails_or_computes_something_else_is_not_used(
    load: Load, caplog: pytest.LogCaptureFixture, backend: Callable[..., Any], reason: str
) -> None:
    expected = logits_of(load("llama")[0])
    engine, _ = load("llama", compile=True, self_check=False)
    compiled_of(engine)._backend = backend
    found = logits_of(engine)
    assert not compiled_of(engine).is_used
    (warning,) = [each for each in caplog.messages if "decode steps are not compiled" in each]
    assert reason in warning
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(row, wanted)


@pytest.mark.slow
def test_a_model_that_is_compiled_again_and_again_is_not(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiled_steps, "MAX_COMPILING_STEPS", 1)
    engine, _ = load("llama", compile=True, self_check=False)
    host = EngineHost(engine)
    sequences, _ = begin(host)
    for batch in (sequences, sequences[:1]):
        host.step([host.next_item(sequence, 30) for sequence in batch])
    assert not compiled_of(engine).is_used
    assert "after 1 steps that were compiled, another one was" in caplog.text


@pytest.mark.parametrize("name", ["mllama", pytest.param("qwen2_vl", marks=pytest.mark.slow)])
def test_only_models_that_can_be_are_compiled(name: str, load: Load) -> None:
    assert compiled_of(load(name)[0]) is None
    assert (compiled_of(load(name, compile=True)[0]) is None) is (name == "mllama")


@pytest.mark.slow
def test_the_log_states_what_was_compiled(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logits_of(load("llama", compile=True)[0])
    assert "compiled decode steps: " in caplog.text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own imports
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_real_compiler_answers_as_the_plain_model(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_steps, "BACKEND", "inductor")
    expected = logits_of(load("llama")[0])
    engine, _ = load("llama", compile=True)
    found = logits_of(engine)
    assert compiled_of(engine).is_used
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=1e-4, rtol=0)
