"""Where the paths among settings lead: a config file's are relative to its folder.

Which settings are paths, their types say (:mod:`vlmkit.settings.paths`). Opens no path.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from vlmkit.settings.paths import PATH_USE, PathUse


class NamedPath(NamedTuple):
    """A path that a setting names.

    Attributes:
        setting: the setting, dotted.
        path: where it leads.
        use: how it is used.
    """

    setting: str
    path: str
    use: PathUse


_Change = Callable[[NamedPath], str]


def expanded(path: str) -> Path:
    """Return a path with ``~`` replaced, where that is somebody's home."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path raises for a user who is not there


def anchored(value: Any, kind: Any, folder: Path | None) -> Any:
    """Return a value with every path in it relative to a folder.

    Args:
        value: of plain types; what does not fit its type stays as it is.
        kind: its type.
        folder: that of the file that states the value; None for the working directory.
    """

    def change(named: NamedPath) -> str:
        if named.use == "model":
            return _anchored_model(named.path, folder)
        return str((folder or Path()) / expanded(named.path))

    return _changed(value, inspect.type_info(kind), "", change)


def named_paths(value: Any, kind: Any, setting: str = "") -> list[NamedPath]:
    """Return every path in a value of a type, with the setting that names it."""
    found: list[NamedPath] = []

    def note(named: NamedPath) -> str:
        found.append(named)
        return named.path

    _changed(msgspec.to_builtins(value), inspect.type_info(kind), setting, note)
    return found


def _changed(value: Any, kind: inspect.Type, place: str, change: _Change) -> Any:
    """Return a value with each path that its type knows changed; an empty one is none."""
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
            return {k: _changed(v, inner, _inside(place, k), change) for k, v in value.items()}
        case inspect.StructType(fields=fields) if isinstance(value, Mapping):
            own = {field.encode_name: field.type for field in fields}
            return {
                key: _changed(each, own[key], _inside(place, key), change) if key in own else each
                for key, each in value.items()
            }
    return value


def _inside(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)


def _anchored_model(model: str, folder: Path | None) -> str:
    """Return a model's reference; one that begins with a dot is a folder beside the file."""
    if folder is None or not model.startswith("."):
        return model
    found = folder / model
    # Without the dot it would be taken for the name of a packaged model, or for a hub id.
    return str(found) if found.is_absolute() else f".{os.sep}{found}"
