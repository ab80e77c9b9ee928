"""Fixtures: prompts of the mock and the features of their images."""

from collections.abc import Mapping

import pytest

from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Prompt
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder


class Side:
    """The tokenizer and the encoder of the mock, for tests of its engine."""

    def prompt(self, text: str, *images: Image) -> Prompt:
        return MockTokenizer().prompt([Message.of("user", text, images)])

    def features(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:
        return dict(enumerate(MockVisionEncoder().encode(prompt.media)))


@pytest.fixture
def side() -> Side:
    return Side()
