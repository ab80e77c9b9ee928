"""Engine contracts for broken engines and for the engines from which they were made."""

from collections.abc import Mapping
from typing import Any

from honest.engine import AttentionEngine, Floats, features_of, prompt_of, truth

from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Prompt
from vlmkit.types.message import Message
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_testing import EngineContract, picture


class OnAttention(EngineContract):
    atol = 1e-9
    images_are_atomic = False

    def __init__(self, kind: type[AttentionEngine]) -> None:
        self._kind = kind

    def make(self) -> Engine:
        made = self._kind()
        made.images_are_atomic = self.images_are_atomic
        return made

    def prompts(self) -> list[Prompt]:
        words = [*range(1, 18)]
        asked = [words[:5]], [words[5:7], 5, [9], 5, [3, 4]], [words, 4, [*words, 20, 21]]
        return [prompt_of(*parts) for parts in asked]

    def features(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:
        return features_of(prompt)

    def twins(self) -> tuple[Prompt, Prompt]:
        parts = ([1, 2, 3, 4, 5], 6, [7, 8])
        return prompt_of(*parts, content=7), prompt_of(*parts, content=8)

    def reference(self, prompt: Prompt) -> Floats:
        return truth(prompt)

    def answer_ids(self) -> list[int]:
        return [11, 12, 13, 14, 15]


class OnAtomic(OnAttention):
    images_are_atomic = True


class ReturnsTwoPrompts(OnAttention):
    def prompts(self) -> list[Prompt]:
        return super().prompts()[:2]


class ReturnsPromptsOfOneLength(OnAttention):
    def prompts(self) -> list[Prompt]:
        return super().prompts()[:1] * 3


class ReturnsThreeTokens(OnAttention):
    def answer_ids(self) -> list[int]:
        return super().answer_ids()[:3]


def on_itself(contract: type[OnAttention]) -> OnAttention:
    """Return an incomplete contract on a correct engine."""
    return contract(AttentionEngine)


class OnMock(EngineContract):
    atol = 1e-6

    def __init__(self, kind: type[MockEngine]) -> None:
        self._kind = kind

    def make(self) -> MockEngine:
        settings = MockEngineSettings(
            capacity_tokens=512, max_sequence_tokens=512, overlaps_steps=True
        )
        return self._kind(settings)

    def prompts(self) -> list[Prompt]:
        asked: list[Any] = [("hello there", []), ("?", [picture(), picture(seed=1)])]
        asked.append(("a question that is longer than two blocks of the cache", [picture()]))
        return [MockTokenizer().prompt([Message.of("user", *parts)]) for parts in asked]

    def features(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:
        return dict(enumerate(MockVisionEncoder().encode(prompt.media)))

    def twins(self) -> tuple[Prompt, Prompt]:
        pictures = picture(seed=3), picture(seed=4)
        one, other = (MockTokenizer().prompt([Message.of("user", "?", [p])]) for p in pictures)
        return one, other

    def answer_ids(self) -> list[int]:
        return MockTokenizer().encode("This")


class OnRoomyMock(OnMock):
    """An engine whose cache holds one of the longest sequences, and half of another."""

    def make(self) -> MockEngine:
        return self._kind(MockEngineSettings(capacity_tokens=768, max_sequence_tokens=512))
