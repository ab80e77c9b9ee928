"""Which test files a change concerns, the nearest first."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quick.imports import distance, importers, is_test, test_side


@dataclass(frozen=True, order=True)
class Chosen:
    """A test file; those that compare lower run earlier.

    Attributes:
        steps: how many imports lead from it to a changed file; 0 if it is itself changed.
        is_elsewhere: whether it belongs to a distribution that has no changed file.
        is_unlike: whether it is named after no changed file.
        path: from the root of the checkout.
    """

    steps: int
    is_elsewhere: bool
    is_unlike: bool
    path: str


def choose(root: Path, changed: Iterable[str]) -> list[Chosen]:
    """Return the test files that import changed files or mention them, the nearest first.

    A page or table is imported by none: the files that have its name in them count as changed, and
    those that have the name of its folder if there are none.
    """
    files = set(changed)
    graph = importers(root)
    known = files & graph.keys()
    for path in files - known:
        known |= _that_mention(root, path)
    steps = distance(graph, known)
    homes, stems = {_home(path) for path in files}, {_stem(path) for path in files}
    return sorted(
        Chosen(num, _home(path) not in homes, not _is_like(path, stems), path)
        for path, num in steps.items()
        if is_test(path) and (root / path).is_file()
    )


def _that_mention(root: Path, path: str) -> set[str]:
    """Return the tests, and the sources beside a file, that have its name or its folder's."""
    file = root / path
    texts = {p: p.read_text() for p in {*test_side(root), *file.parent.glob("*.py")} - {file}}
    for name in (file.name, file.parent.name):
        word = re.compile(rf"\b{re.escape(name)}\b")
        if found := {
            p.relative_to(root).as_posix() for p, text in texts.items() if word.search(text)
        }:
            return found
    return set()


def _home(path: str) -> str:
    """Return the folder of a file's distribution, or the first folder."""
    parts = path.split("/")
    return "/".join(parts[: 2 if parts[0] in ("packages", "plugins", "examples") else 1])


def _stem(path: str) -> str:
    """Return what a file is about: its name, or its folder's for an ``__init__``."""
    file = Path(path)
    return (file.parent.name if file.stem == "__init__" else file.stem).removeprefix("test_")


def _is_like(path: str, stems: set[str]) -> bool:
    own = _stem(path)
    return any(own in stem or stem in own for stem in stems)
