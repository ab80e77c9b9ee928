"""The engine keeps vlmkit's contract, and answers for the model ``mock``."""

from collections.abc import Mapping

import numpy as np
import pytest

import vlmkit
from vlmkit.errors import EngineError
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import WorkItem
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_testing import EngineContract
from vlmkit_yourname.engine import AttentionEngine
from vlmkit_yourname.settings import AttentionSettings


def picture(seed: int) -> Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.open(pixels)


def prompt(text: str, *images: Image) -> Prompt:
    return MockTokenizer().prompt([Message.of("user", text, images)])


class TestAttentionEngine(EngineContract):
    def make(self) -> Engine:
        return AttentionEngine(AttentionSettings(capacity_tokens=512))

    def prompts(self) -> list[Prompt]:
        return [
            prompt("to be"),
            prompt("a prompt of more than two blocks"),
            prompt("two pictures", picture(0), picture(1)),
        ]

    def features(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:
        return dict(enumerate(MockVisionEncoder().encode(prompt.media)))

    def twins(self) -> tuple[Prompt, Prompt]:
        return prompt("look", picture(2)), prompt("look", picture(3))


def test_the_model_answers_by_this_engine() -> None:
    with vlmkit.load("mock", engine={"use": "yourname"}) as model:
        images = [picture(0)]
        request = model.request("hello", images=images, max_tokens=8, ignore_eos=True)
        assert model.submit(request).result().usage.completion_tokens == 8


def test_an_image_without_features_is_an_error() -> None:
    engine, shown = AttentionEngine(), prompt("look", picture(0))
    sequence = Sequence("1", shown, SamplingParams())
    assert engine.admit(sequence) is not None
    with pytest.raises(EngineError, match="image 0 of a prompt has no features"):
        engine.forward([WorkItem(sequence, 0, len(shown), 1)])
