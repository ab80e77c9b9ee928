"""Measures of the imports between siblings: what lies directly in one package.

A *unit* is a module or a folder with an ``__init__`` that lies directly in the package. A unit
imports another if any module in the one imports any module in the other, inside functions and for
type checking included. The package's own ``__init__`` is no unit.
"""

import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from structure.found import Areas, Found
from structure.project import PARTS, Project, is_within

if TYPE_CHECKING:
    import grimp

Graph = Mapping[str, frozenset[str]]
"""What each unit imports."""


class Imports:
    """The imports of a project."""

    def __init__(self, project: Project) -> None:
        self._project = project

    @cached_property
    def graph(self) -> "grimp.ImportGraph":
        """The imports of all modules, type-checking ones included; nothing is executed."""
        import grimp

        with _importable(self._project):
            return grimp.build_graph(*self._project.tops, cache_dir=None)

    @cached_property
    def packages(self) -> dict[str, str]:
        """The packages that have a row, by labels that stay when the core is split.

        They are those of each part and distribution, and ``running``. The row of the core has the
        server as one of its units for as long as it lies in it.
        """
        found = {top.replace("_", "-"): top for top in self._project.tops if top != "vlmkit"}
        found |= {"vlmkit-core": "vlmkit", "vlmkit-core running": "vlmkit.running"}
        for part, names in PARTS.items():
            present = [name for name in names if name in self.graph.modules]
            found |= {part: present[0]} if present else {}
        return {label: name for label, name in found.items() if name in self.graph.modules}

    def units(self, package: str) -> Graph:
        """Return what each unit of a package imports."""
        children = self.graph.find_children(package)
        found: dict[str, set[str]] = {child: set() for child in children}
        for importer, imported in self.pairs(package):
            found[unit_of(importer, package)].add(unit_of(imported, package))
        return {unit: frozenset(others) for unit, others in found.items()}

    def pairs(self, package: str) -> Iterator[tuple[str, str]]:
        """Yield the imports from a module of one unit to a module of another."""
        for importer in self.graph.find_descendants(package):
            for imported in self.graph.find_modules_directly_imported_by(importer):
                if is_within(imported, package) and imported != package:
                    pair = importer, imported
                    if unit_of(importer, package) != unit_of(imported, package):
                        yield pair

    def importers(self, module: str) -> frozenset[str]:
        """Return the modules that import a module directly; none for what is in no package."""
        if module not in self.graph.modules:
            return frozenset()
        return frozenset(self.graph.find_modules_that_directly_import(module))


@contextmanager
def _importable(project: Project) -> Iterator[None]:
    """Let imports find the project's packages, also if others of their names are imported."""
    path = sys.path[:]
    modules = {top: sys.modules.pop(top) for top in project.tops if top in sys.modules}
    sys.path[:0] = [str(source.resolve()) for source in project.sources]
    try:
        yield
    finally:
        sys.path[:] = path
        sys.modules.update(modules)


def unit_of(module: str, package: str) -> str:
    """Return the unit of a package that a module lies in."""
    return f"{package}.{module[len(package) + 1 :].partition('.')[0]}"


def units(project: Project, imports: Imports) -> Areas:
    """Count the modules and folders at the top of each package."""
    return {
        label: Found.of(sorted(imports.units(name))) for label, name in imports.packages.items()
    }


def edges(project: Project, imports: Imports) -> Areas:
    """Count the pairs of units of which one imports the other; both directions count as two."""
    return {
        label: Found.of(
            sorted(f"{a} -> {b}" for a, others in imports.units(name).items() for b in others)
        )
        for label, name in imports.packages.items()
    }


def layers(project: Project, imports: Imports) -> Areas:
    """Count the units of the longest chain of imports; a cycle counts as one unit."""
    return {
        label: Found.of(longest_chain(imports.units(name)))
        for label, name in imports.packages.items()
    }


def upward(project: Project, imports: Imports) -> Areas:
    """Count the imports from a module of a lower layer to one of a higher layer.

    The import-linter contract in ``pyproject.toml`` orders the layers of the package. Imports for
    type checking count, which import-linter leaves out. A package without a contract has no number.
    """
    found = {}
    for label, name in imports.packages.items():
        ranks = _ranks(project, name)
        if ranks:
            pairs = [
                f"{importer} -> {imported}"
                for importer, imported in imports.pairs(name)
                if _goes_up(unit_of(importer, name), unit_of(imported, name), ranks)
            ]
            found[label] = Found.of(sorted(pairs))
    return found


def _ranks(project: Project, package: str) -> dict[str, int]:
    """Return the place of each unit in its contract, the highest layer first."""
    config = tomllib.loads((project.root / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in config["contracts"]:
        if contract["type"] == "layers" and package in contract.get("containers", ()):
            return {
                f"{package}.{name.strip(' ()')}": place
                for place, layer in enumerate(contract["layers"])
                for name in layer.replace(":", "|").split("|")
            }
    return {}


def _goes_up(importer: str, imported: str, ranks: Mapping[str, int]) -> bool:
    return ranks.get(imported, len(ranks)) < ranks.get(importer, -1)


def cycles(project: Project, imports: Imports) -> Areas:
    """Count the groups of siblings that import each other, at every level of each package."""
    found: dict[str, list[str]] = {label: [] for label in imports.packages}
    for label, name in imports.packages.items():
        for package in sorted({name, *imports.graph.find_descendants(name)}):
            for group in components(imports.units(package)):
                if len(group) > 1:
                    found[label].append(", ".join(sorted(group)))
    return {label: Found.of(items) for label, items in found.items()}


def unused_kit(project: Project, imports: Imports) -> Areas:
    """Count the public modules of ``vlmkit.kit`` that no plugin and no template of one imports."""
    modules = sorted(
        name
        for name in imports.graph.find_descendants("vlmkit.kit")
        if not any(part.startswith("_") for part in name.split("."))
    )
    plugins = {module.name for module in project.modules if not module.path.startswith("packages/")}
    templates = "\n".join(
        path.read_text() for path in project.root.glob("packages/*/src/*/templates/**/*.py")
    )
    unused = [
        name
        for name in modules
        if not imports.importers(name) & plugins and f"from {name} import" not in templates
    ]
    return {"vlmkit-core": Found.of(unused)}


# Graphs


def components(graph: Graph) -> list[frozenset[str]]:
    """Return the strongly connected components, each after those that it imports."""
    return _Components(graph).found


class _Components:
    """Tarjan's algorithm."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._index: dict[str, int] = {}
        self._low: dict[str, int] = {}
        self._stack: list[str] = []
        self.found: list[frozenset[str]] = []
        for unit in sorted(graph):
            if unit not in self._index:
                self._visit(unit)

    def _visit(self, unit: str) -> None:
        self._index[unit] = self._low[unit] = len(self._index)
        self._stack.append(unit)
        for other in sorted(self._graph[unit]):
            if other not in self._index:
                self._visit(other)
                self._low[unit] = min(self._low[unit], self._low[other])
            elif other in self._stack:
                self._low[unit] = min(self._low[unit], self._index[other])
        if self._low[unit] == self._index[unit]:
            start = self._stack.index(unit)
            self.found.append(frozenset(self._stack[start:]))
            del self._stack[start:]


def longest_chain(graph: Graph) -> list[str]:
    """Return the longest chain of imports, the importer first; a cycle is one link."""
    chains: dict[frozenset[str], list[str]] = {}
    home = {unit: group for group in components(graph) for unit in group}
    for group in components(graph):
        below = {home[other] for unit in group for other in graph[unit]} - {group}
        best: Iterable[str] = max((chains[other] for other in below), key=len, default=[])
        chains[group] = [", ".join(sorted(group)), *best]
    return max(chains.values(), key=len, default=[])
