"""Engine and encoder pass the contracts, for families with different mechanisms."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity import hybrid
from parity.contracts import EncoderOnFamily, EngineOnFamily, OnFamily
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_testing import EngineContract
from vlmkit_torch.engine import torch_engine
from vlmkit_torch.settings import EncoderSettings, EngineSettings
from vlmkit_torch.vision import encoder

pytestmark = pytest.mark.torch


class OnTorch(OnFamily):
    @pytest.fixture(autouse=True)
    def _folder(self, saved: Callable[[str], Path]) -> None:
        self.checkpoint = Checkpoint(self.family, saved(self.family))

    def make_encoder(self) -> MediaEncoder:
        return encoder.build(BuildContext("", self.checkpoint, EncoderSettings(), {}))


class OnEngine(OnTorch, EngineOnFamily):
    cache_dtype: Any = "auto"

    def make(self) -> Engine:
        settings = EngineSettings(
            cache_tokens=640,
            block_tokens=4,
            max_chunk_tokens=96,
            max_sequence_tokens=200,
            max_sequences=12,
            cache_dtype=self.cache_dtype,
        )
        return torch_engine.build(BuildContext("", self.checkpoint, settings, {}))


class TestEngineOfLlama(OnEngine):
    family = "llama"


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


class TestEngineOfMllama(OnEngine):
    family = "mllama"


@pytest.mark.usefixtures("in_double")
class OnInt8Engine(OnEngine):
    """The contract for a cache of 8 bits; chunks, drafts and neighbours have no effect, either."""

    cache_dtype = "int8"


class TestInt8EngineOfLlama(OnInt8Engine):
    family = "llama"


@pytest.mark.slow
class TestInt8EngineOfGemma3(OnInt8Engine):
    family = "gemma3"


@pytest.mark.slow
class TestInt8EngineOfMllama(OnInt8Engine):
    family = "mllama"


class OnHybridEngine(EngineContract):
    """The contract for recurrent layers, which share nothing and keep a state for each sequence."""

    family = ""
    most_cuts = 7
    most_tokens = 200
    num_walk_steps = 80

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.checkpoint = Checkpoint(self.family, hybrid.save(self.family, tmp_path))

    def make(self) -> Engine:
        settings = EngineSettings(
            cache_tokens=640, block_tokens=4, max_sequence_tokens=200, max_sequences=12
        )
        return torch_engine.build(BuildContext("", self.checkpoint, settings, {}))

    def prompts(self) -> list[Prompt]:
        return hybrid.prompts()[:3]


class TestEngineOfLfm2(OnHybridEngine):
    family = "lfm2"


@pytest.mark.slow
class TestEngineOfQwen3Next(OnHybridEngine):
    atol = 5e-4  # in float32, chunks are summed in another order than single tokens
    family = "qwen3_next"


class TestEncoderOfLlava(OnTorch, EncoderOnFamily):
    family = "llava"
    sizes_differ = False


@pytest.mark.slow
class TestEncoderOfLlavaNext(OnTorch, EncoderOnFamily):
    family = "llava_next"


@pytest.mark.slow
class TestEncoderOfIdefics3(OnTorch, EncoderOnFamily):
    family = "idefics3"


class TestEncoderOfQwen3VL(OnTorch, EncoderOnFamily):
    family = "qwen3_vl"


@pytest.mark.slow
class TestEncoderOfMistral3(OnTorch, EncoderOnFamily):
    family = "mistral3"


class TestEncoderOfMllama(OnTorch, EncoderOnFamily):
    family = "mllama"
    sizes_differ = False
