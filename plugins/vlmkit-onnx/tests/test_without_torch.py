"""Engine and encoder do not import torch or transformers, even if they are installed."""

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")  # exports the model

from parity import runner

pytestmark = pytest.mark.torch
PROGRAM = """
import pickle, sys
from pathlib import Path
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_onnx.build import build_encoder, build_engine
from vlmkit_onnx.settings import EncoderSettings, EngineSettings

files, prompt = Checkpoint("llava", Path(sys.argv[1])), pickle.load(sys.stdin.buffer)
encoder = build_encoder(BuildContext("", files, EncoderSettings(num_threads=1)))
engine = build_engine(BuildContext("", files, EngineSettings(num_threads=1, cache_tokens=640)))
host = EngineHost(engine, lambda prompt: dict(enumerate(encoder.encode(prompt.media))))
row = host.last_logits(prompt)
heavy = {"torch", "transformers", "onnx", "onnxscript", "onnx_ir"} & set(sys.modules)
print(row.argmax(), sorted(heavy))
"""

WHOLE = """
import sys, PIL.Image, vlmkit, vlmkit_server.run
with vlmkit.load(sys.argv[1], engine={"num_threads": 1, "cache_tokens": 640}) as model:
    image = PIL.Image.new("RGB", (61, 40), (9, 99, 199))
    answer = model.generate("What is it?", images=[image], max_tokens=2)
print(answer.usage.prompt_tokens, sorted({"torch", "transformers"} & set(sys.modules)))
"""


def test_a_model_with_a_saved_text_side_answers_about_images_without_transformers(
    one_thread: None, exported: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    folder = tmp_path / "model"
    shutil.copytree(exported("llava"), folder)
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def answer_of() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", WHOLE, str(folder)],
            env=environ,
            check=True,
            capture_output=True,
        )
        return done.stdout.decode().split(maxsplit=1)

    num_tokens, imported = answer_of()
    assert "transformers" in imported  # the folder has no saved text side yet
    assert answer_of() == [num_tokens, "[]\n"]


def test_answers_about_images_import_neither_torch_nor_transformers(
    one_thread: None, exported: Callable[..., Path]
) -> None:
    folder = exported("llava")
    answer_of = runner.prompts("llava", runner.config_of(folder))[0]
    assert answer_of.media
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        input=pickle.dumps(answer_of),
        check=True,
        capture_output=True,
    )
    token_id, imported = done.stdout.decode().split(maxsplit=1)
    assert int(token_id) >= 0
    assert imported.strip() == "[]"
