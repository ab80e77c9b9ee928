"""Old names of modules, which lead to the new ones with a warning until version 0.3.

A program or plugin that imports one gets the module that has the new name, and a
``DeprecationWarning`` for each old name that it uses.
"""

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

REMOVED_IN = "0.3"
MOVED = {
    "vlmkit.ask": "vlmkit.types",
    "vlmkit.seams": "vlmkit.interfaces",
    "vlmkit.seams.monitor": "vlmkit_server.interfaces.monitor",
    "vlmkit.seams.tool_source": "vlmkit_server.interfaces.tool_source",
    "vlmkit.server": "vlmkit_server",
    "vlmkit.server_parts": "vlmkit_server.server_parts",
    "vlmkit.settings.fleet": "vlmkit_server.settings.fleet",
    "vlmkit.settings.limits": "vlmkit_server.settings.limits",
    "vlmkit.settings.server": "vlmkit_server.settings.server",
    "vlmkit.testing": "vlmkit_testing",
}
"""The new name of each module that was moved; modules inside it move with it."""
DISTRIBUTIONS = {"vlmkit_server": "vlmkit-server", "vlmkit_testing": "vlmkit-testing"}


class OldName(DeprecationWarning):
    """A module was imported by an old name.

    Attributes:
        old: that name.
        new: what the module is called now.
    """

    def __init__(self, old: str, new: str) -> None:
        super().__init__(f"{old} is {new} now; vlmkit {REMOVED_IN} removes the old name")
        self.old = old
        self.new = new


def new_name(name: str) -> str | None:
    """Return what a module is called now; None if it has no new name."""
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        if moved := MOVED.get(".".join(parts[:end])):
            inside = parts[end:]
            if moved == "vlmkit_testing" and inside:
                inside = ["contracts", *inside]
            return ".".join([moved, *inside])
    return None


class MovedModules(MetaPathFinder):
    """A finder of modules that finds those of old names; first of all finders.

    A package of an old name has the folder of the new one. Finders before this one would load the
    modules inside it a second time.
    """

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - as Python calls it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return how to import a module of an old name; None for any other one."""
        if not name.startswith("vlmkit."):
            return None
        moved = new_name(name)
        return None if moved is None else ModuleSpec(name, _Alias(moved), is_package=True)


class _Alias(Loader):
    """Loads the module of a new name in place of one with the old name."""

    def __init__(self, moved: str) -> None:
        self._moved = moved

    def create_module(self, spec: ModuleSpec) -> None:
        """Have Python make an empty module, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new name where the other one was to be.

        Raises:
            ModuleNotFoundError: its distribution is not installed; says how to install it.
        """
        package = self._moved.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            from vlmkit.kit.install_command import install_command

            raise ModuleNotFoundError(
                f"{module.__name__} is {self._moved} now, of {DISTRIBUTIONS[package]}: "
                f"{install_command(DISTRIBUTIONS[package])}",
                name=package,
            )
        warnings.warn(OldName(module.__name__, self._moved), stacklevel=2)
        sys.modules[module.__name__] = importlib.import_module(self._moved)


def forget(old: str) -> None:
    """Forget an old name, so that its next import, in another plugin, warns again."""
    sys.modules.pop(old, None)
    package, _, name = old.rpartition(".")
    if package in sys.modules:
        vars(sys.modules[package]).pop(name, None)
