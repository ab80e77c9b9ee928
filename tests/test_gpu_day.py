"""The measurement for GPUs runs on a CPU at tiny size; its figures mean nothing there."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = Path(__file__).parents[1] / "benchmarks/gpu_day.py"
TINY = ["--device", "cpu", "--size", "tiny", "--steps", "1", "--growth-steps", "10"]
PARTS = ["--parts", "parity", "memory", "decodes", "overlap", "growth"]


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
    ):
        assert row in done.stdout
