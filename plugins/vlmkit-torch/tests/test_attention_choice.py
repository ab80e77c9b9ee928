"""An engine takes an attention backend of another plugin, and reports its failures by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from broken_backends import IgnoresCaps

from parity import runner
from pretend.steps import TEXTS
from vlmkit.errors import (
    CheckpointError,
    EngineError,
    OutOfMemory,
    PluginUnavailable,
    RequestError,
    UnknownPlugin,
)
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registries import Registries
from vlmkit.plugins.registry import BuildContext
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch import plugin
from vlmkit_torch.attention.sdpa import SdpaAttention
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.interfaces.kinds import DISTRIBUTION, TORCH_ATTENTION
from vlmkit_torch.interfaces.torch_attention import AttentionCall, AttentionCapabilities
from vlmkit_torch.plugin import vlmkit_register_torch_attentions
from vlmkit_torch.prompts.prompt_reader import PromptReader
from vlmkit_torch.settings import EngineSettings

pytestmark = pytest.mark.torch

Saved = Callable[[str], Path]
GUEST = "vlmkit-guest"


class Counting(SdpaAttention):
    """Counts its calls."""

    calls = 0

    def attend(self, call: AttentionCall) -> torch.Tensor:
        type(self).calls += 1
        return super().attend(call)


class Causal(Counting):
    """States no more than causal attention."""

    calls = 0

    @property
    def capabilities(self) -> AttentionCapabilities:
        return AttentionCapabilities()


def registered(backend: type[SdpaAttention], **more: Any) -> Registries:
    """Return the backend of vlmkit-torch, and one of another plugin."""
    found = Registries(kinds=(TORCH_ATTENTION,))
    for owner in (DISTRIBUTION, GUEST):
        own = Registries(owner, (TORCH_ATTENTION,))
        if owner == GUEST:
            own.torch_attentions.add("guest", lambda _: backend(), **more)
        else:
            vlmkit_register_torch_attentions(own.torch_attentions)
        found.merge(own)
    return found


@pytest.fixture
def made(saved: Saved) -> Callable[..., Any]:
    def make(
        family: str,
        backend: type[SdpaAttention],
        attention: str = "guest",
        cache_dtype: Any = "auto",
        **more: Any,
    ) -> Any:
        settings = EngineSettings(
            cache_tokens=800,
            block_tokens=4,
            max_chunk_tokens=64,
            attention=attention,
            cache_dtype=cache_dtype,
        )
        files = Checkpoint(family, saved(family))
        registries = registered(backend, **more).by_kind
        return torch_engine.build(BuildContext("", files, settings, registries=registries))

    return make


def test_a_named_backend_of_another_plugin_computes_every_layer(
    made: Callable[..., Any], load: Callable[..., Any]
) -> None:
    Counting.calls = 0
    guest, own = EngineHost(made("llama", Counting)), EngineHost(load("llama")[0])
    assert Counting.calls > 0, "the self-check uses it"
    for prompt in TEXTS:
        found, wanted = (host.last_logits(prompt, (30, 31)) for host in (guest, own))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("priority", "is_used"), [(0, False), (20, True)])
def test_auto_takes_another_backend_if_its_priority_is_higher(
    made: Callable[..., Any], priority: int, is_used: bool
) -> None:
    Counting.calls = 0
    made("llama", Counting, "auto", priority=priority)
    assert (Counting.calls > 0) is is_used


def test_the_doctor_names_the_attention_backends_that_an_engine_would_use(saved: Saved) -> None:
    def examined(priority: int, attention: str = "auto") -> str:
        registries = registered(Counting, priority=priority)
        settings = EngineSettings(attention=attention, device="cpu")
        files = Checkpoint("llama", saved("llama"))
        context = BuildContext("", files, settings, registries=registries.by_kind)
        return plugin._examine_engine(context)

    own, guest = f"torch attention 'sdpa' from {DISTRIBUTION!r}", f"'guest' from {GUEST!r}"
    assert examined(0) == f"float32, cpu, {own}", "it supports all"
    assert examined(20) == f"float32, cpu, torch attention {guest} or {own}"
    assert examined(20, "sdpa") == f"float32, cpu, {own}"
    with pytest.raises(UnknownPlugin, match="torch attention 'gast'"):
        examined(0, "gast")


def test_auto_passes_over_a_backend_that_lacks_what_a_model_needs(
    made: Callable[..., Any],
) -> None:
    Causal.calls = 0
    made("gpt_oss", Causal, "auto", priority=20)
    assert Causal.calls == 0
    made("llama", Causal, "auto", priority=20)
    assert Causal.calls > 0


def test_a_backend_gets_an_8_bit_cache_only_if_it_states_that_it_reads_one(
    made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for backend, is_used in ((Causal, False), (Counting, True)):
        backend.calls = 0
        made("llama", backend, "auto", cache_dtype="int8", priority=20)
        assert (backend.calls > 0) is is_used
    monkeypatch.setattr(torch_engine, "shared_model", None)  # before weights are read
    with pytest.raises(PluginUnavailable) as error:
        made("llama", Causal, cache_dtype="int8")
    assert str(error.value) == f"{WHO} does not support an 8-bit cache"
    assert 'engine.cache_dtype = "auto"' in str(error.value.hint)


def test_the_doctor_reports_a_backend_that_reads_no_8_bit_cache(saved: Saved) -> None:
    settings = EngineSettings(attention="guest", cache_dtype="int8", device="cpu")
    files, registries = Checkpoint("llama", saved("llama")), registered(Causal).by_kind
    context = BuildContext("", files, settings, registries=registries)
    with pytest.raises(PluginUnavailable, match="does not support an 8-bit cache"):
        plugin._examine_engine(context)


@pytest.mark.parametrize(
    ("family", "missing"),
    [
        ("gpt_oss", "attention sinks, sliding windows"),
        ("gemma2", "sliding windows, soft caps"),
        ("gemma3", "image spans, sliding windows"),
    ],
)
def test_a_named_backend_that_lacks_something_is_refused_with_all_that_it_lacks(
    made: Callable[..., Any], family: str, missing: str
) -> None:
    with pytest.raises(PluginUnavailable) as error:
        made(family, Causal)
    lacking = str(error.value).partition("does not support ")[2].rstrip(")").split(", ")
    assert sorted(lacking) == missing.split(", ")
    assert "guest: it does not" in str(error.value)
    installed, _, rest = str(error.value.hint).partition("; ")
    assert installed == "installed: aligned, flex, guest, sdpa, triton, varlen"
    assert rest == 'engine.attention = "auto" takes one that can'


@pytest.mark.parametrize(
    ("name", "more", "error", "message"),
    [
        ("gest", {}, UnknownPlugin, "no installed plugin provides torch attention 'gest'"),
        (
            "guest",
            {"why_not": lambda: "it needs a GPU"},
            PluginUnavailable,
            "torch attention 'guest' from 'vlmkit-guest' cannot be used: it needs a GPU",
        ),
    ],
)
def test_an_absent_backend_is_refused_before_weights_are_read(
    made: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    more: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr(torch_engine, "shared_model", None)
    with pytest.raises(error) as found:
        made("llama", Counting, name, **more)
    assert str(found.value) == message


class Raises(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        raise KeyError("secret")


class RaisesInPlan(SdpaAttention):
    def plan(self, *_: Any) -> Any:
        raise IndexError("secret")


class Transposes(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        return super().attend(call).transpose(0, 1)


class Doubles(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        return super().attend(call).double()


class ReturnsNothing(SdpaAttention):
    def attend(self, call: AttentionCall) -> Any:
        return None


class Halves(SdpaAttention):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        return 0.5 * super().attend(call)


WHO = "torch attention 'guest' from 'vlmkit-guest'"


def test_a_backend_that_computes_something_else_is_refused_at_load(
    made: Callable[..., Any],
) -> None:
    reason = "guest: its values differ from those of 'sdpa' on device 'cpu' by 0.5 of their length"
    with pytest.raises(PluginUnavailable, match=reason):
        made("llama", Halves)


@pytest.mark.parametrize("backend", [Halves, Raises, RaisesInPlan, Transposes])
def test_auto_passes_over_a_backend_that_computes_something_else(
    made: Callable[..., Any],
    load: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    backend: type[SdpaAttention],
) -> None:
    engine, own = made("llama", backend, "auto", priority=30), load("llama")[0]
    assert f"{WHO} is not used: " in caplog.text
    found, wanted = (EngineHost(each).last_logits(TEXTS[0]) for each in (engine, own))
    np.testing.assert_array_equal(found, wanted)


class Late(SdpaAttention):
    """Is wrong in steps of few sequences."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        out = super().attend(call)
        return out if len(call.step.sequences) > 2 else 0.5 * out


def test_a_backend_that_passes_the_comparison_and_fails_later_is_named(
    made: Callable[..., Any],
) -> None:
    with pytest.raises(CheckpointError, match=f"^{WHO} or the model is at fault: ") as error:
        made("llama", Late)
    assert 'engine.attention = "sdpa"' in error.value.hint


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (Raises, f"{WHO} raised KeyError in 'attend'"),
        (RaisesInPlan, f"{WHO} raised IndexError in 'plan'"),
        (
            Transposes,
            f"{WHO} returned torch.float32 [4, 37, 16] on 'cpu' instead of torch.float32 ",
        ),
        (Doubles, f"{WHO} returned torch.float64 [37, 4, 16] on 'cpu' instead of torch.float32 "),
        (ReturnsNothing, f"{WHO} returned a value of type 'NoneType' from 'attend'"),
    ],
)
def test_a_broken_backend_is_named_in_the_error(
    made: Callable[..., Any], backend: type[SdpaAttention], message: str
) -> None:
    with pytest.raises(EngineError) as error:
        made("llama", backend)
    assert str(error.value).startswith(message)
    assert "secret" not in str(error.value)


def test_a_backend_that_runs_out_of_memory_fails_as_a_device_does(
    made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    engine = made("llama", Counting)
    host = EngineHost(engine)
    sequence = host.sequence(TEXTS[0])
    host.admit(sequence)
    monkeypatch.setattr(Counting, "attend", full)
    with pytest.raises(OutOfMemory):
        engine.forward([host.chunk(sequence, 1)])


def test_a_backend_with_wrong_answers_is_refused_at_each_load(
    made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made("gemma2", Counting)
    for _ in range(2):
        with pytest.raises(PluginUnavailable, match="guest: its values differ"):
            made("gemma2", IgnoresCaps)
    assert not list(tmp_path.rglob("self-checks/*")), "another plugin may change unnoticed"


def test_a_prompt_with_image_spans_is_refused_if_the_backend_does_not_support_them(
    made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, saved: Saved
) -> None:
    class NoSpans(SdpaAttention):
        @property
        def capabilities(self) -> AttentionCapabilities:
            return replace(super().capabilities, image_spans=False)

    monkeypatch.setattr(PromptReader, "may_have_image_spans", False)
    engine = made("gemma3", NoSpans)
    seeing = runner.prompts("gemma3", runner.config_of(saved("gemma3")))[0]
    with pytest.raises(RequestError, match="tokens that see later ones"):
        engine.read(seeing)
    assert engine.read(TEXTS[0]) is not None
