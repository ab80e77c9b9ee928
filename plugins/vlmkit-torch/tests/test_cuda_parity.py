"""On a CUDA device the engine and the encoder answer as on the CPU.

Each test runs on a real device (``gpu``) and on a simulated one, see ``tests/pretend``. The
simulation checks where arrays are, but has no kernels and no other rounding. A few of its tests
always run; the others are ``slow``.
"""

from collections.abc import Callable, Iterator, Sequence as Seq
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from parity import hybrid, runner
from pretend.steps import logits_of
from pretend.torch_cuda import pretended_cuda
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_torch.engine.torch_engine import build
from vlmkit_torch.settings import EngineSettings

pytestmark = pytest.mark.torch

Load = Callable[..., Any]
Rows = list[np.ndarray]
ALWAYS = ("llama", "qwen2_5_vl")  # quick families; one has images
TOLERANCE = {"played": 1e-5, "real": 2e-3}
HALF_TOLERANCE = {"played": 1e-5, "real": 0.1}  # of the largest logit


def on_devices(*names: str) -> Any:
    """Return a mark that runs a test for families on a simulated device and on a real one."""
    cases = []
    for name in names:
        marks = () if name in ALWAYS else pytest.mark.slow
        cases.append(pytest.param("played", name, marks=marks, id=f"played-{name}"))
        cases.append(pytest.param("real", name, marks=pytest.mark.gpu, id=f"real-{name}"))
    return pytest.mark.parametrize(("device", "name"), cases)


@contextmanager
def cuda(device: str) -> Iterator[None]:
    """Provide a simulated or real CUDA device."""
    if device == "played":
        with pretended_cuda() as played:
            yield
        assert played.kernels, "the device was used"
    elif torch.cuda.is_available():
        yield
    else:
        pytest.skip("no CUDA device")


def answered(load: Load, name: str, prompts: Seq[Prompt], **settings: Any) -> Rows:
    """Return the logits of the answers of a family to prompts."""
    engine, encoder = load(name, **settings)

    def features(prompt: Prompt) -> dict[int, Any]:
        return dict(enumerate(encoder.encode(prompt.media))) if prompt.media else {}

    return logits_of(engine, prompts, features, chunk_tokens=settings.get("max_chunk_tokens", 13))


def agree(found: Rows, expected: Rows, tolerance: float) -> None:
    """Require that logits differ by at most a share of the largest."""
    largest = max(1.0, *(np.abs(row).max() for row in expected))
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=tolerance * largest, rtol=0)


@on_devices(*zoo.NAMES_VISION, "mllama", *zoo.NAMES_TEXT)
def test_a_family_answers_as_on_the_cpu(
    device: str, name: str, load: Load, saved: Callable[[str], Path]
) -> None:
    prompts = runner.prompts(name, runner.config_of(saved(name)))
    expected = answered(load, name, prompts)

    with cuda(device):
        agree(answered(load, name, prompts, device="cuda"), expected, TOLERANCE[device])


@on_devices("lfm2", "qwen3_next", "bamba")
def test_recurrent_layers_answer_as_on_the_cpu(device: str, name: str, tmp_path: Path) -> None:
    files = Checkpoint(name, hybrid.save(name, tmp_path))

    def rows(place: str) -> Rows:
        few = EngineSettings(cache_tokens=640, block_tokens=4, max_sequences=12, device=place)
        return logits_of(build(BuildContext("", files, few, {})), hybrid.prompts()[:3])

    expected = rows("cpu")
    with cuda(device):
        agree(rows("cuda"), expected, TOLERANCE[device])


@on_devices("qwen2_5_vl", "llava", "qwen3_vl", "gemma3", "mllama", "gpt_oss", "gemma2")
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_half_precision_answers_as_on_the_cpu(
    device: str, name: str, dtype: str, load: Load, saved: Callable[[str], Path]
) -> None:
    prompts = runner.prompts(name, runner.config_of(saved(name)))[:2]
    expected = answered(load, name, prompts, dtype=dtype)

    with cuda(device):
        # Torch's kernel for CPUs rounds other sums where a mask hides padding.
        graphs = {"cuda_graphs": device == "real"}
        found = answered(load, name, prompts, dtype=dtype, device="cuda", **graphs)
        agree(found, expected, HALF_TOLERANCE[device])


@on_devices("llama", "gpt_oss", "gemma3_text")
def test_long_and_ragged_contexts_answer_as_on_the_cpu(
    device: str, name: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vlmkit_torch.devices.hardware.CALL_BYTES_OF_GPU", 2**14
    )  # batches, long rows
    monkeypatch.setattr("vlmkit_torch.attention.sdpa.MAX_SCORES", 2**16)  # pieces of chunks
    lengths = (1400, 3, 700, 40, 17, 1, 90)
    prompts = [Prompt(tuple(20 + (7 * i) % 300 for i in range(count))) for count in lengths]
    room: dict[str, Any] = {"cache_tokens": 3200, "max_chunk_tokens": 512}
    expected = answered(load, name, prompts, **room)

    with cuda(device):
        found = answered(load, name, prompts, device="cuda", **room)
        agree(found, expected, TOLERANCE[device])


@on_devices("qwen3", "mixtral")
def test_a_large_batch_answers_as_on_the_cpu(device: str, name: str, load: Load) -> None:
    prompts = [Prompt(tuple(range(20 + i, 24 + 2 * i))) for i in range(24)]
    expected = answered(load, name, prompts, cache_tokens=1600)

    with cuda(device):
        found = answered(load, name, prompts, device="cuda", cache_tokens=1600)
        agree(found, expected, TOLERANCE[device])
