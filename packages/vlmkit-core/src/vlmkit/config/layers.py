"""The sources of settings: a TOML file, the environment, the command line, Python arguments.

Each source yields leaves: a path, a value and an origin. This module does not check whether a
setting exists.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vlmkit.errors import ConfigError

PREFIX = "VLMKIT_"
RESERVED_VARIABLES = {
    "VLMKIT_BLOCK": "plugins not to load: names of plugins or distributions, separated by commas; "
    "unknown names are reported",
    "VLMKIT_CONFIG": "the config file, if --config is not given",
    "VLMKIT_DEBUG": "1 shows tracebacks and the log, as `vlmkit --debug` does",
}
MAX_FILE_BYTES = 2**20
ADDRESS = re.compile(r"(tcp|udp|sctp)://")
ABOUT_SERVICE = re.compile(r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|_PORT(_\d+_[A-Z]+(_[A-Z]+)?)?")

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a source.

    Attributes:
        path: the keys that lead to it.
        value: the value.
        origin: the source, for messages.
        text: the original text, if the value was parsed from a text that may be a string or not.
        folder: the folder that paths in the value are relative to; None for the working directory.
    """

    path: Keys
    value: Any
    origin: str
    text: str | None = None
    folder: Path | None = None


def from_file(file: Path) -> Iterator[Leaf]:
    """Yield the values of a TOML file, whose paths are relative to its folder.

    Raises:
        ConfigError: the file cannot be read, is not TOML or is too large.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"config file {str(file)!r} cannot be read: {error.strerror}", hint="check the path"
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"config file {str(file)!r} is over {MAX_FILE_BYTES} bytes")
    try:
        tree = tomllib.loads(content.decode())
    except ValueError as error:  # TOMLDecodeError, or the bytes are not UTF-8
        raise ConfigError(
            f"config file {str(file)!r} is not valid TOML: {error}",
            hint="fix the line; texts need quotes, and tables begin with [name]",
        ) from error
    for leaf in leaves(tree, str(file)):
        yield replace(leaf, folder=file.parent)


def from_environment(environ: Mapping[str, str]) -> Iterator[Leaf]:
    """Yield a value for each ``VLMKIT_SECTION__KEY`` variable."""
    others = RESERVED_VARIABLES.keys() | _of_services(environ)
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in others:
            path = tuple(name.removeprefix(PREFIX).lower().split("__"))
            yield from _from_text(path, environ[name], f"environment {name}")


def from_assignments(assignments: Iterable[str]) -> Iterator[Leaf]:
    """Yield a value for each ``section.key=value``.

    Raises:
        ConfigError: an assignment has no ``=``, or a key is empty.
    """
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        path = tuple(key.strip() for key in dotted.split("."))
        if not equals or not all(path):
            raise ConfigError(f"--set {assignment!r} must read section.key=value")
        yield from _from_text(path, text.strip(), f"--set {dotted.strip()}")


def from_options(options: Mapping[str, str]) -> Iterator[Leaf]:
    """Yield a value for each setting with its own option; the option is named by the last key."""
    for dotted, text in options.items():
        path = tuple(dotted.split("."))
        yield from _from_text(path, text, f"--{path[-1].replace('_', '-')}")


def leaves(tree: Mapping[str, Any], origin: str, prefix: Keys = ()) -> Iterator[Leaf]:
    """Yield the values of nested tables; a list and an empty table are values."""
    for key, value in tree.items():
        path = (*prefix, key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, origin, path)
        else:
            yield Leaf(path, value, origin)


def nested(values: Mapping[Keys, Any]) -> dict[str, Any]:
    """Return nested tables from values by path; no path may begin with another."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        table = tree
        for key in path[:-1]:
            table = table.setdefault(key, {})
        table[path[-1]] = value
    return tree


def _of_services(environ: Mapping[str, str]) -> set[str]:
    """Return the variables that Kubernetes sets for Services whose names begin with our prefix.

    Each Service has a ``NAME_PORT`` that holds an address. Without it, the others are mistakes.
    """
    ours = [name for name in environ if name.startswith(PREFIX) and "__" not in name]
    ports = [name for name in ours if name.endswith("_PORT") and ADDRESS.match(environ[name])]
    services = tuple(name.removesuffix("_PORT") for name in ports)
    return {
        name
        for name in ours
        for service in services
        if name.startswith(service) and ABOUT_SERVICE.fullmatch(name, len(service))
    }


def _from_text(path: Keys, text: str, origin: str) -> Iterator[Leaf]:
    """Yield the TOML value of a text, or the text itself if it is not a TOML value."""
    value = _toml_value(text)
    if isinstance(value, dict) and value:
        yield from leaves(value, origin, path)
    else:
        yield Leaf(path, value, origin, text)


def _toml_value(text: str) -> Any:
    try:
        tree = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    # More than one key means that the text held a line break; no setting is a date.
    is_one = tree.keys() == {"value"} and "\n" not in text
    is_ours = is_one and isinstance(tree["value"], bool | int | float | str | list | dict)
    return tree["value"] if is_ours else text
