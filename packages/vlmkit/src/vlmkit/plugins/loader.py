"""Find plugins, load each one in isolation, and collect what they offer.

pluggy is used here and nowhere below. One plugin that is broken in any way (it fails to import,
misspells a hook, gives a hook argument a default, claims a taken name, was written for another
API version) is recorded with its reason, offers nothing and harms nobody; it is fatal only if the
config selects something of it.
"""

import contextlib
import difflib
import hashlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pluggy

from vlmkit.errors import ConfigError, PluginError
from vlmkit.plugins import api_version, builtin, hookspecs
from vlmkit.plugins.kinds import Kind
from vlmkit.plugins.registries import Registries

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin that was found, and what became of it.

    Attributes:
        name: the entry point's name, or the file's stem.
        source: the distribution's name, or the path of a local file.
        version: of the distribution; empty for a file.
        error: why it offers nothing; None when it loaded.
        blocked: whether VLMKIT_BLOCK names it.
        unlisted: whether ``plugins.only`` names others.
        digest: returns the SHA-256 of the distribution's RECORD, which has the hashes of its files,
            or that of a local file; empty where there is none.
    """

    name: str
    source: str
    version: str = ""
    error: Exception | None = None
    blocked: bool = False
    unlisted: bool = False
    digest: Callable[[], str] = field(default=str, repr=False, compare=False)

    @property
    def is_loaded(self) -> bool:
        """Whether its code was run, and it offers what it has."""
        return not (self.error or self.blocked or self.unlisted)


class Plugins(Registries):
    """Everything that plugins offer, and every plugin that was found."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Plugin] = []

    @property
    def broken(self) -> dict[str, Exception]:
        """Reason by source of each plugin that could not be loaded."""
        return {plugin.source: plugin.error for plugin in self.found if plugin.error}


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A plugin before it is loaded."""

    name: str
    source: str
    version: str
    entry: importlib.metadata.EntryPoint | Path | ModuleType

    @property
    def names(self) -> set[str]:
        """Everything that VLMKIT_BLOCK may call it."""
        return {_canonical(self.name), _canonical(self.source)}

    def load(self) -> Any:
        if isinstance(self.entry, ModuleType):
            return self.entry
        if isinstance(self.entry, Path):
            return _load_file(self.entry)
        return self.entry.load()

    def digest(self) -> str:
        """Return the hash of what was installed."""
        if isinstance(self.entry, Path):
            return hashlib.sha256(self.entry.read_bytes()).hexdigest()
        if isinstance(self.entry, ModuleType):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                return _record_digest(importlib.metadata.distribution(self.source))
            return ""
        return "" if self.entry.dist is None else _record_digest(self.entry.dist)


def load(
    *,
    files: Sequence[Path] = (),
    block: Iterable[str] = (),
    only: Iterable[str] | None = None,
    entry_points: Sequence[importlib.metadata.EntryPoint] | None = None,
) -> Plugins:
    """Load the built-in components and every plugin; a broken one is recorded, never fatal.

    Args:
        files: local Python files that are plugins too.
        block: entry-point names, distribution names or file paths to leave out.
        only: names of distributions; no plugin of another one is imported. All are when None.
        entry_points: what to load in place of the installed entry points, for tests.

    Raises:
        ConfigError: ``only`` names a distribution that has no plugin here.
    """
    if entry_points is None:
        entry_points = list(importlib.metadata.entry_points(group=hookspecs.PROJECT))
    installed = sorted(map(_from_entry, entry_points), key=lambda c: (c.source, c.name))
    local = [_Candidate(path.stem, str(path), "", path) for path in dict.fromkeys(files)]
    blocked = {_canonical(name) for name in block if name.strip()}
    listed = None if only is None else _listed(only, installed)
    unlisted = [c for c in installed if listed is not None and _canonical(c.source) not in listed]
    sources = _sources_by_name(c for c in installed if not c.names & blocked and c not in unlisted)
    candidates = [_Candidate("builtin", "vlmkit", "", builtin), *installed, *local]
    plugins = Plugins()
    opened = []  # all kinds are known before the first hook is called
    for candidate in candidates:
        is_blocked = bool(candidate.names & blocked)
        is_left_out = is_blocked or candidate in unlisted
        others = sources.get(_canonical(candidate.name), [])
        tried = (None, None) if is_left_out else _tried(_open, candidate, plugins, others)
        opened.append((candidate, is_blocked, *tried))
    for candidate, is_blocked, module, why_not in opened:
        error = why_not if module is None else _tried(_collect, candidate, plugins, module)[1]
        plugins.found.append(
            Plugin(
                *(candidate.name, candidate.source, candidate.version, error, is_blocked),
                unlisted=candidate in unlisted,
                digest=candidate.digest,
            )
        )
    return plugins


def _from_entry(entry: importlib.metadata.EntryPoint) -> _Candidate:
    stated: Any = {} if entry.dist is None else entry.dist.metadata
    # A broken installation states neither, and its distribution's own properties will raise then.
    name, version = (stated.get(key) or "" for key in ("Name", "Version"))
    return _Candidate(entry.name, name or entry.name, version, entry)


def _listed(only: Iterable[str], installed: Iterable[_Candidate]) -> set[str]:
    """Return the distributions that may be loaded, in their canonical form."""
    there = {_canonical(candidate.source): candidate.source for candidate in installed}
    for name in only:
        if _canonical(name) not in there:
            near = difflib.get_close_matches(_canonical(name), there, n=1)
            known = f"there are: {', '.join(sorted(there.values())) or 'none'}"
            raise ConfigError(
                f"plugins.only names {name!r}, and no installed distribution of that name has a "
                "plugin",
                hint=f"did you mean {there[near[0]]!r}?" if near else known,
            )
    return {_canonical(name) for name in only}


def _record_digest(distribution: importlib.metadata.Distribution) -> str:
    record = distribution.read_text("RECORD")
    return "" if record is None else hashlib.sha256(record.encode()).hexdigest()


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _sources_by_name(candidates: Iterable[_Candidate]) -> dict[str, list[str]]:
    """Return which distributions use each entry-point name."""
    sources: dict[str, list[str]] = {}
    for candidate in candidates:
        sources.setdefault(_canonical(candidate.name), []).append(candidate.source)
    return sources


def _tried(function: Callable[..., T], *args: Any) -> tuple[T | None, Exception | None]:
    """Return what a function returns, or what it raises; a plugin may raise anything."""
    try:
        return function(*args), None
    except Exception as error:  # noqa: BLE001
        return None, error
    except SystemExit:
        return None, PluginError("the plugin tried to end the process")


def _open(candidate: _Candidate, plugins: Plugins, sources: Sequence[str]) -> Any:
    """Load one plugin and take the kinds that it owns; return its module."""
    if len(sources) > 1 and not isinstance(candidate.entry, Path):
        raise PluginError(
            f"plugin name {candidate.name!r} is used by {' and '.join(sources)}",
            hint="uninstall one of them, or block it with VLMKIT_BLOCK=<distribution>",
        )
    plugin = candidate.load()
    api_version.check(getattr(plugin, "VLMKIT_API", None))
    plugins.own(getattr(plugin, "VLMKIT_KINDS", ()))
    return plugin


def _collect(candidate: _Candidate, plugins: Plugins, plugin: Any) -> None:
    """Take everything that a plugin offers; every trap of pluggy is sprung here."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)  # one each: no half-registered state
    manager.register(plugin, name=candidate.source)
    callers = manager.get_hookcallers(plugin) or []
    known = [kind.hook for kind in plugins.kinds]
    _refuse_unmarked(plugin, callers, known)
    for caller in callers:
        _refuse_unknown(caller, known)
        _refuse_defaults(caller)
        _refuse_arguments(caller)
    # Last: pluggy's own words for these traps are hard to read.
    manager.add_hookspecs(_specifications(plugins.kinds))
    offered = Registries(candidate.source, plugins.kinds)
    for kind in plugins.kinds:
        if getattr(manager.hook, kind.hook)(registry=offered.of(kind)):
            raise PluginError(
                f"hook {kind.hook!r} returned a value, which nobody reads", hint="call registry.add"
            )
    plugins.merge(offered)


def _specifications(kinds: Iterable[Kind[Any]]) -> type:
    """Return a hook for each kind, as pluggy wants to have it."""

    def specification() -> Any:
        @hookspecs.hookspec
        def register(registry: object) -> None: ...

        return register

    return type("Hooks", (), {kind.hook: specification() for kind in kinds})


def _refuse_unmarked(
    plugin: Any, callers: Sequence[pluggy.HookCaller], known: Sequence[str]
) -> None:
    """Refuse a hook without its marker, which pluggy would not see, and a plugin without hooks."""
    marked = [i.function for caller in callers for i in caller.get_hookimpls()]
    for name in dir(plugin):
        if name.startswith("vlmkit_register_") and getattr(plugin, name) not in marked:
            raise PluginError(f"hook {name!r} is not marked", hint="put @hookimpl above it")
    if not callers and not getattr(plugin, "VLMKIT_KINDS", ()):
        raise PluginError("the plugin implements no hook", hint=f"known: {', '.join(known)}")


def _refuse_unknown(caller: pluggy.HookCaller, known: Sequence[str]) -> None:
    """Refuse a hook that nobody calls, which pluggy would register in silence.

    One that is marked as optional is for a kind whose owner need not be installed.
    """
    is_optional = all(i.optionalhook for i in caller.get_hookimpls())
    if caller.name not in known and not is_optional:
        near = difflib.get_close_matches(caller.name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise PluginError(f"there is no hook {caller.name!r}", hint=hint)


def _refuse_defaults(caller: pluggy.HookCaller) -> None:
    for implementation in caller.get_hookimpls():
        if implementation.kwargnames:
            raise PluginError(
                f"hook {caller.name!r} gives {', '.join(implementation.kwargnames)} a "
                "default; pluggy would never pass the value",
                hint="remove the default",
            )


def _refuse_arguments(caller: pluggy.HookCaller) -> None:
    """Refuse any arguments but the one that is passed; without it, nothing can be registered."""
    for implementation in caller.get_hookimpls():
        if tuple(implementation.argnames) != ("registry",):
            stated = ", ".join(implementation.argnames)
            raise PluginError(
                f"hook {caller.name!r} takes ({stated}), but is given (registry)",
                hint="name its only argument registry",
            )


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise PluginError(f"plugin file {str(path)!r} does not exist")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"vlmkit_file_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plugin file {str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look a class's module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
