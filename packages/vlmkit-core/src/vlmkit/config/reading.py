"""Merges layers of values into one checked :class:`Config`, with the origin of each value."""

import difflib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from vlmkit.config.layers import (
    PREFIX,
    Keys,
    Leaf,
    from_assignments,
    from_environment,
    from_file,
    from_options,
    leaves,
    nested,
)
from vlmkit.config.paths import anchored, expanded
from vlmkit.config.structs import (
    Component,
    Config,
    Group,
    ModelEntry,
    descriptions,
    field_type,
    known_paths,
    sections_of,
    struct_of,
    with_tables,
)
from vlmkit.errors import ConfigError
from vlmkit.kit.model_uri import shown
from vlmkit.plugins.kinds import Table
from vlmkit.plugins.names import OWNERS_OF_TABLES
from vlmkit.plugins.setting_values import Place, fits, flaws, is_secret
from vlmkit.settings.plugins import PluginSettings

DEFAULT = "default"
ARGUMENT = "argument"
RENAMED: Mapping[Keys, Keys] = MappingProxyType({("server", "fetch"): ("fetch",)})
"""The new names of renamed tables and settings, by their old names."""
BASE = "config"


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of ``vlmkit config show``."""

    path: str
    value: Any
    origin: str
    description: str = ""

    @property
    def shown(self) -> Any:
        """The value, or ``***`` for a secret."""
        name = self.path.rpartition(".")[2]
        if name in ("model", "models"):
            return _shown_models(self.value)
        return "***" if self.value and is_secret(self.path, self.value) else self.value


def _shown_models(value: Any) -> Any:
    """Return the value of ``model`` or ``models`` without the secrets in URIs."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, list | tuple):
        return [_shown_models(each) for each in value]
    if isinstance(value, dict) and "model" in value:
        return value | {"model": _shown_models(value["model"])}
    return value


@dataclass(frozen=True, slots=True)
class LayeredConfig:
    """A checked config, and the origin of each of its values.

    Attributes:
        config: the values.
        given: the values that were set, with their origins, by path; others are defaults.
        errors: the errors of settings that were dropped, when diagnosing.
        unsound: the dotted names of these settings, and of those that were probably meant.
        unread: tables of vlmkit that no installed plugin decodes.
    """

    config: Config
    given: Mapping[Keys, Leaf]
    errors: tuple[ConfigError, ...] = ()
    unsound: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()

    @property
    def set_by(self) -> Mapping[str, str]:
        """The origin of each value that was set, by its dotted path."""
        return {".".join(path): leaf.origin for path, leaf in self.given.items()}

    def changed(self, change: Callable[[Leaf], Leaf]) -> "LayeredConfig":
        """Return the config after applying a function to each value that was set.

        Raises:
            ConfigError: a new value is invalid.
        """
        given = {path: change(leaf) for path, leaf in self.given.items()}
        return replace(self, config=_converted(given, type(self.config)), given=given)

    def settings(self) -> Iterator[Setting]:
        """Yield every setting of the core, and the settings of providers that were set."""
        yield from self._of(self.config, ())

    def _of(self, struct: msgspec.Struct, prefix: Keys) -> Iterator[Setting]:
        meanings = descriptions(type(struct))
        for field in msgspec.structs.fields(type(struct)):
            path, value = (*prefix, field.encode_name), getattr(struct, field.name)
            if isinstance(value, Component | Group):
                meaning = descriptions(type(value))["use"]
                yield self._setting((*path, "use"), value.use, meaning)
                for leaf in leaves(value.settings, DEFAULT, path):
                    yield self._setting(leaf.path, leaf.value, "")
            elif isinstance(value, msgspec.Struct):
                yield from self._of(value, path)
            else:
                yield self._setting(path, _without_defaults(value), meanings.get(field.name, ""))

    def _setting(self, path: Keys, value: Any, meaning: str) -> Setting:
        dotted = ".".join(path)
        return Setting(dotted, value, self.set_by.get(dotted, DEFAULT), meaning)


class _Refusal(NamedTuple):
    """The error of a setting, with its path, or the path that was probably meant."""

    error: ConfigError
    place: Place


@dataclass(frozen=True, slots=True)
class Layers:
    """The values of all layers, before they are decoded.

    Decoding has two steps. The table ``plugins`` selects the plugins to load. Once they are loaded,
    all tables are known, including those that plugins own.
    """

    leaves: tuple[Leaf, ...]

    def plugins(self) -> PluginSettings:
        """Return the settings that select the plugins to load.

        Raises:
            ConfigError: these settings are invalid.
        """
        given = [leaf for leaf in self.leaves if leaf.path[0] == "plugins"]
        return Layers(tuple(given)).read().config.plugins

    def read(
        self, tables: Mapping[str, Table] = MappingProxyType({}), *, diagnoses: bool = False
    ) -> LayeredConfig:
        """Merge the layers and return the config.

        A table of vlmkit is not decoded if the distribution that owns it is not installed.

        Args:
            tables: the types of the tables that plugins own, by name.
            diagnoses: drop invalid settings and report them in the result, instead of raising.

        Raises:
            ConfigError: a setting is unknown, or its value is invalid.
        """
        struct = with_tables(tables)
        absent = OWNERS_OF_TABLES.keys() - tables.keys()
        given = [leaf for leaf in self.leaves if not _is_unread(leaf, absent)]
        unread = {leaf.path[0] for leaf in self.leaves if _is_unread(leaf, absent)}
        merged, unknown = _merged(given, struct)
        if diagnoses:
            return replace(_sound(merged, unknown, struct), unread=frozenset(unread))
        if unknown:
            refused = [refusal.error for refusal in _refusals(merged, struct)]
            raise ConfigError.together([*(each.error for each in unknown), *refused])
        return LayeredConfig(_converted(merged, struct), merged, unread=frozenset(unread))


def _is_unread(leaf: Leaf, absent: Collection[str]) -> bool:
    """Return whether a value is for a plugin that is not installed, and may be ignored.

    A file or the environment may be shared with a server and hold its tables. A value that was
    given to this program alone is an error instead.
    """
    is_renamed = any(leaf.path[: len(old)] == old for old in RENAMED)
    is_shared = leaf.origin != ARGUMENT and not leaf.origin.startswith("--")
    return leaf.path[0] in absent and is_shared and not is_renamed


def read_layers(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    base: Config | None = None,
) -> Layers:
    """Read all layers.

    Args:
        file: the TOML file; None uses the file in ``VLMKIT_CONFIG``, if any.
        environ: the environment; None uses that of the process.
        assignments: ``section.key=value`` texts of the command line.
        options: values of command-line options for single settings, by dotted path.
        arguments: nested values of a Python program, which override all others.
        base: a config to start from instead of the defaults.

    Raises:
        ConfigError: the file cannot be read, or an assignment is malformed.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("VLMKIT_CONFIG")
    if file is None and named:
        file = Path(named)
    given: list[Leaf] = [] if base is None else list(leaves(_tree(base), BASE))
    if file is not None:
        given += from_file(expanded(str(file)))
    given += from_environment(environ)
    given += from_assignments(assignments)
    given += from_options(options or {})
    given += leaves(arguments or {}, ARGUMENT)
    return Layers(tuple(map(_files_of_plugins, given)))


def _sound(
    merged: Mapping[Keys, Leaf], unknown: Sequence[_Refusal], struct: type[Config]
) -> LayeredConfig:
    """Return the config without invalid settings, with the list of their errors."""
    refusals = [*unknown]
    pending = _refusals(merged, struct) or _contradictions(merged, struct)
    while pending:
        refusals += pending
        merged = _without([refusal.place for refusal in pending], merged)
        pending = _refusals(merged, struct) or _contradictions(merged, struct)
    errors = tuple(refusal.error for refusal in refusals)
    unsound = frozenset(
        ".".join(key for key in refusal.place if isinstance(key, str)) for refusal in refusals
    )
    return LayeredConfig(_converted(merged, struct), merged, errors, unsound)


def _merged(given: Iterable[Leaf], struct: type[Config]) -> tuple[dict[Keys, Leaf], list[_Refusal]]:
    """Return the last leaf of each known path, and the errors of unknown paths."""
    merged: dict[Keys, Leaf] = {}
    unknown: list[_Refusal] = []
    for leaf in given:
        if refusal := _unknown_path(leaf, struct):
            unknown.append(refusal)
            continue
        inside = [path for path in merged if path[: len(leaf.path)] == leaf.path]
        if leaf.value == {} and inside:
            continue
        # A value replaces a table at its path, and a value inside a table replaces a plain value.
        above = [path for path in merged if leaf.path[: len(path)] == path]
        for path in {*inside, *above}:
            del merged[path]
        merged[leaf.path] = _anchored(_as_text_if_needed(leaf, struct), struct)
    return merged, unknown


def _files_of_plugins(leaf: Leaf) -> Leaf:
    """Expand the short form ``plugins = [...]`` to ``plugins.files``."""
    is_short = leaf.path == ("plugins",) and isinstance(leaf.value, list | tuple)
    return replace(leaf, path=("plugins", "files")) if is_short else leaf


def _unknown_path(leaf: Leaf, config: type[Config]) -> _Refusal | None:
    """Return an error unless the core, or possibly a provider, knows a path."""
    struct: type[msgspec.Struct] | None = config
    for depth, key in enumerate(leaf.path):
        if struct is None:  # a plain value has no keys
            parent = ".".join(leaf.path[:depth])
            hint = "write [[models]]" if parent == "models" else ""
            error = ConfigError(f"{parent!r} has no key {key!r} ({leaf.origin})", hint=hint)
            return _Refusal(error, leaf.path[:depth])
        if struct is Component:
            return None
        if struct is Group:
            return _outside_group(leaf)
        fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
        if key not in fields:
            return _unknown(leaf, depth, list(fields), config)
        struct = struct_of(fields[key].type)
    if struct is None or isinstance(leaf.value, Mapping):
        return None
    return _Refusal(_not_a_section(leaf, struct), leaf.path)


def _not_a_section(leaf: Leaf, struct: type[msgspec.Struct]) -> ConfigError:
    """Return the error for a plain value at the path of a table."""
    dotted = ".".join(leaf.path)
    has_use = struct in (Component, Group)
    hint = f"did you mean {_spelt((*leaf.path, 'use'), leaf)}?" if has_use else ""
    if leaf.path == ("plugins",):
        hint = f"write a list of files: [{msgspec.json.encode(str(leaf.value)).decode()}]"
    hint = hint or f"write its settings in [{dotted}]"
    return ConfigError(f"{dotted!r} is a section, not one value ({leaf.origin})", hint=hint)


def _outside_group(leaf: Leaf) -> _Refusal | None:
    """Return an error unless a provider's setting in a group is in the provider's own table."""
    section, key, *rest = leaf.path
    if key == "use" or rest or isinstance(leaf.value, Mapping):
        return None
    error = ConfigError(
        f"{f'{section}.{key}'!r} is no setting ({leaf.origin})",
        hint=f"settings of a provider stand in [{section}.NAME]",
    )
    return _Refusal(error, leaf.path)


def _unknown(leaf: Leaf, depth: int, siblings: list[str], config: type[Config]) -> _Refusal:
    """Return the error for an unknown setting, with the path that was probably meant."""
    head, key, tail = leaf.path[:depth], leaf.path[depth], leaf.path[depth + 1 :]
    dotted = ".".join(leaf.path[: depth + 1])
    message = f"unknown setting {dotted!r} ({leaf.origin})"
    for old, new in RENAMED.items():
        if leaf.path[: len(old)] == old:
            meant = (*new, *leaf.path[len(old) :])
            return _Refusal(ConfigError(message, hint=f"it is {_spelt(meant, leaf)} now"), meant)
    paths = {".".join(path): path for path in known_paths(config)}
    for sibling in difflib.get_close_matches(key, siblings):
        paths[".".join((*head, sibling, *tail))] = (*head, sibling, *tail)
    given = ".".join(leaf.path)
    near = difflib.get_close_matches(given, paths, n=1, cutoff=0.75)
    near = near or [name for name, path in paths.items() if path[-1] == leaf.path[-1]]
    near = near or difflib.get_close_matches(given, paths, n=1)
    if near:
        meant = paths[near[0]]
        error = ConfigError(message, hint=f"did you mean {_spelt(meant, leaf)}?")
        return _Refusal(error, meant)
    error = ConfigError(message, hint="`vlmkit config schema` lists every setting")
    return _Refusal(error, leaf.path)


def _spelt(path: Keys, leaf: Leaf) -> str:
    """Return a path in the notation of the leaf's source."""
    if leaf.origin.startswith("environment "):
        return repr(PREFIX + "__".join(path).upper())
    return repr(".".join(path))


def _as_text_if_needed(leaf: Leaf, config: type[Config]) -> Leaf:
    """Return a leaf with its original text if the setting expects text, such as ``12345``."""
    kind = None if leaf.text is None else field_type(leaf.path, config)
    if kind is None or fits(leaf.value, kind) or not fits(leaf.text, kind):
        return leaf
    return replace(leaf, value=leaf.text)


def _anchored(leaf: Leaf, config: type[Config]) -> Leaf:
    """Resolve the paths in a setting of the core; those of providers need loaded plugins."""
    kind = field_type(leaf.path, config)
    if kind is None or (struct_of(kind) is not None and not isinstance(leaf.value, Mapping)):
        return leaf
    return replace(leaf, value=anchored(leaf.value, kind, leaf.folder))


def _converted(merged: Mapping[Keys, Leaf], struct: type[Config]) -> Config:
    """Return the typed config; an error names the setting, its value and its origin."""
    tree = _with_sections(merged, struct)
    try:
        config = msgspec.convert(tree, struct)
    except msgspec.ValidationError as error:
        refused = [refusal.error for refusal in _refusals(merged, struct)]
        raise ConfigError.together(refused) from error
    config.entries()  # raises an error if models contradict each other
    return config


def _with_sections(merged: Mapping[Keys, Leaf], struct: type[Config]) -> dict[str, Any]:
    """Return the tables of a config, with ``use`` and ``settings`` separate in each section."""
    tree = nested({path: leaf.value for path, leaf in merged.items()})
    default = struct()
    for section in sections_of(struct):
        table = tree.get(section, {})
        settings = {key: value for key, value in table.items() if key != "use"}
        use = table.get("use", getattr(default, section).use)
        tree[section] = {"use": use, "settings": settings}
    return tree


def _refusals(merged: Mapping[Keys, Leaf], struct: type[Config]) -> list[_Refusal]:
    """Return the errors of values, in the order in which the values were set."""
    paths = list(merged)
    refusals = []
    for flaw in flaws(_with_sections(merged, struct), struct):
        found = next((path for path in paths if path == flaw.place[: len(path)]), None)
        text = flaw.text(merged[found].origin if found else "")
        order = paths.index(found) if found else len(paths)
        refusals.append((order, _Refusal(ConfigError(text, hint=flaw.hint), flaw.place)))
    return [refusal for _, refusal in sorted(refusals, key=lambda each: each[0])]


def _contradictions(merged: Mapping[Keys, Leaf], struct: type[Config]) -> list[_Refusal]:
    """Return the errors of models that are valid separately but contradict each other."""
    config = msgspec.convert(_with_sections(merged, struct), struct)
    try:
        config.entries()
    except ConfigError as error:
        if config.model is not None:
            return [_Refusal(error, ("model",))]
        names: set[str] = set()
        for index, entry in enumerate(config.models):
            if not names.isdisjoint(entry.names) or len(set(entry.names)) < len(entry.names):
                return [_Refusal(error, ("models", index))]
            names.update(entry.names)
    return []


def _without(places: Sequence[Place], merged: Mapping[Keys, Leaf]) -> dict[Keys, Leaf]:
    """Return the values without those at the given paths."""
    kept = {}
    places = [place[:2] if place[2:] == ("model",) else place for place in places]  # of models
    for path, leaf in merged.items():
        inside = [place[len(path) :] for place in places if place[: len(path)] == path]
        if () not in inside and not any(path[: len(place)] == place for place in places):
            kept[path] = replace(leaf, value=_pruned(leaf.value, inside))
    return kept


def _pruned(value: Any, places: Sequence[Place]) -> Any:
    """Return a value without the parts at the given paths."""
    if not places:
        return value
    inner = {place[0]: [p[1:] for p in places if p[0] == place[0]] for place in places}
    if isinstance(value, Mapping):
        kept = {k: v for k, v in value.items() if () not in inner.get(k, ())}
        return {k: _pruned(v, inner.get(k, ())) for k, v in kept.items()}
    kept_items = [(i, v) for i, v in enumerate(value) if () not in inner.get(i, ())]
    return [_pruned(v, inner.get(i, ())) for i, v in kept_items]


def _tree(config: Config) -> dict[str, Any]:
    """Return a config as the nested tables of a config file."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    for section in sections_of(type(config)):
        stated: Component | Group = getattr(config, section)
        tree[section] = {"use": stated.use, **stated.settings}
    return {key: value for key, value in tree.items() if value is not None}


def _without_defaults(value: Any) -> Any:
    """Return a value as plain types; a model entry contains only what was set."""
    if isinstance(value, tuple) and any(isinstance(item, ModelEntry) for item in value):
        return [_stated(entry) for entry in value]
    return msgspec.to_builtins(value)


def _stated(entry: ModelEntry) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(entry)
    return {key: value for key, value in values.items() if value not in (None, {}, [])}
