"""Loads plugins that are local files or folders, not installed distributions.

The folder of such a plugin becomes a package with a unique name. The plugin can then import modules
beside it, at once or later, and ``sys.path`` is unchanged. Installed modules take precedence over
modules beside the plugin.
"""

import builtins
import hashlib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from vlmkit.errors import PluginError

INIT = "__init__.py"
PREFIX = "vlmkit_local_"


def load_local(path: Path) -> ModuleType:
    """Import a file, or a folder with an ``__init__.py``, and return its module.

    Raises:
        PluginError: the file does not exist, or is not a Python file.
    """
    file = _file_of(path)
    package = _package_of(path.resolve().parent)
    name = f"{package}.{path.stem.replace('.', '_')}"
    _forget(name)  # the file may have changed since an earlier load
    before = set(sys.modules)
    inside = [str(path.resolve())] if path.is_dir() else None
    spec = spec_from_file_location(
        name, file, loader=_Loader(name, str(file)), submodule_search_locations=inside
    )
    if spec is None or spec.loader is None:
        raise PluginError(f"plugin file {str(path)!r} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look a class's module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        _forget(name)
        for new in sys.modules.keys() - before:
            if new.startswith(f"{package}."):
                _forget(new)
        raise
    return module


def local_digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of a folder's files."""
    if not path.is_dir():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    total = hashlib.sha256()
    for file in _files_in(path):
        content = hashlib.sha256(file.read_bytes()).digest()
        total.update(hashlib.sha256(file.relative_to(path).as_posix().encode()).digest() + content)
    return total.hexdigest()


def _files_in(folder: Path) -> Iterator[Path]:
    found = (file for file in folder.rglob("*") if file.is_file())
    return iter(sorted(file for file in found if "__pycache__" not in file.parts))


def _file_of(path: Path) -> Path:
    """Return the Python file to import for a plugin."""
    if path.is_dir():
        if not (path / INIT).is_file():
            raise PluginError(
                f"plugin folder {str(path)!r} has no {INIT}",
                hint=f"put the hooks into {path.name}/{INIT}, or name the files themselves",
            )
        return path / INIT
    if not path.is_file():
        raise PluginError(f"plugin file {str(path)!r} does not exist")
    if path.suffix != ".py":
        raise PluginError(f"plugin file {str(path)!r} is not a Python file")
    return path


def _package_of(folder: Path) -> str:
    """Return the name of a folder's package; create the package if needed."""
    name = PREFIX + hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if name not in sys.modules:
        package = ModuleType(name, "A folder that local plugins lie in.")
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return name


def _forget(name: str) -> None:
    """Remove a module and its submodules from ``sys.modules``."""
    for known in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
        del sys.modules[known]


class _Finder(MetaPathFinder):
    """Finds modules in the packages of local plugins' folders, and no others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec whose module can import modules beside it."""
        if not fullname.startswith(PREFIX):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Executes a module whose ``import`` statements also find modules beside it."""

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module with a special ``__import__``."""
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        super().exec_module(module)

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - as Python names them
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import as usual; look for a missing module in the folder of the plugin."""
        top, _, rest = name.partition(".")
        try:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        except ModuleNotFoundError as error:
            if level or error.name != top or not self._is_beside(top):
                raise
        package = self.name.partition(".")[0]
        if fromlist:  # also imports its names that are modules, as relative imports do
            return builtins.__import__(f"{package}.{name}", globals, locals, fromlist, 0)
        importlib.import_module(f"{package}.{name}" if rest else f"{package}.{top}")
        return sys.modules[f"{package}.{top}"]

    def _is_beside(self, top: str) -> bool:
        package = sys.modules[self.name.partition(".")[0]]
        (folder,) = map(Path, package.__path__)
        return (folder / f"{top}.py").is_file() or (folder / top / INIT).is_file()
