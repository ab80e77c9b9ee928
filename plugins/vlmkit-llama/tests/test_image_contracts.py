"""Engine, encoder and tokenizer pass their contracts, for families with images."""

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit_testing import EngineContract, MediaEncoderContract, TokenizerContract
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_testing.contracts.pictures import picture

pytestmark = pytest.mark.torch


class OnFamily:
    """Gives the contracts the prompts of a family."""

    family = ""

    @pytest.fixture(autouse=True)
    def _take(self, parts: Callable[..., Any]) -> None:
        self.parts = parts(self.family)

    def asked_about(self, text: str, *images: Image) -> Prompt:
        shown = (*map(ImagePart, images), TextPart(text))
        prompt: Prompt = self.parts.tokenizer.prompt([Message("user", shown)])
        return prompt

    def all_prompts(self) -> list[Prompt]:
        wide, tall = picture(40, 90, seed=2), picture(64, 30, seed=3)
        return [
            self.asked_about("Look at it closely, then say it all.", picture(56, 56, seed=1)),
            self.asked_about("Just words, please: these."),
            self.asked_about("How do they differ?", wide, tall, wide),
        ]


class EngineOnFamily(OnFamily, EngineContract):
    most_cuts = 7
    most_drafts = 5
    most_tokens = 200
    num_walk_steps = 60
    atol = 2e-4

    def make(self) -> Engine:
        engine: Engine = self.parts.engine()
        return engine

    def prompts(self) -> list[Prompt]:
        return self.all_prompts()

    def answer_ids(self) -> list[int]:
        return [40, 50, 60, 70]

    def features(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:
        if not prompt.media:
            return {}
        encoder = self.parts.encoder()
        made = dict(enumerate(encoder.encode(prompt.media)))
        encoder.close()
        return made

    def twins(self) -> tuple[Prompt, Prompt]:
        first, second = (
            self.asked_about("Look at it, then say what it is, please.", picture(56, 56, seed=seed))
            for seed in (1, 9)
        )
        return first, second


class TestEngineOnGemma3(EngineOnFamily):
    """The tokens of an image attend to each other in both directions; layers have windows."""

    family = "gemma3"
    atol = 2e-3  # the library looks up GELU by 16 bits


@pytest.mark.slow
class TestEngineOnSmolVlm(EngineOnFamily):
    """An image is several tiles with markers between them."""

    family = "smolvlm"


@pytest.mark.slow
class TestEngineOnMistral3(EngineOnFamily):
    """An image has as many tokens as its size asks for."""

    family = "mistral3"


class TestEngineOnQwen25Vl(EngineOnFamily):
    """All tokens of an image have one position in time."""

    family = "qwen2_5_vl"


@pytest.mark.slow
class TestEngineOnQwen3Vl(EngineOnFamily):
    """Features have columns for inner layers, too."""

    family = "qwen3_vl"


class EncoderOnFamily(OnFamily, MediaEncoderContract):
    def make(self) -> MediaEncoder:
        encoder: MediaEncoder = self.parts.encoder()
        return encoder

    def slots(self) -> list[MediaSlot]:
        return [slot for prompt in self.all_prompts() for slot in prompt.media]


@pytest.mark.slow
class TestEncoderOnGemma3(EncoderOnFamily):
    family = "gemma3"
    sizes_differ = False


class TestEncoderOnSmolVlm(EncoderOnFamily):
    family = "smolvlm"


class TestEncoderOnMistral3(EncoderOnFamily):
    family = "mistral3"


@pytest.mark.slow
class TestEncoderOnQwen3Vl(EncoderOnFamily):
    family = "qwen3_vl"


class TokenizerOnFamily(OnFamily, TokenizerContract):
    def make(self) -> Tokenizer:
        tokenizer: Tokenizer = self.parts.tokenizer
        return tokenizer

    def special_texts(self) -> list[str]:
        whole = json.loads((self.parts.checkpoint.path / "tokenizer.json").read_text())
        return [token["content"] for token in whole["added_tokens"] if token["special"]]


@pytest.mark.slow
class TestTokenizerOnGemma3(TokenizerOnFamily):
    family = "gemma3"
    keeps_spaces = False
    is_lossless = False  # letters outside the vocabulary are bytes; a lone "▁" is a space


class TestTokenizerOnSmolVlm(TokenizerOnFamily):
    family = "smolvlm"


@pytest.mark.slow
class TestTokenizerOnMistral3(TokenizerOnFamily):
    family = "mistral3"
    marks_answers = False


@pytest.mark.slow
class TestTokenizerOnQwen25Vl(TokenizerOnFamily):
    family = "qwen2_5_vl"


# Types of weights

FAMILIES = ("gemma3", "smolvlm", "qwen2_5_vl")
TOLERANCES = {"F16": 3e-2, "Q8_0": 0.3, "Q4_0": 0.3, "Q4_K": 0.3}
ALIKE = 1e-2
TOWERS = ("F16", "Q8_0", "Q4_0")
"""Rows of towers fill no blocks of K formats."""


@pytest.mark.slow
class TestEnginesOfTypes(EngineOnFamily):
    @pytest.fixture(autouse=True, params=itertools.product(FAMILIES, TOLERANCES), ids="-".join)
    def _take(self, request: pytest.FixtureRequest, parts: Callable[..., Any]) -> None:
        family, kind = request.param
        self.parts, self.atol = parts(family, kind), TOLERANCES[kind]

    def test_another_picture_changes_the_logits(self, host: EngineHost) -> None:
        """By less than batches may differ, but these two are computed alike."""
        self.atol = ALIKE
        super().test_another_picture_changes_the_logits(host)


@pytest.mark.slow
class TestEncodersOfTypes(EncoderOnFamily):
    @pytest.fixture(autouse=True, params=itertools.product(FAMILIES, TOWERS), ids="-".join)
    def _take(self, request: pytest.FixtureRequest, parts: Callable[..., Any]) -> None:
        family, kind = request.param
        self.sizes_differ = family != "gemma3"
        self.parts = parts(family, "F32", kind)


del EngineContract, EngineOnFamily, EncoderOnFamily, MediaEncoderContract
del TokenizerContract, TokenizerOnFamily  # pytest would collect these classes
