"""Where a model comes from: a file in several pieces, and a file of a hub."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import vlmkit
import zoo
from quantized_checkpoints import gguf_folders
from stub_hub import stub_hub
from vlmkit.errors import CheckpointError

pytestmark = pytest.mark.torch

Folders = Callable[..., Path]
ENGINE = {"use": "llama", "cache_tokens": 1200, "num_threads": 1, "cache_dtype": "f32"}
HERE = {"use": "none"}
NUM_PIECES = 3


def answer(file: Path) -> str:
    with vlmkit.load(file, engine=ENGINE, runner=HERE) as model:
        return model.generate("Hello", max_tokens=8, temperature=0).text


@pytest.fixture
def pieces(made: Folders, tmp_path: Path) -> list[Path]:
    found = gguf_folders.in_pieces(made("llama") / "model.gguf", tmp_path, NUM_PIECES)
    assert len(found) == NUM_PIECES
    return found


def test_a_file_in_pieces_answers_as_the_whole_one(made: Folders, pieces: list[Path]) -> None:
    assert answer(pieces[0]) == answer(made("llama") / "model.gguf")


def test_a_folder_with_a_file_in_pieces_is_read(
    made: Folders, pieces: list[Path], tmp_path: Path
) -> None:
    folder = made("llama") / "quantized" / "llama"
    for file in folder.iterdir():
        shutil.copy(file, tmp_path)
    assert answer(tmp_path) == answer(pieces[0])


def test_a_file_that_lacks_a_piece_is_refused_by_its_name(pieces: list[Path]) -> None:
    pieces[1].unlink()
    with pytest.raises(CheckpointError, match=r"and 'model-00002-of-00003.gguf' is not beside it"):
        answer(pieces[0])


def test_a_later_piece_is_refused(pieces: list[Path]) -> None:
    with pytest.raises(CheckpointError, match="is one of several parts: name the first one"):
        answer(pieces[2])


@pytest.mark.posix
def test_a_tag_of_a_hub_fetches_its_pieces_and_one_projector_and_nothing_else(
    pair: Folders, tmp_path: Path
) -> None:
    folder, picture = pair("smolvlm"), tmp_path / "picture.png"
    zoo.picture(1).save(picture)
    source = shutil.copy(folder / "model.gguf", tmp_path / "TINY-Q8_0.gguf")
    found = gguf_folders.in_pieces(Path(source), tmp_path, NUM_PIECES)
    others = ("TINY-F16.gguf", "TINY-Q4_0-00001-of-00002.gguf", "TINY-Q4_0-00002-of-00002.gguf")
    files = {
        **{file.name: file.read_bytes() for file in found},
        **{
            f"mmproj-{kind}.gguf": (pair("smolvlm", tower=kind) / "mmproj.gguf").read_bytes()
            for kind in ("F32", "F16")
        },
        **dict.fromkeys(others, b"GGUF"),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [sys.executable, "-m", "vlmkit", "ask", "org/name:Q8_0", "What?"]
    command += ["--image", str(picture), "--temperature", "0", "--max-tokens", "3"]
    for setting in ("engine.use=llama", "engine.cache_tokens=1200", "engine.num_threads=1"):
        command += ["--set", setting]
    with stub_hub() as hub:
        hub.add("org/name", main=files)
        environ = {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
        for _ in range(2):
            done = subprocess.run(
                command, env=environ, capture_output=True, text=True, timeout=600, check=False
            )
            assert "[stopped at the limit of 3 tokens]" in done.stdout + done.stderr, done
        assert hub.downloaded() == {*(file.name for file in found), "mmproj-F16.gguf"}
        command += ["--set", "projector=mmproj-F32.gguf"]
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=600, check=False
        )
        assert "[stopped at the limit of 3 tokens]" in done.stdout + done.stderr, done
        assert "mmproj-F32.gguf" in hub.downloaded()
        command[-1] = "projector=mmproj-Q8_0.gguf"
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=600, check=False
        )
        assert "'mmproj-Q8_0.gguf' is not beside 'TINY-Q8_0-00001" in done.stderr, done
        assert "there are: mmproj-F16.gguf, mmproj-F32.gguf" in " ".join(done.stderr.split())


@pytest.mark.parametrize("architecture", ["rwkv6", "rwkv7"])
def test_a_model_whose_tensors_cannot_be_checked_is_refused_by_its_architecture(
    architecture: str, made: Folders, tmp_path: Path
) -> None:
    """The library would run it, and ends the process on some errors of files."""
    source = made("llama") / "quantized" / "llama"
    content = (made("llama") / "model.gguf").read_bytes()
    place = content.index(b"llama", content.index(b"general.architecture"))
    content = content[:place] + architecture.encode() + content[place + 5 :]
    folder = tmp_path / "folder"
    shutil.copytree(source, folder)
    for file in (tmp_path / "model.gguf", folder / "model.gguf"):
        file.write_bytes(content)
    for model in (tmp_path / "model.gguf", folder):
        with pytest.raises(CheckpointError, match=f"architecture '{architecture}'"):
            answer(model)
