"""``vlmkit doctor`` and ``vlmkit plan`` describe quantized weights before any is read."""

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import vlmkit
from vlmkit.cli import run as command
from vlmkit.interfaces.memory_plan import PlannedLoad
from vlmkit.kit import memory
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.plugins.registry import BuildContext

torch = pytest.importorskip("torch")
pytest.importorskip("vlmkit_torch")

from checkpoint_layouts.quantized import in_fp8, in_mxfp4  # noqa: E402 - they need torch
from quantized_checkpoints import (  # noqa: E402
    awq,
    bitsandbytes,
    compressed,
    gguf_folders,
    gptq,
)
from vlmkit_quantized import gguf_weights  # noqa: E402
from vlmkit_torch.loading.reading import read_config, read_model  # noqa: E402
from vlmkit_torch.memory_plan import plan_engine  # noqa: E402
from vlmkit_torch.settings import EngineSettings  # noqa: E402
from vlmkit_torch.support import sizing  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

Saved = Callable[[str], Path]
Out = pytest.CaptureFixture[str]
TORCH = ("--set", "engine.use=torch", "--set", "engine.cache_tokens=256")


def changed_by(change: Callable[[Path], object], source: Path, place: Path) -> Path:
    folder = place / "changed"
    shutil.copytree(source, folder)
    change(folder)
    return folder


MADE: dict[str, tuple[str, Callable[[Path, Path], Path], str]] = {
    "gptq": (
        "llama",
        lambda source, place: gptq.make(source, place).folder,
        "gptq: 21 of 23 matrices quantized (21 of 4 bits), 2 dense (1 embedding, 1 head)",
    ),
    "awq": (
        "llama",
        lambda source, place: awq.make(source, place).folder,
        "awq: 21 of 23 matrices quantized (21 of 4 bits), 2 dense (",
    ),
    "nf4": (
        "llama",
        lambda source, place: bitsandbytes.make(source, place).folder,
        "bitsandbytes: 21 of 23 matrices quantized (21 of 4 bits), 2 dense (",
    ),
    "int8": (
        "llama",
        lambda source, place: bitsandbytes.make_eight(source, place).folder,
        "bitsandbytes: 21 of 23 matrices quantized (21 of 8 bits), 2 dense (",
    ),
    "nvfp4": (
        "llama",
        lambda source, place: compressed.make(source, place, scheme="nvfp4").folder,
        "compressed-tensors: 21 of 23 matrices quantized (21 of 4 bits), 2 dense (",
    ),
    "fp8": (
        "llama",
        partial(changed_by, in_fp8),
        "fp8: 21 of 23 matrices quantized (21 of 8 bits), 2 dense (1 embedding, 1 listed as plain)",
    ),
    "mxfp4": (
        "gpt_oss",
        partial(changed_by, in_mxfp4),
        "mxfp4: 8 of 30 matrices quantized (8 of 4 bits), 22 dense (",
    ),
    "gguf": (
        "qwen3_moe",
        lambda source, place: gguf_folders.make(source, place, "Q4_0").folder,
        "gguf: 23 of 26 matrices quantized (23 of Q4_0), 3 dense (3 stored as F16)",
    ),
}

MEASURED = """
import sys
from pathlib import Path
import gguf, numpy as np, torch
from vlmkit_quantized.gguf_file import read_header
from vlmkit_torch.support.sizing import EXPANDING_BYTES
kind = gguf.GGMLQuantizationType.KIND
rows, columns = 4096, 4096
weights, octets = gguf.GGML_QUANT_SIZES[kind]
path = Path(sys.argv[1]) / "a.gguf"
writer = gguf.GGUFWriter(path, "llama")
writer.add_tensor("w", np.zeros((rows, columns // weights * octets), np.uint8), raw_dtype=kind)
writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file()
writer.close()
import tracemalloc
tensor = read_header(path).tensors["w"]
tracemalloc.start()
dense = tensor.floats()
print(tracemalloc.get_traced_memory()[1], EXPANDING_BYTES * rows * columns)
"""
"""Prints the peak of one expanded weight, and what is counted for it."""


def reported(out: Out, *arguments: str) -> dict[str, Any]:
    assert command([*arguments, "--json", *TORCH]) == 0
    found: dict[str, Any] = json.loads(out.readouterr().out)
    return found


@pytest.mark.parametrize(("family", "make", "wanted"), MADE.values(), ids=MADE)
def test_doctor_and_plan_say_what_is_quantized_and_what_it_takes_expanded(
    family: str,
    make: Callable[[Path, Path], Path],
    wanted: str,
    saved: Saved,
    tmp_path: Path,
    capsys: Out,
) -> None:
    folder = make(saved(family), tmp_path)
    doctor = reported(capsys, "doctor", str(folder))

    (engine,) = (v for v in doctor["verdicts"] if v["is_chosen"] and v["component"] == "engine")
    context = BuildContext("m", Checkpoint("m", folder), settings=EngineSettings(cache_tokens=256))
    (weights, *_) = plan_engine(context, PlannedLoad(context_tokens=64)).needs
    for text in (engine["how"], weights.detail):
        assert wanted in text
        assert "; expanded to float32: " in text
        assert text.count("MiB") == 2, text
    model = read_model(context.files, read_config(context.files), torch.float32)
    assert weights.num_bytes == 4 * sum(weight.numel() for weight in model.parameters())


@pytest.mark.slow
def test_the_plan_command_says_the_same(saved: Saved, tmp_path: Path, capsys: Out) -> None:
    folder = gguf_folders.make(saved("qwen3_moe"), tmp_path, "Q4_0").folder
    plan = reported(capsys, "plan", str(folder), "--context", "64")
    (weights,) = (need for need in plan["needs"] if need["name"] == "weights")
    assert "gguf: 23 of 26 matrices quantized (23 of Q4_0)" in weights["detail"]


def test_a_model_is_refused_if_it_fits_only_after_it_was_read(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gguf_folders.make(saved("qwen3_moe"), tmp_path, "Q4_0").folder
    checkpoint = Checkpoint("m", folder)
    monkeypatch.setattr(sizing, "WORKING_BYTES", 0)
    monkeypatch.setattr(sizing, "MIN_CACHE_BYTES", 0)
    peak = sizing.loading_bytes(checkpoint, "bfloat16")
    assert peak > sizing.weight_bytes(checkpoint, "bfloat16")
    monkeypatch.setattr(memory, "available_bytes", lambda: peak)
    monkeypatch.setattr(sizing, "may_have_gpu", lambda: False)
    assert sizing.objection(checkpoint) is None
    monkeypatch.setattr(memory, "available_bytes", lambda: peak - 1)
    assert "does not fit" in str(sizing.objection(checkpoint))


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "F16"])
def test_reading_takes_at_most_what_is_reported(kind: str, tmp_path: Path) -> None:
    code = MEASURED.replace("KIND", kind)
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    peak, most = map(int, found.stdout.split())
    assert most / 4 < peak <= most


def test_the_header_of_a_gguf_file_is_read_once_for_a_load(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gguf_folders.make(saved("llama"), tmp_path).folder
    times: list[Path] = []
    read = gguf_weights.read_header

    def counted(path: Path, **how: Any) -> Any:
        times.append(path)
        return read(path, **how)

    monkeypatch.setattr(gguf_weights, "read_header", counted)
    with vlmkit.load(folder, engine={"use": "torch", "cache_tokens": 256}):
        pass
    assert times == [folder / gguf_folders.FILE]


def test_what_was_found_in_a_checkpoint_stays_in_this_process(tmp_path: Path) -> None:
    checkpoint = Checkpoint("m", tmp_path)
    found = checkpoint.once("x", object)
    assert checkpoint.once("x", object) is found
    copy = pickle.loads(pickle.dumps(checkpoint))
    assert copy == checkpoint
    assert copy.once("x", lambda: "other") == "other"
