"""Calls the hooks of a plugin, after checking them for all known pitfalls of pluggy.

The only module that uses pluggy.
"""

import difflib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import pluggy

from vlmkit.errors import PluginError
from vlmkit.kit.install_command import install_command
from vlmkit.plugins import hookspecs
from vlmkit.plugins.kinds import Kind
from vlmkit.plugins.names import OWNERS_OF_TABLES
from vlmkit.plugins.registries import Registries


def collect(source: str, plugins: Registries, plugin: Any) -> None:
    """Register everything that a plugin provides, or nothing.

    Args:
        source: the distribution or file of the plugin.
        plugins: the registries to fill.
        plugin: the object with the hooks.

    Raises:
        PluginError: a hook would not be called, or registered something unusable.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)  # one for each: no partial registration
    manager.register(plugin, name=source)
    callers = manager.get_hookcallers(plugin) or []
    known = [kind.hook for kind in plugins.kinds]
    _refuse_unmarked(plugin, callers, known)
    for caller in callers:
        _refuse_unknown(caller, known)
        _refuse_other_kinds(caller)
        _refuse_defaults(caller)
        _refuse_arguments(caller)
    # Last, because pluggy's own messages for these errors are hard to read.
    manager.add_hookspecs(_specifications(plugins.kinds))
    offered = Registries(source, plugins.kinds)
    for kind in plugins.kinds:
        if getattr(manager.hook, kind.hook)(registry=offered.of(kind)):
            raise PluginError(
                f"hook {kind.hook!r} returned a value, which is ignored", hint="call registry.add"
            )
    plugins.merge(offered)


def _specifications(kinds: Iterable[Kind[Any]]) -> type:
    """Return a class with a hook specification for each kind, as pluggy expects."""

    def specification() -> Any:
        @hookspecs.hookspec
        def register(registry: object) -> None: ...

        return register

    return type("Hooks", (), {kind.hook: specification() for kind in kinds})


def _refuse_unmarked(
    plugin: Any, callers: Sequence[pluggy.HookCaller], known: Sequence[str]
) -> None:
    """Raise an error for a hook without marker, which pluggy ignores, or a plugin without hooks."""
    marked = [i.function for caller in callers for i in caller.get_hookimpls()]
    for name in dir(plugin):
        if name.startswith("vlmkit_register_") and getattr(plugin, name) not in marked:
            raise PluginError(f"hook {name!r} is not marked", hint="put @hookimpl above it")
    owns = getattr(plugin, "VLMKIT_KINDS", ()) or getattr(plugin, "VLMKIT_TABLES", ())
    if not callers and not owns:
        raise PluginError("the plugin implements no hook", hint=f"known: {', '.join(known)}")


def _refuse_unknown(caller: pluggy.HookCaller, known: Sequence[str]) -> None:
    """Raise an error for an unknown hook, which pluggy would register silently.

    A hook marked as optional is for a kind whose owner may be missing.
    """
    is_optional = all(i.optionalhook for i in caller.get_hookimpls())
    if caller.name not in known and not is_optional:
        near = difflib.get_close_matches(caller.name, known, n=1)
        if owner := OWNERS_OF_TABLES.get(caller.name.removeprefix("vlmkit_register_")):
            raise PluginError(
                f"hook {caller.name!r} is of a kind that {owner} owns, which is not loaded",
                hint=install_command(owner),
            )
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise PluginError(f"there is no hook {caller.name!r}", hint=hint)


def _refuse_other_kinds(caller: pluggy.HookCaller) -> None:
    """Raise an error for a hook that is async or a generator, such as a hook wrapper."""
    for implementation in caller.get_hookimpls():
        function = inspect.unwrap(implementation.function)
        is_later = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        if is_later or inspect.isgeneratorfunction(function):
            raise PluginError(
                f"hook {caller.name!r} is an async function or one that yields, which is not "
                "awaited",
                hint="make it a plain function that calls registry.add",
            )


def _refuse_defaults(caller: pluggy.HookCaller) -> None:
    for implementation in caller.get_hookimpls():
        if implementation.kwargnames:
            raise PluginError(
                f"hook {caller.name!r} gives {', '.join(implementation.kwargnames)} a "
                "default; pluggy would never pass the value",
                hint="remove the default",
            )


def _refuse_arguments(caller: pluggy.HookCaller) -> None:
    """Raise an error unless the hook takes exactly the one argument that is passed."""
    for implementation in caller.get_hookimpls():
        if tuple(implementation.argnames) != ("registry",):
            stated = ", ".join(implementation.argnames)
            raise PluginError(
                f"hook {caller.name!r} takes ({stated}), but is given (registry)",
                hint="name its only argument registry",
            )
