"""The command writes a line for each picture, and goes on after a broken one."""

import json
import subprocess
import sys
from collections.abc import Sequence as Seq
from pathlib import Path

import pytest

from vlmkit_testing import CommandContract, picture


class TestDescribe(CommandContract):
    name = "yourname"

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder, self.empty = tmp_path / "pictures", tmp_path / "empty"
        self.folder.mkdir()
        self.empty.mkdir()
        picture().to_pil().save(self.folder / "one.png")

    def works(self) -> Seq[Seq[str]]:
        return [("mock", str(self.folder))]

    def fails(self) -> Seq[Seq[str]]:
        return [("mock", str(self.empty)), ("no-such-model", str(self.folder))]


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "vlmkit", "yourname", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_each_picture_gets_a_line(tmp_path: Path) -> None:
    for seed in range(2):
        picture(seed=seed).to_pil().save(tmp_path / f"{seed}.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    (tmp_path / "notes.txt").write_text("no picture either")
    done = run("mock", str(tmp_path), "--ask", "What is it?")
    assert done.returncode == 0, done.stderr
    first, second, broken = map(json.loads, done.stdout.splitlines())
    assert (first["picture"], second["picture"]) == ("0.png", "1.png")
    assert first["answer"]
    assert "image" in broken["error"]


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    done = run("mock", str(tmp_path))
    assert done.returncode == 1
    assert "has no pictures" in done.stderr


def test_help_says_what_it_does() -> None:
    assert "Ask MODEL the same of every picture" in run("--help").stdout
