"""The engine and the encoder keep vlmkit's contracts, on families that differ in mechanism."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import zoo
from parity import runner
from vlmkit.checkpoint import Checkpoint
from vlmkit.prompt import ImageSlot, Prompt
from vlmkit.protocols import Engine, ImageFeatures, VisionEncoder
from vlmkit.registry import BuildContext
from vlmkit.testing import EngineContract, VisionEncoderContract
from vlmkit_onnx.build import build_encoder, build_engine
from vlmkit_onnx.settings import EncoderSettings, EngineSettings

pytestmark = pytest.mark.torch  # which exports the models


class OnFamily:
    """Gives the contracts one family's parts."""

    family = ""
    precision = "fp32"

    @pytest.fixture(autouse=True)
    def _folder(self, one_thread: None, exported: Callable[..., Path]) -> None:
        self.checkpoint = Checkpoint(self.family, exported(self.family, self.precision))

    def all_prompts(self) -> list[Prompt]:
        return runner.prompts(self.family, runner.config_of(self.checkpoint.path))

    def make_encoder(self) -> VisionEncoder:
        return build_encoder(BuildContext("", self.checkpoint, EncoderSettings(num_threads=1)))


class OnEngine(OnFamily, EngineContract):
    def make(self) -> Engine:
        settings = EngineSettings(
            cache_tokens=640, max_chunk_tokens=96, max_sequences=12, num_threads=1
        )
        return build_engine(BuildContext("", self.checkpoint, settings))

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
        token = runner.config_of(self.checkpoint.path).image_token_id
        asked = runner.requests(self.family)[0]
        other = runner.Request(asked.messages, [zoo.picture(99)])
        first, second = (runner.prompt(self.family, r, token) for r in (asked, other))
        return first, second


class TestEngineOfLlama(OnEngine):
    family = "llama"


class TestEngineOfQuantisedLlama(OnEngine):
    family = "llama"
    precision = "w8a8"


class TestEngineOfGptOss(OnEngine):
    family = "gpt_oss"


class TestEngineOfLlava(OnEngine):
    family = "llava"


class TestEngineOfQwen3VL(OnEngine):
    family = "qwen3_vl"


class TestEngineOfGemma3(OnEngine):
    family = "gemma3"


class OnEncoder(OnFamily, VisionEncoderContract):
    def make(self) -> VisionEncoder:
        return self.make_encoder()

    def slots(self) -> list[ImageSlot]:
        slots = [slot for prompt in self.all_prompts() for slot in prompt.images]
        distinct = {slot.digest: slot for slot in slots}
        return list(distinct.values())


class TestEncoderOfLlava(OnEncoder):
    family = "llava"


class TestEncoderOfQwen3VL(OnEncoder):
    family = "qwen3_vl"
