"""Devices: their names, the lock of MPS, and errors when memory runs out.

No test needs an MPS device: a replaced ``hardware.is_mps`` treats the CPU as one.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from parity import runner
from vlmkit.errors import ConfigError, EngineError
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch.devices import faults, hardware
from vlmkit_torch.engine import capacity, torch_engine as engine_module
from vlmkit_torch.engine.torch_engine import build as build_engine
from vlmkit_torch.loading.weights import shared_model
from vlmkit_torch.settings import ComputeSettings, EngineSettings

pytestmark = pytest.mark.torch

Load = Callable[..., Any]
Saved = Callable[[str], Any]
TEXT = Prompt(tuple(range(40, 70)))
MESSAGES = (
    "MPS backend out of memory (MPS allocated: 5.56 GB, max allowed: 6.80 GB).",
    "Invalid buffer size: 12.00 GiB",
    "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory",
)


@pytest.fixture
def as_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "is_mps", lambda device: True)


@pytest.fixture
def two_cuda_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.fixture
def an_mps_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)


def chosen(name: str) -> torch.device:
    return hardware.choose_device(ComputeSettings(device=name))


def is_free_for_another_thread() -> bool:
    """Return whether another thread could take the lock now."""
    found: list[bool] = []

    def ask() -> None:
        if turn := hardware._mps_lock.acquire(blocking=False):
            hardware._mps_lock.release()
        found.append(turn)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


# Names.


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("auto", "cuda:1"),
        ("cuda", "cuda:1"),
        ("cuda:0", "cuda:0"),
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
    ],
)
def test_a_device_has_one_name(two_cuda_devices: None, name: str, device: str) -> None:
    assert str(chosen(name)) == device


def test_mps_has_the_name_that_its_tensors_have(an_mps_device: None) -> None:
    assert {str(chosen(name)) for name in ("auto", "mps", "mps:0")} == {"mps:0"}


def test_two_spellings_of_a_device_load_one_model(saved: Saved) -> None:
    checkpoint, shared = Checkpoint("llama", saved("llama")), {}
    models = [
        shared_model(
            BuildContext("", checkpoint, ComputeSettings(device=name), shared), for_engine=True
        )
        for name in ("cpu", "cpu:0")
    ]

    assert models[0] is models[1]


def test_an_older_torch_uses_the_cpu_or_refuses_mps(
    an_mps_device: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.12.1")

    assert chosen("auto") == torch.device("cpu")
    assert "torch 2.12.1 computes wrong there, 2.13 is needed" in caplog.text
    with pytest.raises(ConfigError, match=r"'mps' is requested, but torch 2\.12\.1"):
        chosen("mps")


# The lock of MPS.


def test_engine_and_encoder_never_run_at_once_on_mps(load: Load, as_mps: None) -> None:
    engine, encoder = load("llava")
    tower, decoder = encoder._tower, engine._views.decoder
    seen: list[bool] = []
    encoder._tower = lambda **inputs: seen.append(is_free_for_another_thread()) or tower(**inputs)
    decoder.register_forward_pre_hook(lambda *_: seen.append(is_free_for_another_thread()))
    prompt = runner.prompt("llava", runner.requests("llava")[0], llava_image_token())
    features = encoder.encode(prompt.media)
    EngineHost(engine, lambda _: dict(enumerate(features))).last_logits(prompt)

    assert seen[:1] == [False]
    assert set(seen[1:]) == {False}
    assert is_free_for_another_thread()


def test_loading_and_checking_a_model_hold_the_lock_on_mps(
    saved: Saved, as_mps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def watched(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            seen.append(what if not is_free_for_another_thread() else f"{what} out of turn")
            return function(*arguments, **more)

        return call

    monkeypatch.setattr(torch.nn.Module, "to", watched("move", torch.nn.Module.to))
    monkeypatch.setattr(capacity, "probe", watched("probe", capacity.probe))
    build_engine(
        BuildContext("", Checkpoint("llama", saved("llama")), EngineSettings(cache_tokens=64))
    )

    assert set(seen) == {"move", "probe"}


def test_other_devices_have_no_lock(load: Load) -> None:
    engine, _ = load("llama")
    seen: list[bool] = []
    hook = lambda *_: seen.append(is_free_for_another_thread())  # noqa: E731
    engine._views.decoder.register_forward_pre_hook(hook)
    EngineHost(engine).last_logits(TEXT)

    assert set(seen) == {True}


class OnMps:
    """A CPU tensor that looks like a tensor on MPS."""

    device = torch.device("mps:0")

    def cpu(self) -> str:
        return "on the CPU"


def test_results_outside_the_lock_are_on_the_cpu() -> None:
    here = torch.zeros(1)

    assert hardware.for_any_thread(OnMps()) == "on the CPU"
    assert hardware.for_any_thread(here) is here


# Views.


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mistral"])
def test_attention_on_mps_reads_no_views_and_computes_the_same(
    name: str, load: Load, as_mps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = EngineHost(load(name)[0])
    monkeypatch.setattr(hardware, "is_mps", lambda device: False)
    expected = host.last_logits(TEXT)
    monkeypatch.setattr(hardware, "is_mps", lambda device: True)
    kernel, seen = functional.scaled_dot_product_attention, []

    def watched(*arrays: torch.Tensor, **how: Any) -> torch.Tensor:
        seen.extend(array.is_contiguous() for array in arrays)
        return kernel(*arrays, **how)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)

    np.testing.assert_array_equal(host.last_logits(TEXT), expected)
    assert seen
    assert all(seen)


# Memory.


@pytest.mark.parametrize("words", MESSAGES)
@pytest.mark.parametrize("where", ["weights", "cache"])
def test_out_of_memory_on_mps_is_reported(
    words: str, where: str, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(words)

    if where == "weights":
        monkeypatch.setattr(torch.nn.Module, "to", fail)
    else:
        monkeypatch.setattr(engine_module, "KVCache", fail)
    context = BuildContext("", Checkpoint("llama", saved("llama")), EngineSettings())
    with pytest.raises(EngineError, match="the memory of 'cpu' is not enough"):
        build_engine(context)


def test_other_errors_are_not_reported_as_out_of_memory() -> None:
    assert not faults.is_out_of_memory(RuntimeError("shapes do not match"))
    assert not faults.is_out_of_memory(ValueError(MESSAGES[0]))
    assert faults.is_out_of_memory(MemoryError())


def llava_image_token() -> int:
    import zoo

    return zoo.processor("llava").tokenizer.convert_tokens_to_ids("<image>")
