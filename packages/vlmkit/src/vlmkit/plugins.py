"""Find plugins, load each one in isolation, and collect what they offer.

pluggy is used here and nowhere below. One plugin that is broken in any way (it fails to import,
misspells a hook, gives a hook argument a default, claims a taken name, was written for another
API version) is recorded with its reason, offers nothing and harms nobody; it is fatal only if the
config selects something of it.
"""

import difflib
import hashlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from vlmkit import builtin, hookspecs
from vlmkit.checkpoint import Checkpoint
from vlmkit.errors import PluginError
from vlmkit.protocols import Engine, Sampler, Scheduler, Tokenizer, VisionEncoder
from vlmkit.registry import Registry

if TYPE_CHECKING:
    import click

KINDS: Mapping[str, type | None] = {
    "tokenizers": Tokenizer,
    "vision_encoders": VisionEncoder,
    "engines": Engine,
    "schedulers": Scheduler,
    "samplers": Sampler,
    "models": Checkpoint,
    "commands": None,  # the command line looks at what it was given, and knows click
}
"""What a plugin can offer, and what is built of it."""


@dataclass(slots=True)
class Registries:
    """One registry for each kind of thing that a plugin can offer."""

    owner: str = "vlmkit"
    tokenizers: Registry[Tokenizer] = field(init=False)
    vision_encoders: Registry[VisionEncoder] = field(init=False)
    engines: Registry[Engine] = field(init=False)
    schedulers: Registry[Scheduler] = field(init=False)
    samplers: Registry[Sampler] = field(init=False)
    models: Registry[Checkpoint] = field(init=False)
    commands: "Registry[click.Command]" = field(init=False)

    def __post_init__(self) -> None:
        for kind, makes in KINDS.items():
            own = builtin.COMMANDS if kind == "commands" else ()
            name = kind.removesuffix("s").replace("_", " ")
            setattr(self, kind, Registry(name, self.owner, makes=makes, reserved=own))

    def merge(self, other: "Registries") -> None:
        """Take everything that ``other`` offers, or nothing."""
        trial = Registries()
        for source in (self, other):
            for kind in KINDS:
                getattr(trial, kind).merge(getattr(source, kind))
        for kind in KINDS:
            getattr(self, kind).merge(getattr(other, kind))


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin that was found, and what became of it.

    Attributes:
        name: the entry point's name, or the file's stem.
        source: the distribution's name, or the path of a local file.
        version: of the distribution; empty for a file.
        error: why it offers nothing; None when it loaded.
        blocked: whether VLMKIT_BLOCK names it.
    """

    name: str
    source: str
    version: str = ""
    error: Exception | None = None
    blocked: bool = False


@dataclass(slots=True)
class Plugins(Registries):
    """Everything that plugins offer, and every plugin that was found."""

    found: list[Plugin] = field(default_factory=list)

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


def load(
    *,
    files: Sequence[Path] = (),
    block: Iterable[str] = (),
    entry_points: Sequence[importlib.metadata.EntryPoint] | None = None,
) -> Plugins:
    """Load the built-in components and every plugin; a broken one is recorded, never fatal.

    Args:
        files: local Python files that are plugins too.
        block: entry-point names, distribution names or file paths to leave out.
        entry_points: what to load in place of the installed entry points, for tests.
    """
    if entry_points is None:
        entry_points = list(importlib.metadata.entry_points(group=hookspecs.PROJECT))
    installed = sorted(map(_from_entry, entry_points), key=lambda c: (c.source, c.name))
    local = [_Candidate(path.stem, str(path), "", path) for path in dict.fromkeys(files)]
    blocked = {_canonical(name) for name in block if name.strip()}
    sources = _sources_by_name(c for c in installed if not c.names & blocked)
    plugins = Plugins()
    for candidate in (_Candidate("builtin", "vlmkit", "", builtin), *installed, *local):
        if candidate.names & blocked:
            plugins.found.append(_record(candidate, blocked=True))
            continue
        error = _add(candidate, plugins, sources.get(_canonical(candidate.name), []))
        plugins.found.append(_record(candidate, error=error))
    return plugins


def _from_entry(entry: importlib.metadata.EntryPoint) -> _Candidate:
    stated: Any = {} if entry.dist is None else entry.dist.metadata
    # A broken installation states neither, and its distribution's own properties will raise then.
    name, version = (stated.get(key) or "" for key in ("Name", "Version"))
    return _Candidate(entry.name, name or entry.name, version, entry)


def _record(
    candidate: _Candidate, *, error: Exception | None = None, blocked: bool = False
) -> Plugin:
    return Plugin(candidate.name, candidate.source, candidate.version, error, blocked)


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _sources_by_name(candidates: Iterable[_Candidate]) -> dict[str, list[str]]:
    """Return which distributions use each entry-point name."""
    sources: dict[str, list[str]] = {}
    for candidate in candidates:
        sources.setdefault(_canonical(candidate.name), []).append(candidate.source)
    return sources


def _add(candidate: _Candidate, plugins: Plugins, sources: Sequence[str]) -> Exception | None:
    """Take everything that a plugin offers; return why nothing was taken."""
    try:
        if len(sources) > 1 and not isinstance(candidate.entry, Path):
            raise PluginError(
                f"plugin name {candidate.name!r} is used by {' and '.join(sources)}",
                hint="uninstall one of them, or block it with VLMKIT_BLOCK=<distribution>",
            )
        plugins.merge(_collect(candidate))
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything
        return error
    except SystemExit:
        return PluginError("the plugin tried to end the process")
    return None


def _collect(candidate: _Candidate) -> Registries:
    """Load one plugin and return what it registers; every trap of pluggy is sprung here."""
    plugin = candidate.load()
    _check_api_version(plugin)
    manager = pluggy.PluginManager(hookspecs.PROJECT)  # one each: no half-registered state
    manager.register(plugin, name=candidate.source)
    callers = manager.get_hookcallers(plugin) or []
    _refuse_unmarked(plugin, callers)
    for caller in callers:
        _refuse_unknown(caller)
        _refuse_defaults(caller)
        _refuse_arguments(caller)
    manager.add_hookspecs(hookspecs)  # last: pluggy's own words for these traps are hard to read
    offered = Registries(candidate.source)
    for kind in KINDS:
        hook = f"vlmkit_register_{kind}"
        if getattr(manager.hook, hook)(registry=getattr(offered, kind)):
            raise PluginError(
                f"hook {hook!r} returned a value, which nobody reads", hint="call registry.add"
            )
    return offered


def _check_api_version(plugin: Any) -> None:
    version = getattr(plugin, "VLMKIT_API", None)
    if version != hookspecs.API_VERSION:
        stated = "does not say VLMKIT_API" if version is None else f"has VLMKIT_API = {version!r}"
        raise PluginError(
            f"the plugin {stated}; this vlmkit offers API version {hookspecs.API_VERSION}",
            hint=f"install a matching version, or state VLMKIT_API = {hookspecs.API_VERSION}",
        )


def _refuse_unmarked(plugin: Any, callers: Sequence[pluggy.HookCaller]) -> None:
    """Refuse a hook without its marker, which pluggy would not see, and a plugin without hooks."""
    marked = [i.function for caller in callers for i in caller.get_hookimpls()]
    for name in dir(plugin):
        if name.startswith("vlmkit_register_") and getattr(plugin, name) not in marked:
            raise PluginError(f"hook {name!r} is not marked", hint="put @hookimpl above it")
    if not callers:
        raise PluginError(
            "the plugin implements no hook", hint=f"known: {', '.join(_hook_names())}"
        )


def _refuse_unknown(caller: pluggy.HookCaller) -> None:
    """Refuse a hook that nobody calls, which pluggy would register in silence."""
    if caller.name not in _hook_names():
        near = difflib.get_close_matches(caller.name, _hook_names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_hook_names())}"
        raise PluginError(f"there is no hook {caller.name!r}", hint=hint)


def _hook_names() -> list[str]:
    return [f"vlmkit_register_{kind}" for kind in KINDS]


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
