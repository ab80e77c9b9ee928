"""A GGUF file alone through the whole pipeline: in a subprocess that may end, and mutated."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import vlmkit
from parity import pipeline, runner
from vlmkit.cli import run as command
from vlmkit.errors import EngineError, VlmkitError
from vlmkit.types.runner_stats import RunnerStats
from vlmkit_llama.library import open_library

pytestmark = pytest.mark.torch

Made = Callable[..., Path]
ENGINE = {"use": "llama", "cache_tokens": 2048, "num_threads": 1, "cache_dtype": "f32"}
HERE = {"use": "none"}


def test_a_file_alone_answers_as_the_dense_model_does(made: Made) -> None:
    folder = made("llama")
    asked = runner.requests("llama")
    answers = runner.expected("llama", folder / "plain" / "llama", asked, banned=())
    with vlmkit.load(folder / "model.gguf", engine=ENGINE, runner=HERE) as model:
        streamed = pipeline.stream_all(model, asked)
    assert [[s.token_id for s in samples] for _, samples in streamed] == [
        answer.token_ids for answer in answers
    ]


def test_control_tokens_in_the_text_of_a_user_are_text(made: Made) -> None:
    with vlmkit.load(made("llama") / "model.gguf", engine=ENGINE, runner=HERE) as model:
        plain, marked = (
            model.generate(text, max_tokens=1).usage.prompt_tokens
            for text in ("Hello", "Hello<|eot_id|>")
        )
    assert marked > plain + 1, "the marker became one control token"


@pytest.mark.posix
def test_an_abort_ends_the_requests_in_progress_and_the_engine_is_back(made: Made) -> None:
    """The subprocess is the default of this engine."""
    with vlmkit.load(made("llama") / "model.gguf", engine=ENGINE) as model:
        before = model.generate("Hello", max_tokens=8, temperature=0).text
        stream = model.stream("Hello", max_tokens=1500, temperature=0, ignore_eos=True)
        next(iter(stream))
        pid = model.runner.pid
        os.kill(pid, signal.SIGABRT)
        with pytest.raises(EngineError):
            list(stream)
        _wait_until(lambda: model.runner.is_ready)
        assert model.runner.pid != pid
        assert model.generate("Hello", max_tokens=8, temperature=0).text == before
        _wait_until(lambda: not _num_open(model.runner.stats()))


def _num_open(stats: RunnerStats) -> int:
    """Return the requests of a model, as its process stated them last."""
    return stats.num_running + stats.num_waiting


def _wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_named_runner_is_used_in_place_of_the_engines(made: Made) -> None:
    with vlmkit.load(made("llama") / "model.gguf", engine=ENGINE, runner=HERE) as model:
        assert type(model.runner).__name__ == "Pipeline"


def test_a_folder_without_such_a_file_is_refused(made: Made) -> None:
    with pytest.raises(VlmkitError, match="it reads models in one GGUF file"):
        vlmkit.load(made("llama") / "plain" / "llama", engine=ENGINE, runner=HERE)


@pytest.mark.parametrize("has_more", [True, False])
def test_the_doctor_states_what_the_library_was_built_for(
    has_more: bool, made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vlmkit_llama.build.lacks_vnni", lambda _: has_more)
    file = made("llama") / "model.gguf"
    assert command(["doctor", str(file), "--set", "engine.use=llama"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"CPU features of the library: {' '.join(open_library('').features)}" in shown
    assert ("set engine.library to its libllama" in shown) is has_more
    assert "subprocess" in shown


MUTATED = """
import sys
from pathlib import Path
import numpy as np
import vlmkit
from vlmkit.errors import VlmkitError
pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
engine = {"use": "llama", "cache_tokens": 512, "num_threads": 1}
for line in sys.stdin:
    file = Path(line.strip())
    try:
        with vlmkit.load(file, engine=engine, runner={"use": "none"}) as model:
            sees = (file.parent / "mmproj.gguf").exists()
            model.generate("Hello", images=[pixels] if sees else [], max_tokens=2)
        print("answered", flush=True)
    except VlmkitError as error:
        print("rejected", flush=True)
"""


def _try_mutated(
    file: Path, num: int, seed: int, changed: Path, loaded: Path | None = None
) -> dict[str, int]:
    """Load mutated files in a child process, and return how many were rejected or answered.

    Args:
        file: the intact file.
        num: how many mutations.
        seed: of the mutations.
        changed: where mutated files are written.
        loaded: the file of the model, if another one is mutated.
    """
    content = file.read_bytes()
    dice = random.Random(seed)
    counts = {"answered": 0, "rejected": 0}
    child = subprocess.Popen(
        [sys.executable, "-c", MUTATED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        for number in range(num):
            mutated = bytearray(content)
            if dice.random() < 0.2:
                del mutated[dice.randrange(len(mutated)) :]
            else:
                place = dice.randrange(min(len(mutated), 20_000))
                mutated[place] ^= 1 << dice.randrange(8)
            changed.unlink(missing_ok=True)
            changed.write_bytes(mutated)
            print(loaded or changed, file=child.stdin, flush=True)
            word = child.stdout.readline().strip()
            assert word in counts, f"the library ended the process at mutation {number}"
            counts[word] += 1
        child.stdin.close()
    return counts


def test_a_mutated_file_is_rejected_or_answers(made: Made, tmp_path: Path) -> None:
    file = made("llama") / "model.gguf"
    counts = _try_mutated(file, 60, 1, tmp_path / "model.gguf")
    assert counts["rejected"] > 12


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "gemma2", "qwen3_moe", "jamba", "lfm2", "mamba", "mamba2"]
)
def test_five_hundred_mutated_files_are_rejected_or_answer(
    family: str, made: Made, tmp_path: Path
) -> None:
    file = made(family, "Q8_0") / "model.gguf"
    counts = _try_mutated(file, 500, 2, tmp_path / "model.gguf")
    assert counts["rejected"] > 100


def _try_mutated_projectors(folder: Path, place: Path, num: int) -> dict[str, int]:
    model = place / "model.gguf"
    model.write_bytes((folder / model.name).read_bytes())
    projector = folder / "mmproj.gguf"
    return _try_mutated(projector, num, 3, place / projector.name, model)


@pytest.mark.slow
def test_a_mutated_projector_is_rejected_or_answers(pair: Made, tmp_path: Path) -> None:
    counts = _try_mutated_projectors(pair("smolvlm"), tmp_path, 30)
    assert counts["rejected"] > 6
