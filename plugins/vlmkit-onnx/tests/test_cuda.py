"""The engine on a CUDA device, as far as that shows without one: see ``tests/pretend``."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")  # which exports the models

from pretend import onnx_cuda
from vlmkit.checkpoint import Checkpoint
from vlmkit.errors import CheckpointError
from vlmkit.prompt import Prompt
from vlmkit.registry import BuildContext
from vlmkit.testing.engine_host import EngineHost
from vlmkit_onnx.build import build_engine
from vlmkit_onnx.decoder import Tokens
from vlmkit_onnx.settings import EngineSettings
from vlmkit_onnx.slots_decoder import SlotsDecoder

pytestmark = pytest.mark.torch

PROMPTS = tuple(Prompt(tuple(range(20 + i, 50 + 3 * i))) for i in range(3))
Open = Callable[..., Any]


@pytest.fixture
def open_engine(
    one_thread: None, exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Return a function that opens a family in half precision, on the pretended device."""
    made = []

    def build(name: str = "llama", device: str = "cuda", **settings: Any) -> Any:
        if device != "cpu":
            onnx_cuda.install(monkeypatch)
        few = {"cache_tokens": 400, "max_sequences": 4, "num_threads": 1, **settings}
        files = Checkpoint(name, exported(name, "fp16"))
        made.append(build_engine(BuildContext("", files, EngineSettings(device=device, **few))))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def rows_of(engine: Any) -> list[np.ndarray]:
    """Return the logits of some steps in which three answers grow together."""
    host = EngineHost(engine)
    sequences = [host.sequence(prompt) for prompt in PROMPTS]
    steps = []
    for sequence in sequences:
        host.admit(sequence)
        steps.append(host.prefill(sequence).copy())
    for token in range(30, 35):
        items = [host.next_item(sequence, token) for sequence in sequences]
        steps.append(host.step(items).copy())
    return steps


def test_a_device_that_copies_inputs_when_they_are_bound_answers_as_the_cpu(
    open_engine: Open,
) -> None:
    expected = rows_of(open_engine(device="cpu"))

    for found, wanted in zip(rows_of(open_engine()), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_decoder_of_ours_that_computes_otherwise_here_is_refused(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = SlotsDecoder.decode

    def forgetful(decoder: SlotsDecoder, slot: int, starts: np.ndarray, tokens: Tokens) -> Any:
        return decode(decoder, slot, np.zeros_like(starts), tokens)

    monkeypatch.setattr(SlotsDecoder, "decode", forgetful)
    with pytest.raises(CheckpointError, match="gives other logits for tokens in a batch than"):
        open_engine(device="cpu")
