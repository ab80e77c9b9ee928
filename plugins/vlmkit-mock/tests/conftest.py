"""Shared by the mock's tests: conversations and the features of their pictures."""

from collections.abc import Mapping

import pytest

from vlmkit.image import Image
from vlmkit.message import Message
from vlmkit.prompt import Prompt
from vlmkit.protocols import ImageFeatures
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder


class Side:
    """The mock's tokenizer and encoder, for tests of its engine."""

    def prompt(self, text: str, *images: Image) -> Prompt:
        return MockTokenizer().prompt([Message.of("user", text, images)])

    def features(self, prompt: Prompt) -> Mapping[int, ImageFeatures]:
        return dict(enumerate(MockVisionEncoder().encode(prompt.images)))


@pytest.fixture
def side() -> Side:
    return Side()
