"""The memory that is planned is what an engine takes, as Linux counts it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vlmkit.cli import run as command
from vlmkit.interfaces.memory_plan import PlannedLoad
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_llama.memory_plan import plan_engine
from vlmkit_llama.settings import EngineSettings
from vlmkit_quantized.gguf_alone import derived

pytestmark = pytest.mark.torch

Made = Callable[..., Path]
SIZES = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
STATES = {"hidden_size": 1024, "num_heads": 32, "head_dim": 64, "state_size": 64}
"""Sizes of a model with recurrent layers."""
SETTINGS = {"cache_tokens": 8192, "num_threads": 1, "max_sequences": 8, "max_chunk_tokens": 512}
CLOSE = 0.15

STEPS = """
import json, re, sys
from pathlib import Path
from vlmkit.interfaces.prompt import Prompt
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext
from vlmkit_llama.build import build_engine
from vlmkit_llama.library import open_library
from vlmkit_llama.files import checked_files
from vlmkit_llama.settings import EngineSettings
from vlmkit_quantized.gguf_alone import derived
from vlmkit_testing.contracts.engine_host import EngineHost

def resident():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\\s+(\\d+)", status)[1]) * 1024

file, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
checkpoint = derived(Checkpoint("m", file.parent, file=file))
checked_files(checkpoint)
open_library("")
before = resident()
engine = build_engine(BuildContext("", checkpoint, EngineSettings(**settings)))
host, sequences = EngineHost(engine), []
for number in range(8):
    sequence = host.sequence(Prompt(tuple(range(3, 300)) * 3))
    assert host.admit(sequence) is not None
    host.prefill(sequence, chunk_tokens=512)
    sequences.append(sequence)
for step in range(4):
    assert all(engine.reserve(sequence, len(sequence) + 1) for sequence in sequences)
    host.step([host.next_item(sequence, 7) for sequence in sequences])
for sequence in sequences:
    engine.release(sequence)
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux states what is resident")
@pytest.mark.parametrize(
    ("family", "kind", "more"),
    [
        ("llama", "F16", {}),
        pytest.param("llama", "Q8_0", {"cache_dtype": "f32"}, marks=pytest.mark.slow),
        pytest.param("llama", "Q4_0", {}, marks=pytest.mark.slow),
        pytest.param("mamba2", "F16", {}, marks=pytest.mark.slow),
    ],
)
def test_the_memory_of_an_engine_is_planned(
    family: str, kind: str, more: dict[str, str], made: Made
) -> None:
    sizes = STATES if family == "mamba2" else SIZES
    file, settings = made(family, kind, **sizes) / "model.gguf", SETTINGS | more
    done = subprocess.run(
        [sys.executable, "-c", STEPS, str(file), json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    checkpoint = derived(Checkpoint("m", file.parent, file=file))
    context = BuildContext("", checkpoint, EngineSettings(**settings))
    plan = plan_engine(context, PlannedLoad(num_sequences=8))
    planned, taken = sum(need.num_bytes for need in plan.needs), int(done.stdout)
    print({need.name: need.num_bytes for need in plan.needs}, planned, taken, planned / taken)
    assert planned == pytest.approx(taken, rel=CLOSE)


@pytest.mark.slow
def test_the_command_plans_a_file_with_images(
    pair: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pair("smolvlm") / "model.gguf"
    settings = ["--set", "engine.use=llama", "--set", "engine.cache_tokens=1024"]
    assert command(["plan", str(file), *settings, "--image", "60x40", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert not report["unplanned"]
    needs = {(need["component"], need["name"]): need["num_bytes"] for need in report["needs"]}
    tensors = sum(needs[component, "weights"] for component in ("engine", "media_encoder"))
    files = sum((file.parent / name).stat().st_size for name in ("model.gguf", "mmproj.gguf"))
    assert tensors == pytest.approx(files, rel=0.1)
    assert needs["engine", "KV cache"] > 0
    assert report["limits"]["capacity_tokens"] == 1024
