"""The imports of the sources and of the tests, as one graph.

A node is the path of a Python file from the root of the checkout. Imports inside functions count.
The graph does not see what a test starts by a command, such as a server in another process.
"""

import ast
import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path, PurePath

from structure.imports import Imports
from structure.project import Project

TESTED = ("packages", "plugins", "examples", "tests")
Importers = Mapping[str, frozenset[str]]
"""The files that import each file directly."""


def importers(root: Path) -> Importers:
    """Return the direct importers of each source, test and module beside the tests.

    A module counts as an importer of the package that it lies in, whose ``__init__`` runs first.
    """
    project = Project(root)
    graph = Imports(project).graph
    sources = {m.name: m.path for m in project.modules if m.name in graph.modules}
    tests = {file.relative_to(root).as_posix(): file for file in test_side(root)}
    found: dict[str, set[str]] = {path: set() for path in [*sources.values(), *tests]}
    for name, path in sources.items():
        for imported in {name.rpartition(".")[0], *graph.find_modules_directly_imported_by(name)}:
            if imported in sources:
                found[sources[imported]].add(path)
    for path, file in tests.items():
        for name in set(_names(ast.parse(file.read_bytes()))):
            if imported := _source(name, sources) or _beside(name, path, tests):
                found[imported].add(path)
        for conftest in _conftests(path, tests):
            found[conftest].add(path)
    return {path: frozenset(others - {path}) for path, others in found.items()}


def test_side(root: Path) -> list[Path]:
    """Return the tests and the modules beside them."""
    files = [file for folder in TESTED for file in sorted(root.glob(f"{folder}/**/*.py"))]
    return [*root.glob("conftest.py"), *(f for f in files if "src" not in f.parts)]


def is_test(path: str) -> bool:
    """Return whether pytest collects a file."""
    return Path(path).name.startswith("test_") and path.endswith(".py")


def distance(importers: Importers, changed: set[str]) -> dict[str, int]:
    """Return how many imports lead from each file to the nearest changed one."""
    found, reached = dict.fromkeys(changed, 0), changed
    for steps in range(1, len(importers) + 1):
        reached = {path for one in reached for path in importers.get(one, ())} - set(found)
        found |= dict.fromkeys(reached, steps)
    return found


def _names(tree: ast.Module) -> Iterator[str]:
    """Yield what a file imports, and the names with dots in its texts, as for monkeypatch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and re.match(r"vlmkit\w*\.", str(node.value)):
            yield node.value


def _source(name: str, paths: Mapping[str, str]) -> str | None:
    """Return the path of the module that a name is, or lies in."""
    while name and name not in paths:
        name = name.rpartition(".")[0]
    return paths.get(name)


def _beside(name: str, importer: str, paths: Container[str]) -> str | None:
    """Return the path of a module beside the tests, the name's own or that of its package."""
    folders = [*(f"{folder}/" for folder in PurePath(importer).parents), "tests/"]
    while name:
        for folder in folders:
            for end in (".py", "/__init__.py"):
                path = folder.removeprefix("./") + name.replace(".", "/") + end
                if path in paths:
                    return path
        name = name.rpartition(".")[0]
    return None


def _conftests(path: str, paths: Container[str]) -> Iterator[str]:
    """Yield those that pytest loads for a test."""
    if is_test(path):
        for folder in PurePath(path).parents:
            if (conftest := (folder / "conftest.py").as_posix()) in paths:
                yield conftest
