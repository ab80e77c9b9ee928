"""Resolves paths in settings; those of a config file are relative to its folder.

The types of settings state which are paths (:mod:`vlmkit.settings.paths`). Opens no path.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from vlmkit.settings.paths import PATH_USE, PathUse


class NamedPath(NamedTuple):
    """A path in a setting.

    Attributes:
        setting: the dotted name of the setting.
        path: the path.
        use: how the path is used.
    """

    setting: str
    path: str
    use: PathUse


_Change = Callable[[NamedPath], str]


def expanded(path: str) -> Path:
    """Return a path with ``~`` replaced, if that user exists."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path raises for an unknown user


def anchored(value: Any, kind: Any, folder: Path | None) -> Any:
    """Return a value with every path in it relative to a folder.

    Args:
        value: a value of plain types; parts that do not match the type stay unchanged.
        kind: the type of the value.
        folder: the folder of the file that states the value; None for the working directory.
    """

    def change(named: NamedPath) -> str:
        if named.use == "model":
            return _anchored_model(named.path, folder)
        return str((folder or Path()) / expanded(named.path))

    return _changed(value, inspect.type_info(kind), "", change)


def named_paths(value: Any, kind: Any, setting: str = "") -> list[NamedPath]:
    """Return every path in a value of a type, with its setting."""
    found: list[NamedPath] = []

    def note(named: NamedPath) -> str:
        found.append(named)
        return named.path

    _changed(msgspec.to_builtins(value), inspect.type_info(kind), setting, note)
    return found


def _changed(value: Any, kind: inspect.Type, place: str, change: _Change) -> Any:
    """Return a value with ``change`` applied to each non-empty path in it, by its type."""
    match kind:
        case inspect.Metadata(type=inner, extra=extra):
            use = (extra or {}).get(PATH_USE)
            if use is None:
                return _changed(value, inner, place, change)
            is_path = isinstance(value, str) and value
            return change(NamedPath(place, value, use)) if is_path else value
        case inspect.UnionType(types=(each, inspect.NoneType())):
            return _changed(value, each, place, change)
        case inspect.ListType() | inspect.VarTupleType() if isinstance(value, list | tuple):
            return [_changed(each, kind.item_type, place, change) for each in value]
        case inspect.DictType(value_type=inner) if isinstance(value, Mapping):
            return {k: _changed(v, inner, _dotted(place, k), change) for k, v in value.items()}
        case inspect.StructType(fields=fields) if isinstance(value, Mapping):
            types = {field.encode_name: field.type for field in fields}
            return {
                key: _changed(each, types[key], _dotted(place, key), change)
                if key in types
                else each
                for key, each in value.items()
            }
    return value


def _dotted(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)


def _anchored_model(model: str, folder: Path | None) -> str:
    """Return a model's reference; one that begins with a dot is relative to the config file."""
    if folder is None or not model.startswith("."):
        return model
    found = folder / model
    # Without the dot it would mean the name of a packaged model, or a hub id.
    return str(found) if found.is_absolute() else f".{os.sep}{found}"
