"""Promises of the ONNX engine alone, and pipelines that mix stages of both libraries."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from parity import runner
from vlmkit.errors import OutOfMemory
from vlmkit.interfaces.prompt import Prompt
from vlmkit_onnx.sessions import products
from vlmkit_onnx.slots import device_memory
from vlmkit_onnx.slots.device_memory import DeviceMemory
from vlmkit_testing import EngineHost

pytestmark = pytest.mark.torch

Saved = Callable[..., Path]
Answered = Callable[[str], list[runner.Answer]]


@pytest.fixture(params=[products.SIGNED, products.UNSIGNED], ids=lambda form: form.name)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> products.Form:
    """Each way to multiply 8-bit numbers that is exact on this CPU; sessions take it."""
    taken: products.Form = request.param
    if not products.are_exact(taken):
        pytest.skip(f"this CPU saturates sums of {taken.name}")
    monkeypatch.setattr(products, "form", lambda: taken)
    return taken


def compare_batches(folder: Path) -> tuple[bool, bool, float]:
    """Answer prompts together and alone.

    Returns:
        Whether the engine promises equal bits, whether all are equal, and the largest difference
        of a logit.
    """
    engine, _, config = runner.load_onnx_engine("llama", folder)
    prompts = runner.prompts("llama", config)
    # Steps that hold a prompt whole: where it is cut, rounding may differ.
    together = runner.run(engine, None, prompts, step_tokens=64)
    differences = []
    for prompt, answer in zip(prompts, together, strict=True):
        fresh, _, _ = runner.load_onnx_engine("llama", folder)
        (alone,) = runner.run(fresh, None, [prompt], step_tokens=64)
        assert alone.token_ids == answer.token_ids
        differences.append((alone.logits - answer.logits).abs().max().item())
    return engine.limits.is_batch_invariant, not any(differences), max(differences)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("int8", marks=pytest.mark.slow)])
def test_other_rows_of_a_batch_change_no_bit(precision: str, exported: Saved) -> None:
    assert compare_batches(exported("llama", precision)) == (True, True, 0)


@pytest.mark.parametrize("precision", ["w8a8"])
def test_no_form_of_matrix_product_makes_a_row_depend_on_its_batch(
    precision: str, exported: Saved, form: products.Form
) -> None:
    assert compare_batches(exported("llama", precision)) == (True, True, 0)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int4"])
def test_differences_between_batch_sizes_on_a_cpu_are_only_rounding(
    precision: str, exported: Saved
) -> None:
    is_promised, is_equal, difference = compare_batches(exported("llama", precision))
    assert is_equal or not is_promised
    assert difference < 1e-5


def test_a_cache_held_by_the_device_changes_no_answer(
    exported: Saved, answered: Answered, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A device's memory by way of the CPU's: bound by address, nothing copied between slots.
    on_device = functools.partial(DeviceMemory, device=("cpu", 0))
    monkeypatch.setattr(device_memory, "HostMemory", on_device)
    engine, _, config = runner.load_onnx_engine("llama", exported("llama"), cache_tokens=2000)
    prompts = runner.prompts("llama", config)
    for _ in range(2):
        outcome = runner.compare(runner.run(engine, None, prompts), answered("llama"))
        assert outcome.is_parity, outcome


@pytest.mark.parametrize("name", ["llava", "qwen3_vl"])
def test_each_library_computes_with_the_image_features_of_the_other(
    name: str, saved: Saved, exported: Saved, answered: Answered
) -> None:
    prompts = runner.prompts(name, runner.config_of(saved(name)))
    banned = runner.banned_ids(runner.config_of(saved(name)))
    torch_engine, torch_encoder, _ = runner.load_engine(name, saved(name))
    onnx_engine, onnx_encoder, _ = runner.load_onnx_engine(name, exported(name))
    for engine, encoder in ((torch_engine, onnx_encoder), (onnx_engine, torch_encoder)):
        outcome = runner.compare(runner.run(engine, encoder, prompts, banned), answered(name))
        assert outcome.is_parity, outcome


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[E] BFCArena: Failed to allocate memory for 20 bytes")]
)
def test_an_out_of_memory_step_is_reported_as_out_of_memory(
    error: Exception, exported: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _, _ = runner.load_onnx_engine("llama", exported("llama"))
    host = EngineHost(engine)
    sequence = host.sequence(Prompt((20, 21, 22)))
    host.admit(sequence)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(engine._decoder, "prefill", fail)
    with pytest.raises(OutOfMemory, match="there is not enough memory for this request"):
        host.prefill(sequence)
    monkeypatch.undo()
    assert host.prefill(sequence).shape == (engine.limits.vocab_size,)
