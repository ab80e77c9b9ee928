"""Finds plugins, loads each in isolation, and registers what they provide.

A broken plugin is recorded with its error and registers nothing; others work. A plugin is broken if
it fails to import, misspells a hook, gives a hook argument a default, registers a name twice, or
was written for another API version. It is fatal only if the config selects something of it. Its
side effects on the process are undone where possible, and reported. Nothing helps against a plugin
that ends the process at once or patches a library.

A plugin states ``VLMKIT_API = (major, minor)``, the version that it was written for. The major
number is raised for a change that breaks plugins, the minor number for an addition.
"""

import difflib
import importlib.metadata
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import msgspec

from vlmkit._version import __version__
from vlmkit.deprecated import REMOVED_IN, OldName, forget
from vlmkit.errors import ConfigError, PluginError
from vlmkit.kit import heap
from vlmkit.kit.one_line import named, one_line
from vlmkit.plugins import builtin
from vlmkit.plugins.candidates import Candidate, installed
from vlmkit.plugins.hooks import collect
from vlmkit.plugins.hookspecs import API_VERSION
from vlmkit.plugins.import_side_effects import ImportSideEffects
from vlmkit.plugins.kinds import KINDS, Kind, Table
from vlmkit.plugins.names import OWN, OWN_PLUGINS, OWNERS_OF_TABLES, canonical
from vlmkit.plugins.registries import Registries
from vlmkit.plugins.stdout_guard import StdoutGuard

T = TypeVar("T")
log = logging.getLogger(__name__)

RESERVED_TABLES = frozenset(
    {"fetch", "model", "models", "pipeline", "plugins", "projector", "revision"}
)
"""Top-level tables and settings of the core, without those of its kinds."""
HEAVY = frozenset(
    {
        *("torch", "torchvision", "transformers", "tokenizers", "huggingface_hub", "safetensors"),
        *("numpy", "scipy", "pandas", "PIL", "cv2", "matplotlib", "sklearn", "numba"),
        *("onnxruntime", "onnx", "jax", "tensorflow", "mlx", "triton", "vllm", "pydantic"),
    }
)
"""Libraries with slow imports; those that a plugin imports at start-up are shown with its time."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin that was found, and the result of loading it.

    Attributes:
        name: the entry point's name, or the file's stem.
        source: the distribution's name, or the path of a local file or folder.
        version: the version of the distribution; empty for a file.
        error: the error that prevented loading; None if it loaded.
        remarks: its unwanted side effects, as the ends of sentences about it.
        blocked: whether VLMKIT_BLOCK excludes it.
        unlisted: whether ``plugins.only`` excludes it.
        import_s: time of its import in seconds, including modules that it imported first.
        num_modules: number of modules that it imported first.
        heavy: the libraries among them that should be imported in ``build``.
        digest: returns the SHA-256 of the distribution's RECORD, which has the hashes of its files,
            or of a local file; empty if there is none.
    """

    name: str
    source: str
    version: str = ""
    error: Exception | None = None
    remarks: tuple[str, ...] = ()
    blocked: bool = False
    unlisted: bool = False
    import_s: float = field(default=0.0, compare=False)
    num_modules: int = field(default=0, compare=False)
    heavy: tuple[str, ...] = field(default=(), compare=False)
    digest: Callable[[], str] = field(default=str, repr=False, compare=False)

    @property
    def is_loaded(self) -> bool:
        """Whether it was loaded and its providers are registered."""
        return not (self.error or self.blocked or self.unlisted)

    @property
    def who(self) -> str:
        """Its description in messages: name, distribution and version."""
        version = f" {self.version}" if self.version else ""
        return f"plugin {self.name!r} of {self.source}{version}"


class Plugins(Registries):
    """The registries of all providers, and every plugin that was found.

    Attributes:
        found: all plugins.
        notes: warnings about the selection of plugins, as sentences.
        errors: errors in the selection of plugins that were not raised.
        tables: the types of the config tables that plugins own, by name.
        stdout_guard: replaced standard output during loading; threads of plugins may still use it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Plugin] = []
        self.notes: list[str] = []
        self.errors: list[ConfigError] = []
        self.tables: dict[str, Table] = {}
        self.stdout_guard = StdoutGuard()

    @property
    def sections(self) -> dict[str, Kind[Any]]:
        """The kind of each table of the config that selects among providers."""
        owned = {name: kind for name, kind in self.tables.items() if isinstance(kind, Kind)}
        return {kind.section: kind for kind in KINDS if kind.section} | owned

    @property
    def broken(self) -> dict[str, Exception]:
        """The error of each plugin that could not be loaded, by source.

        The key also has the plugin's name if its distribution has several plugins.
        """
        sources = [plugin.source for plugin in self.found]
        return {
            p.source if sources.count(p.source) == 1 else f"{p.source} ({p.name})": p.error
            for p in self.found
            if p.error
        }


class _Attempt:
    """Loads one candidate in two steps: all are imported before the first hook is called."""

    def __init__(
        self,
        candidate: Candidate,
        stdout_guard: StdoutGuard,
        *,
        is_blocked: bool,
        is_unlisted: bool,
    ) -> None:
        self._candidate = candidate
        self._stdout_guard = stdout_guard
        self._is_blocked = is_blocked
        self._is_unlisted = is_unlisted
        self._remarks: list[str] = []
        self._error: Exception | None = None
        self._module: Any = None
        self._import_s = 0.0
        self._new_modules: set[str] = set()

    def open(self, plugins: Plugins) -> None:
        """Import the plugin and register the kinds and tables that it owns."""
        if self._is_blocked or self._is_unlisted:
            return
        self._remarks += self._candidate.remarks
        before, began = set(sys.modules), time.perf_counter()
        self._module = self._tried(self._loaded)
        self._import_s = time.perf_counter() - began
        self._new_modules = sys.modules.keys() - before
        if self._error is None:
            self._tried(lambda: _take_kinds(self._module, plugins, self._candidate.source))

    def _loaded(self) -> Any:
        _check_part(self._candidate.source, self._candidate.version)
        return self._candidate.load()

    def collect(self, plugins: Plugins) -> None:
        """Call the hooks of the plugin."""
        is_left_out = self._is_blocked or self._is_unlisted
        if not is_left_out and self._error is None:
            self._tried(lambda: collect(self._candidate.source, plugins, self._module))

    def result(self) -> Plugin:
        """Return the result of loading."""
        candidate = self._candidate
        packages = {name.partition(".")[0] for name in self._new_modules}
        return Plugin(
            *(candidate.name, candidate.source, candidate.version, self._error),
            remarks=tuple(dict.fromkeys(self._remarks)),
            blocked=self._is_blocked,
            unlisted=self._is_unlisted,
            import_s=self._import_s,
            num_modules=len(self._new_modules),
            heavy=tuple(sorted(packages & HEAVY)),
            digest=candidate.digest,
        )

    def _tried(self, do: Callable[[], T]) -> T | None:
        """Call code of the plugin, which may raise anything; record its errors and side effects."""
        side_effects = ImportSideEffects(self._stdout_guard)
        try:
            with side_effects, _old_names(self._remarks):
                return do()
        except Exception as error:  # noqa: BLE001
            self._note(error)
        except SystemExit as error:
            self._note(PluginError("the plugin tried to end the process"), error)
        except BaseException as error:
            if side_effects.was_interrupted:
                raise
            self._note(PluginError(f"the plugin raised {named(error)}, which is no error"), error)
        finally:
            self._remarks += side_effects.remarks
        return None

    def _note(self, error: Exception, cause: BaseException | None = None) -> None:
        if cause is not None:
            error.__cause__ = cause
        self._error = error
        log.info("%s could not be loaded", self.result().who, exc_info=error)


@contextmanager
def _old_names(remarks: list[str]) -> Iterator[None]:
    """Add a remark for each old module name that is imported in the context."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OldName)
        try:
            yield
        finally:
            for each in caught:
                if isinstance(each.message, OldName):
                    old, new = each.message.old, each.message.new
                    text = f"imports {old}, which is {new} now; vlmkit {REMOVED_IN} removes the"
                    remarks.append(f"{text} old name")
                    forget(old)
    for each in caught:
        if not isinstance(each.message, OldName):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def load(
    *,
    files: Sequence[Path] = (),
    block: Iterable[str] = (),
    only: Iterable[str] | None = None,
    entry_points: Sequence[importlib.metadata.EntryPoint] | None = None,
    is_lenient: bool = False,
) -> Plugins:
    """Load the built-in components and every plugin; a broken plugin is recorded, never fatal.

    Args:
        files: local Python files, or folders with an ``__init__.py``, to load as plugins.
        block: names of entry points or distributions, or file paths, to exclude.
        only: names of distributions; no plugin of another one is imported. None imports all.
        entry_points: entry points to load instead of the installed ones, for tests.
        is_lenient: report wrong names in ``only`` in the result, instead of raising.

    Raises:
        ConfigError: ``only`` names a distribution without an installed plugin.
    """
    there = installed(entry_points)
    local = [Candidate(path.stem, str(path), "", path) for path in dict.fromkeys(files)]
    names = None if only is None else list(only)
    errors = [*_unknown_listed(names or (), there)]
    if errors and not is_lenient:
        raise ConfigError.together(errors)
    listed = None if names is None else {*map(canonical, names), *OWN_PLUGINS}
    candidates = [Candidate("builtin", OWN, "", builtin), *there, *local]
    named = [name for name in block if name.strip()]
    blocked = set(map(canonical, named))
    plugins = Plugins()
    plugins.errors += errors
    attempts = [
        _Attempt(
            candidate,
            plugins.stdout_guard,
            is_blocked=bool(candidate.names & blocked),
            is_unlisted=_is_unlisted(candidate, there, listed),
        )
        for candidate in candidates
    ]
    plugins.notes += _unknown(named, candidates)
    with plugins.stdout_guard.installed(), heap.paused_collection():
        for attempt in attempts:  # all kinds must be known before the first hook is called
            attempt.open(plugins)
        for attempt in attempts:
            attempt.collect(plugins)
    plugins.found += [attempt.result() for attempt in attempts]
    return plugins


def _take_kinds(plugin: Any, plugins: Plugins, source: str) -> None:
    _check_api_version(getattr(plugin, "VLMKIT_API", None))
    kinds = getattr(plugin, "VLMKIT_KINDS", ())
    for kind in kinds if isinstance(kinds, tuple | list) else ():
        _refuse_reserved(getattr(kind, "plural", ""), source)
    plugins.own(kinds)
    _take_tables(getattr(plugin, "VLMKIT_TABLES", {}), plugins, source)


def _refuse_reserved(name: str, source: str) -> None:
    """Raise an error for a kind or table whose name another distribution of vlmkit owns."""
    owner = OWNERS_OF_TABLES.get(name, source)
    if canonical(owner) != canonical(source):
        raise PluginError(f"{name!r} belongs to {owner}", hint="give it another name")


def _take_tables(tables: object, plugins: Plugins, source: str) -> None:
    """Register the config tables that a plugin owns; all or none.

    Raises:
        PluginError: the tables are not a mapping of names to structs or kinds of mode ``all``, or a
            name is taken.
    """
    if not isinstance(tables, Mapping):
        raise PluginError(
            f"VLMKIT_TABLES is of type {type(tables).__name__!r}",
            hint='make it a mapping, such as {"cluster": ClusterSettings}',
        )
    for name, decoder in tables.items():
        if not isinstance(name, str) or not name.isidentifier() or not _is_decoder(decoder):
            raise PluginError(
                f"VLMKIT_TABLES has {name!r}: {decoder!r}",
                hint="give a name the subclass of msgspec.Struct that decodes its table, or a kind "
                "of mode 'all'",
            )
        _refuse_reserved(name, source)
        if name in plugins.sections or name in plugins.tables or name in RESERVED_TABLES:
            raise PluginError(
                f"there is a table {name!r} in the config already", hint="give it another name"
            )
    plugins.tables |= tables


def _is_decoder(decoder: object) -> bool:
    if isinstance(decoder, Kind):
        return bool(decoder.mode == "all")
    return isinstance(decoder, type) and issubclass(decoder, msgspec.Struct)


def _is_unlisted(candidate: Candidate, there: list[Candidate], listed: set[str] | None) -> bool:
    """Return whether ``plugins.only`` excludes an installed plugin."""
    is_installed = any(candidate is each for each in there)
    return is_installed and listed is not None and canonical(candidate.source) not in listed


def _unknown_listed(only: Iterable[str], there: Iterable[Candidate]) -> Iterator[ConfigError]:
    """Yield an error for each name in ``only`` without an installed plugin."""
    known = {canonical(candidate.source): candidate.source for candidate in there}
    for name in only:
        if canonical(name) not in {*known, *OWN_PLUGINS}:
            near = difflib.get_close_matches(canonical(name), known, n=1)
            all_known = f"there are: {', '.join(sorted(known.values())) or 'none'}"
            yield ConfigError(
                f"plugins.only names {name!r}, and no installed distribution of that name has a "
                "plugin",
                hint=f"did you mean {known[near[0]]!r}?" if near else all_known,
            )


def _unknown(block: Iterable[str], candidates: Sequence[Candidate]) -> list[str]:
    """Return a warning for each unknown name in VLMKIT_BLOCK."""
    known = {name: candidate for candidate in candidates for name in candidate.names}
    notes = []
    for name in block:
        if canonical(name) in known:
            continue
        near = difflib.get_close_matches(canonical(name), known, n=1)
        hint = f"; did you mean {known[near[0]].source!r}?" if near else ""
        notes.append(
            f"VLMKIT_BLOCK names {one_line(name.strip(), 100)!r}, and no plugin or "
            f"distribution has that name{hint}"
        )
    return notes


def _check_api_version(stated: object) -> None:
    """Check the API version of a plugin: equal major number, minor number not above ours.

    Raises:
        PluginError: the plugin was written for another version, or states none.
    """
    major, minor = API_VERSION
    version = (stated, 0) if type(stated) is int else stated  # 1 is short for (1, 0)
    if stated is None:
        problem = "does not say VLMKIT_API"
    elif not _is_version(version):
        problem = f"has VLMKIT_API = {stated!r}, which is not (major, minor)"
    elif version[0] != major or version[1] > minor:
        problem = f"has VLMKIT_API = {stated!r}"
    else:
        return
    raise PluginError(
        f"the plugin {problem}; this vlmkit offers {API_VERSION!r}",
        hint=f"install matching versions of both, or state VLMKIT_API = {API_VERSION!r} once the "
        "plugin follows docs/reference/stability.md",
    )


def _check_part(distribution: str, version: str) -> None:
    """Check that a distribution of vlmkit matches the version of the core.

    Versions match if their first two numbers are equal.

    Raises:
        PluginError: the versions do not match; names both.
    """
    if distribution in OWN_PLUGINS and _series(version) != _series(__version__):
        raise PluginError(
            f"{distribution} {version} does not go with vlmkit-core {__version__}",
            hint=f"install {distribution} {'.'.join(_series(__version__))}, or another core",
        )


def _series(version: str) -> list[str]:
    return version.split(".")[:2]


def _is_version(stated: object) -> TypeGuard[tuple[int, int]]:
    return isinstance(stated, tuple) and [type(part) for part in stated] == [int, int]
