"""FlexAttention for prompts, as torch computes it without a compiler."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_attention import agree_on_random_steps
from test_attention_choice import Counting, registered

from pretend.steps import logits_of
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.attention import flex
from vlmkit_torch.attention.flex import FlexAttention
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.settings import EngineSettings
from vlmkit_torch.testing import TorchAttentionContract

pytestmark = pytest.mark.torch


class TestFlex(TorchAttentionContract):
    def make(self) -> FlexAttention:
        return FlexAttention()


def test_random_steps_agree_with_attention_written_out() -> None:
    agree_on_random_steps(FlexAttention, 100, seed=0)


@pytest.mark.slow
def test_ten_thousand_random_steps_agree_with_attention_written_out() -> None:
    agree_on_random_steps(FlexAttention, 10_000, seed=1)


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "gemma3"])
def test_an_engine_that_names_it_answers_as_with_sdpa(
    family: str,
    load: Callable[..., Any],
    saved: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    function = flex._function("cpu")

    def counted(*arguments: Any, **more: Any) -> Any:
        calls.append(more["block_mask"])
        return function(*arguments, **more)

    monkeypatch.setattr(flex, "_function", lambda _: counted)
    settings = EngineSettings(
        cache_tokens=800, block_tokens=4, max_chunk_tokens=64, attention="flex"
    )
    files = Checkpoint(family, saved(family))
    context = BuildContext("", files, settings, registries=registered(Counting).by_kind)
    engine, own = torch_engine.build(context), load(family)[0]
    calls.clear()
    for found, wanted in zip(logits_of(engine), logits_of(own), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=0)
    assert calls


def test_auto_never_takes_it(saved: Callable[[str], Path]) -> None:
    files = Checkpoint("llama", saved("llama"))
    settings = EngineSettings(cache_tokens=800, block_tokens=4, max_chunk_tokens=64)
    context = BuildContext("", files, settings, registries=registered(Counting, priority=1).by_kind)
    engine = torch_engine.build(context)
    assert engine.foreign_backend is None, "it is sdpa"
