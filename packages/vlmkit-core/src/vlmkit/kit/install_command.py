"""The command that installs a distribution into this environment, for hints.

It depends on the installer of this copy (pip, uv, pipx) and its origin (an index, a folder of
wheels, a source tree). It contains folder names, so clients of a server must not see it.
"""

import importlib.metadata
import importlib.util
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

OWN, CORE = "vlmkit", "vlmkit-core"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PLAIN = re.compile(r"[\w.:/=+,~-]+", re.ASCII)


def install_command(*requirements: str) -> str:
    """Return the shell command that installs distributions, such as ``vlmkit-onnx[cpu]``."""
    origin = _origin()
    root = _source_tree(origin)
    if root is not None:
        is_editable = bool(origin.get("dir_info", {}).get("editable"))
        return _command(_from_source(requirements, root), is_editable=is_editable)
    wheel = _path_of(origin)
    links = str(wheel.parent) if wheel is not None and wheel.suffix == ".whl" else None
    return _command(requirements, find_links=links)


def _origin() -> Mapping[str, Any]:
    """Return the origin of this installation by PEP 610; empty if it was an index.

    Only a distribution that the user named has a record: the core, or ``vlmkit``, which requires
    it.
    """
    for name in (CORE, OWN):
        with suppress(importlib.metadata.PackageNotFoundError, ValueError):
            text = importlib.metadata.distribution(name).read_text("direct_url.json")
            stated = json.loads(text or "{}")
            if stated and isinstance(stated, dict):
                return stated
    return {}


def _path_of(origin: Mapping[str, Any]) -> Path | None:
    url = urlsplit(str(origin.get("url", "")))
    return Path(url2pathname(unquote(url.path))) if url.scheme == "file" else None


def _source_tree(origin: Mapping[str, Any]) -> Path | None:
    """Return the source tree of this installation, which also holds the plugins; None if none."""
    path = _path_of(origin)
    if path is None or not (path / "pyproject.toml").is_file():
        return None
    root = path.parents[1]
    return root if (root / "plugins").is_dir() else None


def _from_source(requirements: Iterable[str], root: Path) -> list[str]:
    """Return requirements, with folders for distributions of the source tree.

    Adds their dependencies from the same tree that are not installed, because no index has them.
    """
    found: dict[str, str] = {}
    pending = list(requirements)
    while pending:
        requirement = pending.pop(0)
        match = _NAME.match(requirement)
        name = match[0] if match else requirement
        folders = (root / "packages" / name, root / "plugins" / name)
        folder = next((each for each in folders if each.is_dir()), folders[0])
        if name in found or not folder.is_dir():
            found.setdefault(name, requirement)
            continue
        extras = requirement[len(name) :]
        found[name] = f"{folder}{extras}"
        pending += _lacking(folder, re.findall(r"[\w-]+", extras))
    return list(found.values())


def _lacking(folder: Path, extras: Iterable[str]) -> Iterator[str]:
    """Yield the vlmkit distributions that a distribution requires and that are not installed."""
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    optional = project.get("optional-dependencies", {})
    stated = [*project["dependencies"], *(d for e in extras for d in optional.get(e, ()))]
    for requirement in stated:
        match = re.match(rf"({OWN}[\w-]*)(\[[\w,-]+\])?", requirement)
        if match and (match[2] or not is_installed(match[1])):
            yield match[0]


def is_installed(name: str) -> bool:
    """Return whether a distribution is installed in this environment."""
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _command(
    requirements: Iterable[str], *, is_editable: bool = False, find_links: str | None = None
) -> str:
    """Return the command of the installer that manages this environment."""
    prefix = Path(sys.prefix)
    what = [_quoted(requirement) for requirement in requirements]
    links = [] if find_links is None else ["--find-links", _quoted(find_links)]
    if (prefix / "uv-receipt.toml").is_file():
        main, *others = _of_uv_tool(prefix)
        beside = [word for each in (*others, *what) for word in ("--with", each)]
        return " ".join(["uv tool install", *links, main, *beside])
    if (prefix / "pipx_metadata.json").is_file():
        options = [] if find_links is None else [_quoted(f"--pip-args=--find-links {find_links}")]
        return " ".join(["pipx inject", *options, prefix.name, *what])
    if is_editable:
        what = [f"-e {each}" if "/" in each or "\\" in each else each for each in what]
    return " ".join([_installer(), *links, *what])


def _installer() -> str:
    """Return the pip command for this environment; uv's if it has no pip."""
    python = Path(sys.executable)
    has_pip = importlib.util.find_spec("pip") is not None
    if not has_pip:
        is_active = _is_beside("python", python)
        return "uv pip install" if is_active else f"uv pip install --python {_quoted(str(python))}"
    return "pip install" if _is_beside("pip", python) else f"{_quoted(str(python))} -m pip install"


def _is_beside(command: str, executable: Path) -> bool:
    """Return whether a command on the PATH belongs to this environment."""
    found = shutil.which(command)
    return found is not None and Path(found).parent == executable.parent


def _of_uv_tool(prefix: Path) -> list[str]:
    """Return the requirements of this ``uv tool`` environment, which uv reinstalls as a whole."""
    stated = tomllib.loads((prefix / "uv-receipt.toml").read_text("utf-8"))["tool"]["requirements"]
    found = []
    for each in stated:
        source = each.get("directory") or each.get("editable") or each.get("path") or each["name"]
        extras = f"[{','.join(each['extras'])}]" if each.get("extras") else ""
        found.append(_quoted(f"{source}{extras}"))
    return found


def _quoted(word: str) -> str:
    """Return a word quoted for shells, including those of Windows."""
    return word if _PLAIN.fullmatch(word) else f'"{word}"'
