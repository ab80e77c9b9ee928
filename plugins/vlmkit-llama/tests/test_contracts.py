"""The engine passes the contract, for families with different mechanisms and types of weights."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity import hybrid
from vlmkit.config.plugin_loading import load_plugins
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.kinds import TOKENIZER
from vlmkit.plugins.registry import BuildContext
from vlmkit.settings.plugins import PluginSettings
from vlmkit_quantized.gguf_alone import derived
from vlmkit_testing import EngineContract, TokenizerContract

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


@pytest.mark.slow
class TestGemma2(OnLlama):
    """Layers with a window, and tied embeddings."""

    family = "gemma2"
    atol = 2e-3  # the library looks up GELU by 16 bits


@pytest.mark.slow
class TestQwen3Moe(OnLlama):
    """Layers with experts."""

    family = "qwen3_moe"


# Products round their inputs to the type of the weights, which differs where sums do in the last
# bit: by 16 bits here, and by 8 bits below.


@pytest.mark.slow
class TestQwen2OfF16(OnLlama):
    family, kind, atol = "qwen2", "F16", 3e-2


@pytest.mark.slow
class TestLlamaOfQ80(OnLlama):
    kind, atol = "Q8_0", 0.3


class TestQwen3OfQ4K(OnLlama):
    family, kind, atol = "qwen3", "Q4_K", 0.3


FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "qwen3_moe")
TOLERANCES = {"F16": 3e-2, "Q8_0": 0.3, "Q4_0": 0.3, "Q4_K": 0.3}
TRIED = {("qwen2", "F16"), ("llama", "Q8_0"), ("qwen3", "Q4_K")}


@pytest.mark.slow
class TestFamiliesOfTypes(OnLlama):
    """All families in all types, beside those above."""

    @pytest.fixture(
        autouse=True,
        params=sorted(set(itertools.product(FAMILIES, TOLERANCES)) - TRIED),
        ids="-".join,
    )
    def _choose(self, request: pytest.FixtureRequest) -> None:
        self.family, self.kind = request.param
        self.atol = TOLERANCES[self.kind]


@pytest.mark.slow
class TestTokenizers(TokenizerContract):
    """The tokenizer of a file alone, which is that of vlmkit-hf."""

    takes_images = False
    keeps_spaces = False

    @pytest.fixture(autouse=True, params=FAMILIES)
    def _choose(self, request: pytest.FixtureRequest, made: Callable[..., Path]) -> None:
        folder = made(request.param)
        self.is_lossless = request.param != "qwen2"  # which composes letters and accents
        self._source = folder / f"source-{request.param}"
        checkpoint = derived(Checkpoint("tiny", folder, file=folder / "model.gguf"))
        registries = load_plugins(PluginSettings()).by_kind
        context = BuildContext("tiny", checkpoint, registries=registries)
        self._tokenizer = context.providers(TOKENIZER).build("hf", {}, context)

    def make(self) -> Tokenizer:
        return self._tokenizer

    def special_texts(self) -> list[str]:
        whole = json.loads((self._source / "tokenizer.json").read_text())
        return [token["content"] for token in whole["added_tokens"] if token["special"]]


del TokenizerContract  # pytest would collect it
