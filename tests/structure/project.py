"""The sources of a checkout, read once."""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PARTS = {
    "vlmkit-server": ("vlmkit_server", "vlmkit.server"),
    "vlmkit-testing": ("vlmkit_testing", "vlmkit.testing", "vlmkit.verify", "vlmkit.templates"),
    "vlmkit-core": ("vlmkit",),
}
"""The parts of the core, by the names that their modules have before or after it is split."""

SINGLE_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
GENERATED = re.compile(r"[Mm]ade\s+(of\s+the\s+sources\s+)?by\s+`nox -s (reference|families)`")


@dataclass(frozen=True)
class Module:
    """One file of Python.

    Attributes:
        name: with dots; that of its package for an ``__init__``.
        path: from the root of the checkout.
        distribution: the name of its distribution's folder.
        text: the source.
    """

    name: str
    path: str
    distribution: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def part(self) -> str:
        """The part of the core that it belongs to, or else its distribution."""
        for part, names in PARTS.items():
            if any(is_within(self.name, name) for name in names):
                return part
        return self.distribution

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")


@dataclass(frozen=True)
class Page:
    """One page of Markdown.

    Attributes:
        path: from the root of the checkout.
        text: the page.
    """

    path: str
    text: str

    @property
    def part(self) -> str:
        return "decisions" if "/adr/" in self.path else "docs"


def is_within(name: str, package: str) -> bool:
    """Return whether a module is a package or lies in it."""
    return name == package or name.startswith(f"{package}.")


class Project:
    """A checkout; nothing in it is imported.

    Args:
        root: the folder that has ``packages`` and ``plugins``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sources: list[Path] = sorted(
            path
            for path in [*root.glob("packages/*/src"), *root.glob("plugins/*/src")]
            if any(path.glob("vlmkit*/__init__.py"))
        )

    @cached_property
    def modules(self) -> list[Module]:
        return [module for source in self.sources for module in self._read(source)]

    def _read(self, source: Path) -> Iterator[Module]:
        for path in sorted(source.glob("vlmkit*/**/*.py")):
            name = ".".join(path.relative_to(source).with_suffix("").parts)
            yield Module(
                name.removesuffix(".__init__"),
                str(path.relative_to(self.root)),
                source.parent.name,
                path.read_text(),
            )

    @cached_property
    def tops(self) -> list[str]:
        """The names of the import packages."""
        return sorted({module.name.partition(".")[0] for module in self.modules})

    @cached_property
    def pages(self) -> list[Page]:
        """The pages that people write: those made of sources and the changelog are left out."""
        files = [self.root / name for name in SINGLE_PAGES]
        files += sorted(self.root.glob("docs/**/*.md"))
        files += sorted(self.root.glob("p*/*/README.md"))
        found = [Page(str(f.relative_to(self.root)), f.read_text()) for f in files if f.is_file()]
        return [page for page in found if not GENERATED.search(page.text[:800])]

    @cached_property
    def public(self) -> "Public":
        return Public.read(self)


@dataclass(frozen=True)
class Public:
    """What is public.

    Attributes:
        packages: the modules and packages that the page on stability names.
        names: what ``vlmkit`` itself gives, with the modules that define it.
    """

    packages: frozenset[str]
    names: frozenset[str]

    @classmethod
    def read(cls, project: Project) -> "Public":
        """Read the section "What is public" of the page, and the imports of ``vlmkit``."""
        page = (project.root / "docs/reference/stability.md").read_text()
        section = page.partition("## What is public")[2].partition("\n## ")[0]
        stated = set(re.findall(r"`(vlmkit\w*(?:\.\w+)*)`", section)) - {"vlmkit", "vlmkit.load"}
        front = next(module for module in project.modules if module.name == "vlmkit")
        return cls(frozenset(stated), frozenset(_imported(front.tree)))

    def has(self, module: str, owner: str) -> bool:
        """Return whether a class or function, or with no owner a module, is public."""
        if any(part.startswith("_") for part in f"{module}.{owner}".split(".")):
            return False
        if any(is_within(module, package) for package in self.packages):
            return True
        return f"{module}.{owner.partition('.')[0]}" in self.names


def _imported(tree: ast.Module) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
