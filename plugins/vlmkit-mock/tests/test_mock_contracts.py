"""The contracts of the mock's components."""

from collections.abc import Mapping

from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit.types.image_options import ImageOptions
from vlmkit.types.message import ImagePart, Message
from vlmkit_mock import plugin
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder
from vlmkit_mock.vocabulary import REASONING, REASONING_END, SPECIAL_TOKENS
from vlmkit_testing import (
    EngineContract,
    MediaEncoderContract,
    ModelContract,
    TokenizerContract,
    awkward_pictures,
    picture,
)


class TestMockTokenizer(TokenizerContract):
    names_calls = True

    def reasoning_marks(self) -> tuple[list[int], list[int]]:
        return [REASONING], [REASONING_END]

    def make(self) -> MockTokenizer:
        return MockTokenizer()

    def special_texts(self) -> list[str]:
        return list(SPECIAL_TOKENS)

    def smaller(self) -> dict[str, int]:
        return {"max_dynamic_patch": 2}


class TestMockModel(ModelContract):
    plugin = plugin
    name = "mock"


class TestMockVisionEncoder(MediaEncoderContract):
    atol = 0.0

    def make(self) -> MockVisionEncoder:
        return MockVisionEncoder()

    def slots(self) -> list[MediaSlot]:
        small = ImagePart(picture(seed=2), ImageOptions(max_tokens=2))
        images = [picture(), small, picture(seed=1), *awkward_pictures()]
        return list(MockTokenizer().prompt([Message.of("user", "?", images)]).media)


class TestMockEngine(EngineContract):
    atol = 0.0
    settings = MockEngineSettings(
        capacity_tokens=1024, max_sequences=7, max_sequence_tokens=512, overlaps_steps=True
    )

    def make(self) -> MockEngine:
        return MockEngine(self.settings)

    def prompts(self) -> list[Prompt]:
        conversations = [
            [Message.of("user", "hello")],
            [Message.of("user", "What is this?", [picture(), picture(seed=1)])],
            [
                Message.of("system", "Be brief."),
                Message.of("user", "A picture.", [picture(seed=2)]),
                Message.of("assistant", "I see."),
                Message.of("user", "And one more, with a longer question.", [picture()]),
            ],
        ]
        return [MockTokenizer().prompt(messages) for messages in conversations]

    def features(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:
        return dict(enumerate(MockVisionEncoder().encode(prompt.media)))

    def twins(self) -> tuple[Prompt, Prompt]:
        question = "a question that is longer than a block"
        one, other = (
            MockTokenizer().prompt([Message.of("user", question, [picture(seed=seed)])])
            for seed in (3, 4)
        )
        return one, other

    def answer_ids(self) -> list[int]:
        return MockTokenizer().encode("This")


class TestMockEngineWithAtomicImages(TestMockEngine):
    settings = MockEngineSettings(
        capacity_tokens=600, max_sequence_tokens=600, images_are_atomic=True, block_tokens=4
    )


class TestMockEngineWithoutSharing(TestMockEngine):
    settings = MockEngineSettings(
        capacity_tokens=512,
        max_sequence_tokens=512,
        shares_prefixes=False,
        mixes_prefill_and_decode=False,
    )


class TestMockEngineWithAFullCache(TestMockEngine):
    settings = MockEngineSettings(
        capacity_tokens=240, max_sequences=24, max_sequence_tokens=240, block_tokens=4
    )


class TestMockEngineOfManySequences(TestMockEngine):
    settings = MockEngineSettings(
        capacity_tokens=2240, max_sequences=70, max_sequence_tokens=300, block_tokens=4
    )


class TestMockEngineOfSmallChunks(TestMockEngine):
    settings = MockEngineSettings(
        capacity_tokens=2048, max_sequence_tokens=512, max_chunk_tokens=7, block_tokens=8
    )
