"""The memory that `vlmkit plan` states is about what a server of the packaged model takes.

`benchmarks/plan_memory.py` compares them for more models, which takes an hour.
"""

import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
PROGRAM = Path(__file__).parents[1] / "benchmarks/plan_memory.py"
sys.path.append(str(PROGRAM.parent))

import plan_memory  # noqa: E402

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux states peaks of processes"),
]
NUM, CONTEXT = 2, 512


def test_the_peak_of_the_packaged_model_is_planned_within_a_sixth() -> None:
    settings = ["engine.use=onnx", "media_encoder.use=onnx", f"engine.cache_tokens={NUM * CONTEXT}"]
    load = plan_memory.Load("demo", settings, CONTEXT, NUM, (128, 96))
    (planned,) = (each["num_bytes"] for each in plan_memory.planned(load)["totals"])
    peaks, longest = plan_memory.measured(load)
    assert len(peaks) == 2, "the server and its constraint worker"
    assert 0.8 * CONTEXT < longest <= CONTEXT
    assert planned == pytest.approx(sum(peaks.values()), rel=1 / 6)
