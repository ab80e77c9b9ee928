"""Writes the generated part of ``docs/explanation/architecture.md``: the map of imports.

``nox -s reference`` renews it; a test fails when it is out of date. Sources are parsed and nothing
is imported. Imports for type checking and those inside functions count.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATH = ROOT / "docs/explanation/architecture.md"
BEGIN, END = "<!-- imports -->", "<!-- end of imports -->"
PACKAGES = {
    "vlmkit": "The core",
    "vlmkit_server": "The server",
    "vlmkit_testing": "Tests for plugins",
}
"""The packages whose insides are shown, and what each is called."""

Graph = Mapping[str, set[str]]


def page() -> str:
    """Return the page with its generated part renewed."""
    head, _, rest = PATH.read_text().partition(BEGIN)
    tail = rest.partition(END)[2]
    return f"{head}{BEGIN}\n\n{generated()}\n\n{END}{tail}"


def generated() -> str:
    """Return a diagram of the distributions, and of each package a diagram and a list."""
    parts = ["### Distributions", diagram(distributions())]
    for package, title in PACKAGES.items():
        parts += [f"### {title}: `{package}`", diagram(units(package)), descriptions(package)]
    return "\n\n".join(parts)


def distributions() -> Graph:
    """Return what each distribution of the project requires of the others."""
    found: dict[str, set[str]] = {}
    for file in sorted([*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("plugins/*/*.toml")]):
        project = tomllib.loads(file.read_text())["project"]
        names = (re.match(r"[\w-]+", each) for each in project["dependencies"])
        found[project["name"]] = {name[0] for name in names if name}
    return {name: needed & found.keys() for name, needed in found.items()}


def units(package: str) -> Graph:
    """Return what each module and folder directly in a package imports of the others there."""
    own = folder(package)
    names = {path.stem for path in own.iterdir() if _is_unit(path)}
    return {name: set(_imported(own / name, package)) & names - {name} for name in names}


def folder(package: str) -> Path:
    """Return the folder of a package's sources."""
    (found,) = ROOT.glob(f"packages/*/src/{package}")
    return found


def diagram(graph: Graph) -> str:
    """Return a graph as a Mermaid diagram, without arrows that follow from others."""
    nodes = {name: f"n{number}" for number, name in enumerate(sorted(graph))}
    lines = [f'    {node}["{name}"]' for name, node in nodes.items()]
    for name in sorted(graph):
        direct = sorted(_direct(name, graph))
        lines += [f"    {nodes[name]} --> {nodes[other]}" for other in direct]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def descriptions(package: str) -> str:
    """Return a list of the units of a package, each with the first sentence of its docstring."""
    own = folder(package)
    rows = []
    for name in sorted(units(package)):
        file = own / name / "__init__.py" if (own / name).is_dir() else own / f"{name}.py"
        text = ast.get_docstring(ast.parse(file.read_text())) or ""
        first = " ".join(text.partition("\n\n")[0].split()).replace("``", "`")
        shown = f"{name}/" if (own / name).is_dir() else f"{name}.py"
        first = re.sub(r":[a-z]+:`([^`]+)`", r"`\1`", first)
        rows.append(f"- `{shown}`: {first}")
    return "\n".join(rows)


def _direct(name: str, graph: Graph) -> set[str]:
    """Return what a unit imports and would not be reached by way of its other imports."""
    return {
        other
        for other in graph[name]
        if not any(other in _reached(by, graph) for by in graph[name] - {other})
    }


def _reached(name: str, graph: Graph) -> set[str]:
    found: set[str] = set()
    pending = [name]
    while pending:
        for other in graph[pending.pop()] - found:
            found.add(other)
            pending.append(other)
    return found


def _is_unit(path: Path) -> bool:
    if path.is_dir():
        return (path / "__init__.py").is_file()
    return path.suffix == ".py" and path.stem != "__init__"


def _imported(unit: Path, package: str) -> Iterator[str]:
    """Yield the units of its package that the modules of a unit import."""
    files = unit.rglob("*.py") if unit.is_dir() else [unit.with_suffix(".py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                if name.startswith(f"{package}."):
                    yield name.split(".")[1]


if __name__ == "__main__":
    PATH.write_text(page())
