"""Each layer and kind of step has the preferred backend that agrees with ``sdpa`` there."""

import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from random_attention import agree_on_random_steps
from test_attention_choice import WHO, registered

from parity import runner
from pretend.steps import TEXTS, logits_of
from pretend.torch_cuda import pretended_cuda
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_torch.attention import sdpa
from vlmkit_torch.attention.sdpa import AlignedAttention, SdpaAttention
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.interfaces.torch_attention import AttentionCall, AttentionCapabilities
from vlmkit_torch.settings import EncoderSettings, EngineSettings
from vlmkit_torch.testing import TorchAttentionContract
from vlmkit_torch.vision import encoder as vision

pytestmark = pytest.mark.torch

Built = Callable[..., Any]
FULL, SLIDING = "full_attention", "sliding_attention"


class Noting(SdpaAttention):
    """Notes the layers that it computes, and whether a prompt of the step has spans."""

    seen: ClassVar[Counter[tuple[str, bool]]] = Counter()

    def attend(self, call: AttentionCall) -> torch.Tensor:
        has_spans = any(each.views for each in call.step.sequences)
        self.seen[call.parameters.kind.name, has_spans] += 1
        return super().attend(call)


class NoWindows(Noting):
    @property
    def capabilities(self) -> AttentionCapabilities:
        return replace(super().capabilities, sliding_windows=False)


class NoSpans(Noting):
    @property
    def capabilities(self) -> AttentionCapabilities:
        return replace(super().capabilities, image_spans=False)


class WrongInWindows(Noting):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        out = super().attend(call)
        return out if call.parameters.kind.window is None else 0.5 * out


class WrongAboutSpans(Noting):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        out = super().attend(call)
        return 0.5 * out if any(each.views for each in call.step.sequences) else out


class RaisesInWindows(Noting):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        if call.parameters.kind.window is not None:
            raise KeyError("secret")
        return super().attend(call)


class IgnoresCaps(Noting):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        return super().attend(call._replace(parameters=replace(call.parameters, softcap=None)))


class IgnoresSinks(Noting):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        return super().attend(call._replace(parameters=replace(call.parameters, sinks=None)))


@pytest.fixture
def built(saved: Callable[[str], Path]) -> Built:
    """Return a function that builds an engine which prefers a backend of another plugin."""

    def build(family: str, backend: type[SdpaAttention], **settings: Any) -> Any:
        own = {"cache_tokens": 800, "block_tokens": 4, "max_chunk_tokens": 64, **settings}
        files = Checkpoint(family, saved(family))
        registries = registered(backend, priority=40).by_kind
        context = BuildContext("", files, EngineSettings(**own), registries=registries)
        engine = torch_engine.build(context)
        Noting.seen.clear()
        return engine, context

    return build


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
@pytest.mark.parametrize("backend", [NoWindows, WrongInWindows, RaisesInWindows])
def test_a_backend_computes_the_layers_that_it_is_right_about(
    built: Built, load: Built, family: str, backend: type[SdpaAttention]
) -> None:
    engine, _ = built(family, backend)
    expected = logits_of(load(family)[0])
    Noting.seen.clear()
    found = logits_of(engine)
    assert {name for name, _ in Noting.seen} == {FULL}
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (WrongInWindows, f"differ from those of 'sdpa' on device 'cpu' by 0.5 .* '{SLIDING}'"),
        (RaisesInWindows, f"raised KeyError in 'attend', in layers of the kind '{SLIDING}'"),
    ],
)
def test_the_log_names_backends_of_layers_and_reasons(
    built: Built, caplog: pytest.LogCaptureFixture, backend: type[SdpaAttention], reason: str
) -> None:
    caplog.set_level(logging.INFO)
    built("gemma2", backend)
    (warning,) = [each for each in caplog.messages if each.startswith(f"{WHO} is not used: ")]

    assert re.search(reason, warning)
    assert f"attention backend of {FULL} and soft caps: guest" in caplog.messages
    assert f"attention backend of {SLIDING} and soft caps: sdpa" in caplog.messages


@pytest.mark.parametrize(
    ("family", "backend"), [("gemma2", IgnoresCaps), ("gpt_oss", IgnoresSinks)]
)
def test_a_backend_that_is_wrong_about_every_layer_computes_none(
    built: Built, load: Built, family: str, backend: type[SdpaAttention]
) -> None:
    engine, _ = built(family, backend)
    found, wanted = (EngineHost(each).last_logits(TEXTS[0]) for each in (engine, load(family)[0]))
    np.testing.assert_array_equal(found, wanted)
    assert not Noting.seen


@pytest.mark.parametrize("backend", [NoSpans, WrongAboutSpans])
def test_prompts_with_spans_have_another_backend_than_answers(
    built: Built, load: Built, saved: Callable[[str], Path], backend: type[SdpaAttention]
) -> None:
    prompt = runner.prompts("gemma3", runner.config_of(saved("gemma3")))[0]

    def answers(engine: Any, encoder: Any) -> list[Any]:
        def features(prompt: Prompt) -> dict[int, Any]:
            return dict(enumerate(encoder.encode(prompt.media))) if prompt.media else {}

        host = EngineHost(engine, features)
        sequences = [host.sequence(each) for each in (prompt, TEXTS[0])]
        for sequence in sequences:
            assert host.admit(sequence) == 0
            host.prefill(sequence)
        return [
            host.step([host.next_item(sequence, 30 + i) for sequence in sequences]).copy()
            for i in range(3)
        ]

    expected = answers(*load("gemma3"))
    engine, context = built("gemma3", backend)
    encoder = vision.build(replace(context, settings=EncoderSettings()))
    Noting.seen.clear()
    found = answers(engine, encoder)
    assert {has_spans for _, has_spans in Noting.seen} == {False}
    assert {name for name, _ in Noting.seen} == {FULL, SLIDING}
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=1e-4, rtol=0)


def test_steps_of_several_backends_are_repeated_as_graphs(built: Built, load: Built) -> None:
    expected = logits_of(load("gemma2")[0])
    with pretended_cuda():
        engine, _ = built("gemma2", NoWindows, device="cuda")
        Noting.seen.clear()
        found = logits_of(engine)
        assert engine._runner.graphs.num_replays > 0
        assert {name for name, _ in Noting.seen} == {FULL}
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=1e-4, rtol=0)


# Later chunks without a mask.


class AlignedHere(AlignedAttention):
    """The backend ``aligned``, as if a CPU were its device."""

    @property
    def capabilities(self) -> AttentionCapabilities:
        return replace(super().capabilities, devices=frozenset({"cpu", "cuda"}))


class TestAligned(TorchAttentionContract):
    def make(self) -> AlignedAttention:
        return AlignedHere()


@pytest.mark.parametrize("max_scores", [sdpa.MAX_SCORES, 64])
def test_random_steps_of_aligned_chunks_agree_with_attention_written_out(
    monkeypatch: pytest.MonkeyPatch, max_scores: int
) -> None:
    monkeypatch.setattr(sdpa, "MAX_SCORES", max_scores)
    agree_on_random_steps(AlignedHere, 100, seed=0)


@pytest.mark.slow
def test_ten_thousand_random_steps_with_aligned_chunks_agree_with_attention_written_out() -> None:
    agree_on_random_steps(AlignedHere, 10_000, seed=1)


def test_later_chunks_of_plain_layers_have_no_mask_on_cuda(
    built: Built, load: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits_of(load("llama")[0])
    aligned = []
    bias = sdpa.causal_lower_right
    monkeypatch.setattr(
        sdpa, "causal_lower_right", lambda *size: aligned.append(size) or bias(*size)
    )
    with pretended_cuda():
        engine, _ = built("llama", IgnoresSinks, device="cuda", attention="aligned")
        aligned.clear()
        found = logits_of(engine)
    assert (13, 26) in aligned
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=1e-4, rtol=0)
