"""From layers of values to one checked :class:`Config`, remembering who set what."""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
    SECTIONS,
    Component,
    Config,
    Group,
    ModelEntry,
    descriptions,
    field_type,
    is_secret,
    known_paths,
    struct_of,
)
from vlmkit.errors import ConfigError
from vlmkit.kit.model_uri import shown

DEFAULT = "default"
ARGUMENT = "argument"
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
        """The value, or stars in place of a secret."""
        name = self.path.rpartition(".")[2]
        if name in ("model", "models"):
            return _shown_models(self.value)
        return "***" if self.value and is_secret(name, self.value) else self.value


def _shown_models(value: Any) -> Any:
    """Return what ``model`` or ``models`` says, without the secrets of URIs."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, list | tuple):
        return [_shown_models(each) for each in value]
    if isinstance(value, dict) and "model" in value:
        return value | {"model": _shown_models(value["model"])}
    return value


@dataclass(frozen=True, slots=True)
class LayeredConfig:
    """A checked config, and who set each of its values.

    Attributes:
        config: the values.
        given: who set a value to what, by its path; what is not here is a default.
    """

    config: Config
    given: Mapping[Keys, Leaf]

    @property
    def origins(self) -> Mapping[str, str]:
        """Who set a value, by its dotted path."""
        return {".".join(path): leaf.origin for path, leaf in self.given.items()}

    def changed(self, change: Callable[[Leaf], Leaf]) -> "LayeredConfig":
        """Return the config with each value that was set changed.

        Raises:
            ConfigError: a value is not what was expected.
        """
        return _layered({path: change(leaf) for path, leaf in self.given.items()})

    def settings(self) -> Iterator[Setting]:
        """Yield every setting of the core, and those of providers that somebody set."""
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
        return Setting(dotted, value, self.origins.get(dotted, DEFAULT), meaning)


def read_config(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    arguments: Mapping[str, Any] | None = None,
    base: Config | None = None,
) -> LayeredConfig:
    """Read and check all layers.

    Args:
        file: the TOML file; None takes what ``VLMKIT_CONFIG`` names, if anything.
        environ: the environment; None takes the process's own.
        assignments: ``section.key=value`` texts of the command line.
        options: what the command line's own options for some settings say, by dotted path.
        arguments: nested values that a Python program gave; these win.
        base: a config to start from in place of the defaults.

    Raises:
        ConfigError: a setting is unknown, or its value is not what was expected.
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
    return _layered(_merged(given))


def _layered(merged: Mapping[Keys, Leaf]) -> LayeredConfig:
    tree = nested({path: leaf.value for path, leaf in merged.items()})
    return LayeredConfig(_converted(tree, merged), merged)


def _merged(given: Iterable[Leaf]) -> dict[Keys, Leaf]:
    """Return the last leaf of each path, after checking that the path exists."""
    merged: dict[Keys, Leaf] = {}
    errors: list[ConfigError] = []
    for leaf in map(_files_of_plugins, given):
        try:
            _check_known(leaf)
            _check_entries(leaf)
        except ConfigError as error:
            errors.append(error)
            continue
        inside = [path for path in merged if path[: len(leaf.path)] == leaf.path]
        if leaf.value == {} and inside:
            continue
        # A value replaces the table at its place, and a table's value what stood there before.
        above = [path for path in merged if leaf.path[: len(path)] == path]
        for path in {*inside, *above}:
            del merged[path]
        merged[leaf.path] = _anchored(_as_text_if_needed(leaf))
    errors += _values_refused(merged) if errors else ()
    if errors:
        raise _together(errors)
    return merged


def _together(errors: Sequence[ConfigError]) -> ConfigError:
    """Return the first error, which has all others with it."""
    first, *others = errors
    return ConfigError(str(first), hint=first.hint, others=tuple(others))


def _files_of_plugins(leaf: Leaf) -> Leaf:
    """Take a list of plugins for their files, which it means for short."""
    is_short = leaf.path == ("plugins",) and isinstance(leaf.value, list | tuple)
    return replace(leaf, path=("plugins", "files")) if is_short else leaf


def _check_known(leaf: Leaf) -> None:
    """Raise unless the core, or perhaps a provider, knows the path."""
    struct: type[msgspec.Struct] | None = Config
    for depth, key in enumerate(leaf.path):
        if struct is None:  # a value of the core's has no keys of its own
            parent = ".".join(leaf.path[:depth])
            hint = "write [[models]]" if parent == "models" else ""
            raise ConfigError(f"{parent!r} has no key {key!r} ({leaf.origin})", hint=hint)
        if struct is Component:
            return
        if struct is Group:
            _check_group(leaf)
            return
        fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
        if key not in fields:
            raise _unknown(leaf, depth, list(fields))
        struct = struct_of(fields[key].type)
    if struct is not None and not isinstance(leaf.value, Mapping):
        dotted = ".".join(leaf.path)
        has_use = struct in (Component, Group)
        hint = f"did you mean {_spelt((*leaf.path, 'use'), leaf)}?" if has_use else ""
        if leaf.path == ("plugins",):
            hint = f"write a list of files: [{msgspec.json.encode(str(leaf.value)).decode()}]"
        raise ConfigError(f"{dotted!r} is a section, not one value ({leaf.origin})", hint=hint)


def _check_group(leaf: Leaf) -> None:
    """Raise unless a setting in a section of several providers is in a provider's own table."""
    section, key, *rest = leaf.path
    if key != "use" and not rest and not isinstance(leaf.value, Mapping):
        raise ConfigError(
            f"{f'{section}.{key}'!r} is no setting ({leaf.origin})",
            hint=f"settings of a provider stand in [{section}.NAME]",
        )


def _check_entries(leaf: Leaf) -> None:
    """Check the keys of each ``[[models]]`` table."""
    if leaf.path != ("models",) or not isinstance(leaf.value, list):
        return
    known = [field.encode_name for field in msgspec.structs.fields(ModelEntry)]
    for index, entry in enumerate(leaf.value):
        for key in entry if isinstance(entry, dict) else ():
            if key not in known:
                hint = _near(key, known) or f"known: {', '.join(known)}"
                raise ConfigError(
                    f"unknown setting 'models[{index}].{key}' ({leaf.origin})", hint=hint
                )


def _unknown(leaf: Leaf, depth: int, siblings: list[str]) -> ConfigError:
    """Say which setting is unknown, and which one was probably meant."""
    head, key, tail = leaf.path[:depth], leaf.path[depth], leaf.path[depth + 1 :]
    dotted = ".".join(leaf.path[: depth + 1])
    message = f"unknown setting {dotted!r} ({leaf.origin})"
    paths = {".".join(path): path for path in known_paths(Config)}
    for sibling in difflib.get_close_matches(key, siblings):
        paths[".".join((*head, sibling, *tail))] = (*head, sibling, *tail)
    given = ".".join(leaf.path)
    near = difflib.get_close_matches(given, paths, n=1, cutoff=0.75)
    near = near or [name for name, path in paths.items() if path[-1] == leaf.path[-1]]
    near = near or difflib.get_close_matches(given, paths, n=1)
    if near:
        return ConfigError(message, hint=f"did you mean {_spelt(paths[near[0]], leaf)}?")
    return ConfigError(message, hint="`vlmkit config schema` lists every setting")


def _spelt(path: Keys, leaf: Leaf) -> str:
    """Write a path the way in which the leaf's source writes paths."""
    if leaf.origin.startswith("environment "):
        return repr(PREFIX + "__".join(path).upper())
    return repr(".".join(path))


def _near(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _as_text_if_needed(leaf: Leaf) -> Leaf:
    """Take ``12345`` as it was written where a text is wanted, such as a key or a name."""
    kind = None if leaf.text is None else field_type(leaf.path, Config)
    if kind is None or _fits(leaf.value, kind) or not _fits(leaf.text, kind):
        return leaf
    return replace(leaf, value=leaf.text)


def _anchored(leaf: Leaf) -> Leaf:
    """Resolve the paths in a setting of the core; those of providers have to wait for plugins."""
    kind = field_type(leaf.path, Config)
    if kind is None or (struct_of(kind) is not None and not isinstance(leaf.value, Mapping)):
        return leaf
    return replace(leaf, value=anchored(leaf.value, kind, leaf.folder))


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _converted(tree: dict[str, Any], merged: Mapping[Keys, Leaf]) -> Config:
    """Return the typed config; an error names the setting, its value and who set it."""
    default = Config()
    for section in SECTIONS:
        own = tree.get(section, {})
        settings = {key: value for key, value in own.items() if key != "use"}
        use = own.get("use", getattr(default, section).use)
        tree[section] = {"use": use, "settings": settings}
    try:
        config = msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        raise _together(_values_refused(merged) or [_refused(str(error), merged)]) from error
    config.entries()  # raises where they contradict each other
    return config


def _values_refused(merged: Mapping[Keys, Leaf]) -> list[ConfigError]:
    """Return what is wrong with each value of the core's by itself."""
    errors = []
    for path, leaf in merged.items():
        if path[0] in SECTIONS and path[1:] != ("use",):  # its provider knows
            continue
        try:
            msgspec.convert(nested({path: leaf.value}), Config)
        except msgspec.ValidationError as error:
            errors.append(_refused(str(error), merged))
    return errors


def _refused(message: str, merged: Mapping[Keys, Leaf]) -> ConfigError:
    expected, _, where = message.partition(" - at `$.")
    dotted = where.rstrip("`")
    path = tuple(re.sub(r"\[.*", "", dotted).split("."))
    leaf = merged.get(path)
    if leaf is None:
        return ConfigError(f"{dotted or 'config'}: {expected}")
    if "[" in dotted:
        return ConfigError(f"{dotted} ({leaf.origin}): {expected}")
    value = "***" if is_secret(path[-1], leaf.value) else repr(leaf.value)
    return ConfigError(f"{dotted} = {value} ({leaf.origin}): {expected}")


def _tree(config: Config) -> dict[str, Any]:
    """Return a config as the nested tables that a file would hold."""
    tree: dict[str, Any] = msgspec.to_builtins(config)
    for section in SECTIONS:
        stated: Component | Group = getattr(config, section)
        tree[section] = {"use": stated.use, **stated.settings}
    return {key: value for key, value in tree.items() if value is not None}


def _without_defaults(value: Any) -> Any:
    """Return a value of plain types; of a model entry only what was set."""
    if isinstance(value, tuple) and any(isinstance(item, ModelEntry) for item in value):
        return [_stated(entry) for entry in value]
    return msgspec.to_builtins(value)


def _stated(entry: ModelEntry) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(entry)
    return {key: value for key, value in values.items() if value not in (None, {}, [])}
