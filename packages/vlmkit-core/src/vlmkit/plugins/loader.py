"""Find plugins, load each one in isolation, and collect what they offer.

One plugin that is broken in any way (it fails to import, misspells a hook, gives a hook argument a
default, registers a name twice, was written for another API version) is recorded with its reason,
offers nothing and harms nobody; it is fatal only if the config selects something of it. What it
does to the process on the way is undone where that is possible, and told. Code that ends the
process at once, or changes a library from within, cannot be survived.
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
from typing import Any, TypeVar

import msgspec

from vlmkit.deprecated import REMOVED_IN, OldName, forget
from vlmkit.errors import ConfigError, PluginError
from vlmkit.kit.one_line import named, one_line
from vlmkit.plugins import api_version, builtin
from vlmkit.plugins.candidates import Candidate, installed
from vlmkit.plugins.hooks import collect
from vlmkit.plugins.import_side_effects import ImportSideEffects
from vlmkit.plugins.kinds import KINDS, Kind, Table
from vlmkit.plugins.names import OWN, OWN_PLUGINS, OWNERS_OF_TABLES, canonical
from vlmkit.plugins.registries import Registries
from vlmkit.plugins.stdout_guard import StdoutGuard

T = TypeVar("T")
log = logging.getLogger(__name__)

RESERVED_TABLES = frozenset({"fetch", "model", "models", "pipeline", "plugins", "revision"})
"""Tables and settings of the core at the top of the config, but for those of its kinds."""
HEAVY = frozenset(
    {
        *("torch", "torchvision", "transformers", "tokenizers", "huggingface_hub", "safetensors"),
        *("numpy", "scipy", "pandas", "PIL", "cv2", "matplotlib", "sklearn", "numba"),
        *("onnxruntime", "onnx", "jax", "tensorflow", "mlx", "triton", "vllm", "pydantic"),
    }
)
"""Libraries whose import is felt; those that a plugin imports at once are told with its time."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin that was found, and what became of it.

    Attributes:
        name: the entry point's name, or the file's stem.
        source: the distribution's name, or the path of a local file or folder.
        version: of the distribution; empty for a file.
        error: why it offers nothing; None when it loaded.
        remarks: what it did that no plugin should, as the ends of sentences about it.
        blocked: whether VLMKIT_BLOCK names it.
        unlisted: whether ``plugins.only`` names others.
        import_s: how long its import took, with what it imported that was not there.
        num_modules: how many modules came with it.
        heavy: the libraries among them that are better imported in ``build``.
        digest: returns the SHA-256 of the distribution's RECORD, which has the hashes of its files,
            or that of a local file; empty where there is none.
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
        """Whether its code was run, and it offers what it has."""
        return not (self.error or self.blocked or self.unlisted)

    @property
    def who(self) -> str:
        """How messages call it: by its name, its distribution and the version of that."""
        version = f" {self.version}" if self.version else ""
        return f"plugin {self.name!r} of {self.source}{version}"


class Plugins(Registries):
    """Everything that plugins offer, and every plugin that was found.

    Attributes:
        found: all of them.
        notes: what is odd about how plugins were chosen, as sentences.
        errors: what is wrong with how they were chosen, where that was not raised.
        tables: what decodes the tables of the config that plugins own, by their names.
        aside: stood in for standard output; threads of plugins may know it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Plugin] = []
        self.notes: list[str] = []
        self.errors: list[ConfigError] = []
        self.tables: dict[str, Table] = {}
        self.aside = StdoutGuard()

    @property
    def sections(self) -> dict[str, Kind[Any]]:
        """The kind of each table of the config that selects among providers."""
        owned = {name: kind for name, kind in self.tables.items() if isinstance(kind, Kind)}
        return {kind.section: kind for kind in KINDS if kind.section} | owned

    @property
    def broken(self) -> dict[str, Exception]:
        """Reason by source of each plugin that could not be loaded.

        Of a distribution that has several, each goes by its own name, too.
        """
        sources = [plugin.source for plugin in self.found]
        return {
            p.source if sources.count(p.source) == 1 else f"{p.source} ({p.name})": p.error
            for p in self.found
            if p.error
        }


class _Attempt:
    """One candidate on its way in: opened first, and asked for what it offers when all are."""

    def __init__(
        self, candidate: Candidate, aside: StdoutGuard, *, is_blocked: bool, is_unlisted: bool
    ) -> None:
        self._candidate = candidate
        self._aside = aside
        self._is_blocked = is_blocked
        self._is_unlisted = is_unlisted
        self._remarks: list[str] = []
        self._error: Exception | None = None
        self._module: Any = None
        self._import_s = 0.0
        self._new_modules: set[str] = set()

    def open(self, plugins: Plugins) -> None:
        """Import it and take the kinds that it owns."""
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
        api_version.check_part(self._candidate.source, self._candidate.version)
        return self._candidate.load()

    def collect(self, plugins: Plugins) -> None:
        """Take what it offers."""
        is_left_out = self._is_blocked or self._is_unlisted
        if not is_left_out and self._error is None:
            self._tried(lambda: collect(self._candidate.source, plugins, self._module))

    def told(self) -> Plugin:
        """Return what became of it."""
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
        """Return what a plugin's code returns; it may raise anything, and is held to nothing."""
        around = ImportSideEffects(self._aside)
        try:
            with around, _old_names(self._remarks):
                return do()
        except Exception as error:  # noqa: BLE001
            self._note(error)
        except SystemExit as error:
            self._note(PluginError("the plugin tried to end the process"), error)
        except BaseException as error:
            if around.was_interrupted:
                raise
            self._note(PluginError(f"the plugin raised {named(error)}, which is no error"), error)
        finally:
            self._remarks += around.remarks
        return None

    def _note(self, error: Exception, cause: BaseException | None = None) -> None:
        if cause is not None:
            error.__cause__ = cause
        self._error = error
        log.info("%s could not be loaded", self.told().who, exc_info=error)


@contextmanager
def _old_names(remarks: list[str]) -> Iterator[None]:
    """Add a remark for each old name of a module that is imported meanwhile."""
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
    """Load the built-in components and every plugin; a broken one is recorded, never fatal.

    Args:
        files: local Python files, or folders with an ``__init__.py``, that are plugins too.
        block: entry-point names, distribution names or file paths to leave out.
        only: names of distributions; no plugin of another one is imported. All are when None.
        entry_points: what to load in place of the installed entry points, for tests.
        is_lenient: report wrong names of ``only`` in the result, in place of raising.

    Raises:
        ConfigError: ``only`` names a distribution that has no plugin here.
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
            plugins.aside,
            is_blocked=bool(candidate.names & blocked),
            is_unlisted=_is_unlisted(candidate, there, listed),
        )
        for candidate in candidates
    ]
    plugins.notes += _unknown(named, candidates)
    with plugins.aside.in_place():
        for attempt in attempts:  # all kinds are known before the first hook is called
            attempt.open(plugins)
        for attempt in attempts:
            attempt.collect(plugins)
    plugins.found += [attempt.told() for attempt in attempts]
    return plugins


def _take_kinds(plugin: Any, plugins: Plugins, source: str) -> None:
    api_version.check(getattr(plugin, "VLMKIT_API", None))
    kinds = getattr(plugin, "VLMKIT_KINDS", ())
    for kind in kinds if isinstance(kinds, tuple | list) else ():
        _refuse_reserved(getattr(kind, "plural", ""), source)
    plugins.own(kinds)
    _take_tables(getattr(plugin, "VLMKIT_TABLES", {}), plugins, source)


def _refuse_reserved(name: str, source: str) -> None:
    """Refuse a kind or table that belongs to a part of vlmkit, which need not be installed."""
    owner = OWNERS_OF_TABLES.get(name, source)
    if canonical(owner) != canonical(source):
        raise PluginError(f"{name!r} belongs to {owner}", hint="give it another name")


def _take_tables(tables: object, plugins: Plugins, source: str) -> None:
    """Take the tables of the config that a plugin decodes; all or none.

    Raises:
        PluginError: they are not a mapping of names to structs or kinds of mode ``all``, or a table
            is another's.
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
    """Tell whether an installed plugin is none of those that may be loaded."""
    is_installed = any(candidate is each for each in there)
    return is_installed and listed is not None and canonical(candidate.source) not in listed


def _unknown_listed(only: Iterable[str], there: Iterable[Candidate]) -> Iterator[ConfigError]:
    """Yield an error for each distribution that may be loaded and has no plugin here."""
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
    """Say of each name to leave out that nothing is called by what may be meant."""
    known = {own: candidate for candidate in candidates for own in candidate.names}
    notes = []
    for name in block:
        if canonical(name) in known:
            continue
        near = difflib.get_close_matches(canonical(name), known, n=1)
        hint = f"; did you mean {known[near[0]].source!r}?" if near else ""
        notes.append(
            f"VLMKIT_BLOCK leaves out {one_line(name.strip(), 100)!r}, and no plugin or "
            f"distribution here is called so{hint}"
        )
    return notes
