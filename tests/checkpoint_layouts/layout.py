"""A layout: a correct checkpoint, the change to it, and the expected result."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Change = Callable[[Path], object]
"""Changes a folder that holds a whole model."""

NAME = "m"
"""What the folder is called, as messages have it."""


@dataclass(frozen=True)
class Layout:
    """One layout of a checkpoint folder. It answers, or loading refuses it.

    Attributes:
        name: a short description.
        change: changes a correct checkpoint to this layout.
        refused: the message of the refusal; None if it answers.
        hint: a part of the hint of the refusal.
        base: the family of the zoo that is changed.
        is_as_before: whether it answers as the unchanged checkpoint; else, as transformers answers
            with the changed one.
        needs: modules that the change requires.
    """

    name: str
    change: Change
    refused: str | None = None
    hint: str = ""
    base: str = "llama"
    is_as_before: bool = True
    needs: tuple[str, ...] = ()


def unchanged(folder: Path) -> None:
    """Do nothing."""


def read(folder: Path, file: str) -> dict[str, Any]:
    """Return the content of a JSON file; an absent file is empty."""
    path = folder / file
    return json.loads(path.read_text()) if path.exists() else {}


def edit(file: str, **values: Any) -> Change:
    """Return a change that sets values of a JSON file, absent or not; None takes a key out."""

    def change(folder: Path) -> None:
        content = read(folder, file) | values
        kept = {key: value for key, value in content.items() if value is not None}
        (folder / file).write_text(json.dumps(kept))

    return change


def put(file: str, content: bytes) -> Change:
    """Return a change that writes a file."""
    return lambda folder: (folder / file).write_bytes(content)


def drop(*patterns: str) -> Change:
    """Return a change that removes files."""

    def change(folder: Path) -> None:
        for pattern in patterns:
            for path in list(folder.glob(pattern)):
                path.unlink()

    return change


def keep(*patterns: str) -> Change:
    """Return a change that removes all files but these."""

    def change(folder: Path) -> None:
        kept = {path for pattern in patterns for path in folder.glob(pattern)}
        for path in folder.iterdir():
            if path not in kept:
                path.unlink()

    return change


def rename(file: str, to: str) -> Change:
    """Return a change that gives a file another name."""
    return lambda folder: (folder / file).rename(folder / to)


def both(*changes: Change) -> Change:
    """Return one change that makes several in turn."""

    def change(folder: Path) -> None:
        for part in changes:
            part(folder)

    return change


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
