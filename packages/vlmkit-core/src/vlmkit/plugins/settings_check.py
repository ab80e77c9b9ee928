"""Checks a provider's settings struct when it is registered, before a config uses it."""

from typing import Any

import msgspec

from vlmkit.kit.one_line import named

RESERVED = "use"
"""The key of a section that selects the provider."""


def flaw(struct: type[msgspec.Struct]) -> str:
    """Return why no section of a config can be decoded into a struct; empty if it can."""
    try:
        return _shape(struct) or _values(struct)
    except Exception as error:  # noqa: BLE001 - types and defaults of others may raise anything
        return f"cannot be read from a config: {named(error)}"


def _shape(struct: type[msgspec.Struct]) -> str:
    """Return what is wrong with a struct's fields; empty if nothing is."""
    fields = msgspec.structs.fields(struct)
    if needed := [field.encode_name for field in fields if field.required]:
        return f"has no default for {', '.join(map(repr, needed))}"
    if RESERVED in (field.encode_name for field in fields):
        return f"has a field {RESERVED!r}, which says in each section who the provider is"
    if struct.__struct_config__.array_like:
        return "is read from an array, and a section is a table"
    if _is_endless(struct):
        return "holds itself, and a section is a tree"
    return ""


def _values(struct: type[msgspec.Struct]) -> str:
    """Return what is wrong with a struct's defaults; empty if they are valid values."""
    msgspec.json.schema_components([struct])
    default = msgspec.to_builtins(msgspec.convert({}, struct))
    try:
        msgspec.convert(default, struct, strict=False)
    except msgspec.ValidationError as error:
        return f"has a default that it does not allow itself: {named(error)}"
    return ""


def _is_endless(kind: Any, around: tuple[Any, ...] = ()) -> bool:
    """Return whether a type contains a recursive struct."""
    if kind in around:
        return True
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        around = (*around, kind)
        return any(_is_endless(field.type, around) for field in msgspec.structs.fields(kind))
    return any(_is_endless(part, around) for part in getattr(kind, "__args__", ()))
