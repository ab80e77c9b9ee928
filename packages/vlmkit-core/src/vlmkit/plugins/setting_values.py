"""Checks values of settings against their types, and describes what is expected.

Reports every invalid value of a table with its path. Never shows secrets.
"""

import difflib
import re
import typing
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from vlmkit.kit.model_uri import shown
from vlmkit.kit.one_line import one_line

SECRET_WORDS = frozenset({"key", "keys", "token", "secret", "secrets", "password"})
NO_SECRETS = frozenset({"server.limits.key", "server.tls_private_key"})
"""Settings that are not secrets although their names suggest it."""
_MOST_SHOWN = 100
_UNBOUNDED = 2**53 - 1
_ALL = "`vlmkit config schema` describes every setting"
_UNIONS = (typing.Union, UnionType)
_BOUNDS = (
    *("ge", "gt", "le", "lt", "min_length", "max_length"),
    *("pattern", "description", "examples"),
)
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}

Place = tuple[str | int, ...]


class Flaw(NamedTuple):
    """One invalid value, or an unknown key of a table.

    Attributes:
        place: the path of keys and indexes.
        problem: what is expected; empty for an unknown key.
        hint: what to do.
        shown: the value for display, without secrets; empty for a table.
    """

    place: Place
    problem: str
    hint: str = _ALL
    shown: str = ""

    def text(self, origin: str = "") -> str:
        """Return the error as one sentence.

        Args:
            origin: the source of the value.
        """
        by = f" ({origin})" if origin else ""
        path = dotted(self.place)
        if not self.problem:
            return f"unknown setting {path!r}{by}"
        value = f" = {self.shown}" if self.shown else ""
        return f"{path}{value}{by}: {self.problem}"


def is_secret(path: str, value: object) -> bool:
    """Return whether a setting's value must not be shown, by the last word of its name.

    Args:
        path: the dotted name of the setting, such as ``server.port``.
        value: its value; booleans are never secrets.
    """
    is_named_so = re.split(r"[._]", path)[-1] in SECRET_WORDS
    return is_named_so and path not in NO_SECRETS and not isinstance(value, bool)


def flaws(value: object, kind: Any, place: Place = (), *, is_strict: bool = True) -> Iterator[Flaw]:
    """Yield the errors of every invalid value in a value of plain types.

    Args:
        value: the value of a setting, or a table of settings.
        kind: its type.
        place: its path.
        is_strict: whether a number in quotes is refused as a number.
    """
    kind = _table_of(kind) if isinstance(value, Mapping) else kind
    found = list(_keys(value, kind, place))
    for key, each, each_kind in _parts(value, kind):
        found += flaws(each, each_kind, (*place, key), is_strict=is_strict)
    if found:
        yield from found
        return
    try:
        msgspec.convert(value, kind, strict=is_strict)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        if isinstance(value, Mapping) and cause is not None:  # two values contradict each other
            yield Flaw(place, str(cause))
        else:
            wanted, shown = f"expected {expected(kind)}", _quoted(value, place)
            yield Flaw(place, wanted, _hint(value, kind, place), shown)


def _table_of(kind: Any) -> Any:
    """Return the only struct among the members of a union, and other types as they are."""
    base, _ = _base(kind)
    if typing.get_origin(base) not in _UNIONS:
        return kind
    members = typing.get_args(base)
    structs = [
        each for each in members if isinstance(each, type) and issubclass(each, msgspec.Struct)
    ]
    return structs[0] if len(structs) == 1 else kind


def _keys(value: object, kind: Any, place: Place) -> Iterator[Flaw]:
    """Yield the errors of unknown and missing keys of a table."""
    struct, _ = _base(kind)
    if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct)):
        return
    if not isinstance(value, Mapping):
        return
    fields = msgspec.structs.fields(struct)
    known = [field.encode_name for field in fields]
    for key in value if struct.__struct_config__.forbid_unknown_fields else ():
        if key not in known:
            hint = near(str(key), known) or f"known: {', '.join(known)}"
            yield Flaw((*place, str(key)), "", hint)
    for field in fields:
        if field.required and field.encode_name not in value:
            name = field.encode_name
            yield Flaw(place, f"{name} is missing", f"set {dotted((*place, name))}")


def expected(kind: Any) -> str:
    """Return a description of the values of a type."""
    base, meta = _base(kind)
    origin = typing.get_origin(base)
    if meta.get("description"):
        return str(meta["description"])
    if origin is Literal:
        return f"one of {', '.join(map(str, typing.get_args(base)))}"
    if origin in _UNIONS:
        members = [each for each in typing.get_args(base) if each is not NoneType]
        return " or ".join(map(expected, members))
    if origin in (list, tuple, set, frozenset):
        return f"a list{_length(meta, 'items')}"
    if base in (int, float):
        return _WORDS[base] + _range(meta)
    if base is str and (pattern := meta.get("pattern")):
        return f"text that matches {pattern}"
    return _WORDS.get(base, "a table") + (_length(meta, "characters") if base is str else "")


def _parts(value: object, kind: Any) -> Iterator[tuple[str | int, Any, Any]]:
    """Yield the parts of a value: key or index, value, and type."""
    base, _ = _base(kind)
    origin, arguments = typing.get_origin(base), typing.get_args(base)
    if isinstance(base, type) and issubclass(base, msgspec.Struct):
        if isinstance(value, Mapping):
            for field in msgspec.structs.fields(base):
                if field.encode_name in value:
                    yield field.encode_name, value[field.encode_name], field.type
    elif origin is dict and isinstance(value, Mapping):
        for key, each in value.items():
            yield key, each, arguments[1]
    elif origin in (list, set, frozenset) or (origin is tuple and arguments[-1] is Ellipsis):
        for index, each in enumerate(value if isinstance(value, list | tuple) else ()):
            yield index, each, arguments[0]


def _base(kind: Any) -> tuple[Any, dict[str, Any]]:
    """Return a type without its bounds and without None, and the bounds."""
    meta: dict[str, Any] = {}
    while True:
        arguments = typing.get_args(kind)
        if typing.get_origin(kind) is Annotated:
            kind = arguments[0]
            for each in arguments[1:]:
                bounds = {name: getattr(each, name, None) for name in _BOUNDS}
                meta |= {name: bound for name, bound in bounds.items() if bound is not None}
        elif typing.get_origin(kind) in _UNIONS and NoneType in arguments and len(arguments) == 2:
            kind = next(each for each in arguments if each is not NoneType)
        else:
            return kind, meta


def dotted(place: Place) -> str:
    """Return a path for messages, such as ``models[0].name``."""
    parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)
    return "".join(parts).removeprefix(".")


def _name(place: Place) -> str:
    """Return a dotted path without list indexes."""
    return ".".join(key for key in place if isinstance(key, str))


def _quoted(value: object, place: Place) -> str:
    """Return a value for messages; empty if it is or contains a table."""
    parts = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(each, Mapping) for each in parts):
        return ""
    named = _name(place)
    if is_secret(named, value):
        return "***"
    is_model = named.rpartition(".")[2] == "model" and isinstance(value, str)
    return one_line(repr(shown(str(value)) if is_model else value), _MOST_SHOWN)


def _hint(value: object, kind: Any, place: Place) -> str:
    """Return a hint for replacing an invalid value."""
    base, meta = _base(kind)
    if is_secret(_name(place), value):
        return _ALL
    if meta.get("examples"):
        return f"write it as in {meta['examples'][0]!r}"
    if isinstance(value, str):
        known = typing.get_args(base) if typing.get_origin(base) is Literal else ()
        return near(value, list(map(str, known))) or _respelt(value, kind) or _ALL
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'write it in quotes: "{value}"' if base is str else _within(value, meta) or _ALL
    return _ALL


def _respelt(value: str, kind: Any) -> str:
    """Return a hint for a text that would be valid without quotes, or in a list."""
    if len(value) < _MOST_SHOWN and fits(value, kind, is_strict=False):
        return f"write it without quotes: {value}"
    if len(value) < _MOST_SHOWN and fits([value], kind):
        return f"write a list: {msgspec.json.encode([value]).decode()}"
    return ""


def _within(value: float, meta: Mapping[str, Any]) -> str:
    """Return a hint with the bound that a number violates; empty if it violates none."""
    if "ge" in meta and value < meta["ge"]:
        return f"take {_number(meta['ge'])} or more"
    if "gt" in meta and value <= meta["gt"]:
        return f"take more than {_number(meta['gt'])}"
    if "le" in meta and value > meta["le"]:
        return f"take {_number(meta['le'])} or less"
    return f"take less than {_number(meta['lt'])}" if "lt" in meta and value >= meta["lt"] else ""


def fits(value: object, kind: Any, *, is_strict: bool = True) -> bool:
    """Return whether a value has a type; see :func:`flaws`."""
    try:
        msgspec.convert(value, kind, strict=is_strict)
    except msgspec.ValidationError:
        return False
    return True


def _number(bound: object) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _range(meta: Mapping[str, Any]) -> str:
    """Return the bounds of a number as the end of a phrase, without the general limits."""
    low = f"of at least {_number(meta['ge'])}" if "ge" in meta else ""
    low = f"above {_number(meta['gt'])}" if "gt" in meta else low
    high = f"below {_number(meta['lt'])}" if "lt" in meta else ""
    if "le" in meta and meta["le"] < _UNBOUNDED:
        if "ge" in meta:
            return f" from {_number(meta['ge'])} to {_number(meta['le'])}"
        high = f"at most {_number(meta['le'])}"
    text = " and ".join(filter(None, (low, high)))
    return f" {text}" if text else ""


def _length(meta: Mapping[str, Any], unit: str) -> str:
    low, high = meta.get("min_length"), meta.get("max_length")
    if low is not None and high is not None:
        return f" of {low} to {high} {unit}"
    if low is not None:
        return f" of at least {low} {unit.removesuffix('s') if low == 1 else unit}"
    return f" of at most {high} {unit}" if high is not None else ""


def near(key: str, known: list[str]) -> str:
    """Return a hint with the nearest of the known words; empty if none is near."""
    found = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {found[0]!r}?" if found else ""
