"""The engine passes its contract on a graph that gets row lengths from a mask."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vlmkit.errors import ConfigError
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_onnx.build import build_engine
from vlmkit_onnx.settings import EngineSettings
from vlmkit_testing import EngineContract

CONFIG = {"hidden_size": 16, "num_attention_heads": 1, "max_position_embeddings": 60}


class TestMaskedEngine(EngineContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, make_decoder: Callable[..., Path]) -> None:
        make_decoder(tmp_path / "onnx" / "model.onnx")
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
        self.checkpoint = Checkpoint("tiny", tmp_path)

    def make(self) -> Engine:
        settings = EngineSettings(
            cache_tokens=400, max_chunk_tokens=16, max_sequences=6, num_threads=1
        )
        return build_engine(BuildContext("", self.checkpoint, settings))

    def prompts(self) -> list[Prompt]:
        return [Prompt(tuple(range(1, count)), ()) for count in (6, 30, 17)]

    def test_the_engine_runs_the_foreign_graph(self, engine: Engine) -> None:
        assert engine.limits.vocab_size == 32
        assert engine.limits.max_sequence_tokens == 60
        assert engine.limits.prefix_block_tokens == 1
        assert engine.limits.is_batch_invariant

    def test_a_sequence_longer_than_the_graph_supports_is_refused(self) -> None:
        longer = EngineSettings(cache_tokens=400, max_sequence_tokens=61)
        with pytest.raises(ConfigError, match=r"is 61, and 'model\.onnx' is right for 60"):
            build_engine(BuildContext("", self.checkpoint, longer))
