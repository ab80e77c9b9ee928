"""The engine and the encoder keep vlmkit's contracts, on families that differ in mechanism."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import zoo
from parity import hybrid, runner
from vlmkit.checkpoint import Checkpoint
from vlmkit.prompt import ImageSlot, Prompt
from vlmkit.protocols import Engine, ImageFeatures, VisionEncoder
from vlmkit.registry import BuildContext
from vlmkit.testing import EngineContract, VisionEncoderContract
from vlmkit_torch import encoder, engine
from vlmkit_torch.settings import EncoderSettings, EngineSettings

pytestmark = pytest.mark.torch


class OnFamily:
    """Gives the contracts one family's parts."""

    family = ""

    @pytest.fixture(autouse=True)
    def _folder(self, saved: Callable[[str], Path]) -> None:
        self.checkpoint = Checkpoint(self.family, saved(self.family))

    def all_prompts(self) -> list[Prompt]:
        config = runner.config_of(self.checkpoint.path)
        return runner.prompts(self.family, config)

    def make_encoder(self) -> VisionEncoder:
        return encoder.build(BuildContext("", self.checkpoint, EncoderSettings(), {}))


class OnEngine(OnFamily, EngineContract):
    def make(self) -> Engine:
        settings = EngineSettings(
            cache_tokens=640, block_tokens=4, max_chunk_tokens=96, max_sequences=12
        )
        return engine.build(BuildContext("", self.checkpoint, settings, {}))

    def prompts(self) -> list[Prompt]:
        return self.all_prompts()[:3]

    def answer_ids(self) -> list[int]:
        return [40, 50, 60, 70]

    def features(self, prompt: Prompt) -> Mapping[int, ImageFeatures]:
        made = self.make_encoder().encode(prompt.images) if prompt.images else []
        return dict(enumerate(made))

    def twins(self) -> tuple[Prompt, Prompt] | None:
        if self.family in zoo.NAMES_TEXT:
            return None
        config = runner.config_of(self.checkpoint.path)
        asked = runner.requests(self.family)[0]
        other = runner.Request(asked.messages, [zoo.picture(99)])
        first, second = (
            runner.prompt(self.family, request, config.image_token_id) for request in (asked, other)
        )
        return first, second


class TestEngineOfLlama(OnEngine):
    family = "llama"


class TestEngineOfGptOss(OnEngine):
    family = "gpt_oss"


class TestEngineOfLlava(OnEngine):
    family = "llava"


class TestEngineOfQwen3VL(OnEngine):
    family = "qwen3_vl"


class TestEngineOfGemma3(OnEngine):
    family = "gemma3"


class OnHybridEngine(EngineContract):
    """Recurrent layers: nothing is shared, a state is kept for each sequence."""

    family = ""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.checkpoint = Checkpoint(self.family, hybrid.save(self.family, tmp_path))

    def make(self) -> Engine:
        settings = EngineSettings(cache_tokens=640, block_tokens=4, max_sequences=12)
        return engine.build(BuildContext("", self.checkpoint, settings, {}))

    def prompts(self) -> list[Prompt]:
        return hybrid.prompts()[:3]


class TestEngineOfLfm2(OnHybridEngine):
    family = "lfm2"


class TestEngineOfQwen3Next(OnHybridEngine):
    family = "qwen3_next"


class OnEncoder(OnFamily, VisionEncoderContract):
    def make(self) -> VisionEncoder:
        return self.make_encoder()

    def slots(self) -> list[ImageSlot]:
        slots = [slot for prompt in self.all_prompts() for slot in prompt.images]
        distinct = {slot.digest: slot for slot in slots}
        return list(distinct.values())


class TestEncoderOfLlava(OnEncoder):
    family = "llava"


class TestEncoderOfLlavaNext(OnEncoder):
    family = "llava_next"


class TestEncoderOfIdefics3(OnEncoder):
    family = "idefics3"


class TestEncoderOfQwen3VL(OnEncoder):
    family = "qwen3_vl"


class TestEncoderOfMistral3(OnEncoder):
    family = "mistral3"
