"""The engine passes the contract, for families with different mechanisms and types of weights."""

from collections.abc import Callable
from typing import Any

import pytest

from parity import hybrid
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.prompt import Prompt
from vlmkit_testing import EngineContract

pytestmark = pytest.mark.torch


class OnLlama(EngineContract):
    family = "llama"
    kind = "F32"
    atol = 2e-4
    most_cuts = 7
    most_drafts = 5
    most_tokens = 200

    @pytest.fixture(autouse=True)
    def _build(self, build: Callable[..., Any]) -> None:
        self._make = build

    def make(self) -> Engine:
        return self._make(self.family, self.kind)

    def prompts(self) -> list[Prompt]:
        return hybrid.prompts()[:3]


class TestLlama(OnLlama):
    pass


class TestGemma2(OnLlama):
    """Layers with a window, and tied embeddings."""

    family = "gemma2"
    atol = 2e-3  # the library looks up GELU by 16 bits


class TestQwen3Moe(OnLlama):
    """Layers with experts."""

    family = "qwen3_moe"


# Products round their inputs to the type of the weights, which differs where sums do in the last
# bit: by 16 bits here, and by 8 bits below.


class TestQwen2OfF16(OnLlama):
    family, kind, atol = "qwen2", "F16", 3e-2


class TestLlamaOfQ80(OnLlama):
    kind, atol = "Q8_0", 0.3


@pytest.mark.slow
class TestGemma2OfQ40(OnLlama):
    family, kind, atol = "gemma2", "Q4_0", 0.3


class TestQwen3OfQ4K(OnLlama):
    family, kind, atol = "qwen3", "Q4_K", 0.3
