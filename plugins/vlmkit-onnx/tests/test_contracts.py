"""Engine and encoder pass the contracts, for families with different mechanisms."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")  # exports the models

from parity.contracts import EncoderOnFamily, EngineOnFamily, OnFamily
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.build import build_encoder, build_engine
from vlmkit_onnx.settings import EncoderSettings, EngineSettings

pytestmark = pytest.mark.torch


class OnOnnx(OnFamily):
    precision = "fp32"

    @pytest.fixture(autouse=True)
    def _folder(self, one_thread: None, exported: Callable[..., Path]) -> None:
        self.checkpoint = Checkpoint(self.family, exported(self.family, self.precision))

    def make_encoder(self) -> MediaEncoder:
        return build_encoder(BuildContext("", self.checkpoint, EncoderSettings(num_threads=1)))


class OnEngine(OnOnnx, EngineOnFamily):
    def make(self) -> Engine:
        settings = EngineSettings(
            cache_tokens=640,
            max_chunk_tokens=96,
            max_sequence_tokens=200,
            max_sequences=12,
            num_threads=1,
        )
        return build_engine(BuildContext("", self.checkpoint, settings))


class TestEngineOfLlama(OnEngine):
    family = "llama"


class TestEngineOfQuantisedLlama(OnEngine):
    family = "llama"
    precision = "w8a8"


@pytest.mark.slow
class TestEngineOfGptOss(OnEngine):
    family = "gpt_oss"


@pytest.mark.slow
class TestEngineOfLlava(OnEngine):
    family = "llava"


class TestEngineOfQwen3VL(OnEngine):
    family = "qwen3_vl"


@pytest.mark.slow
class TestEngineOfGemma3(OnEngine):
    family = "gemma3"


class TestEncoderOfLlava(OnOnnx, EncoderOnFamily):
    family = "llava"
    sizes_differ = False


class TestEncoderOfQwen3VL(OnOnnx, EncoderOnFamily):
    family = "qwen3_vl"
