"""The measurement for GPUs runs on a CPU at tiny size; its figures mean nothing there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = Path(__file__).parents[1] / "benchmarks/gpu_day.py"
TINY = ["--device", "cpu", "--size", "tiny", "--steps", "1", "--growth-steps", "10"]
PARTS = ["--parts", "parity", "images", "memory", "decodes", "overlap", "growth"]


@pytest.mark.torch
def test_all_but_the_peers_are_measured_on_a_cpu():
    command = [sys.executable, str(PROGRAM), *TINY, *PARTS, "--families", "gemma2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    [family] = [line for line in done.stdout.splitlines() if line.startswith("| gemma2 |")]
    cells = family.strip("| ").split(" | ")
    assert cells[1] == "bfloat16"
    assert 0.3 < float(cells[3]) < 3, "sdpa rounds as transformers does"
    assert cells[4:] == ["no", "no"], "no kernel for CUDA runs here"
    for row in (
        "| 8 of 40 | no graphs |",
        "| 8 of 40 |  |",
        "| prompt of 100 |",
        "10 steps of one sequence: 0.00",
        "a CPU measures no memory",
        "| encoding 2 |",
        "| answers about 1 new |",
        "| answers about 2 repeated |",
    ):
        assert row in done.stdout


VLLM = """
class SamplingParams:
    def __init__(self, **fields):
        self.fields = fields

class LLM:
    def __init__(self, model, dtype, enable_prefix_caching):
        assert (dtype, enable_prefix_caching) == ("bfloat16", False)

    def generate(self, prompts, params, use_tqdm):
        assert params.fields == {
            "max_tokens": 2, "temperature": 0.0, "ignore_eos": True, "detokenize": False
        }
        print("prompts of", [len(prompt["prompt_token_ids"]) for prompt in prompts])
"""
"""The part of vLLM's interface that is used; vLLM itself needs a GPU."""


@pytest.mark.torch
@pytest.mark.parametrize("has_vllm", [True, False])
def test_peers_that_are_installed_are_columns(tmp_path: Path, has_vllm: bool) -> None:
    if has_vllm:
        (tmp_path / "vllm.py").write_text(VLLM)
    command = [sys.executable, str(PROGRAM), *TINY, "--parts", "peers", "--tokens", "2"]
    command += ["--peers", "vLLM"]  # generate_batch takes too much memory on a CPU
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr[-2000:]
    header = next(line for line in done.stdout.splitlines() if line.startswith("| load |"))
    assert header.startswith("| load | vlmkit-torch |")
    assert ("vLLM" in header) is has_vllm
    if has_vllm:
        assert "prompts of [16]\nprompts of [40]" in done.stdout
    else:
        assert "vLLM is not installed: No module named 'vllm'" in done.stdout
