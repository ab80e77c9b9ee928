"""How each field of a body is handled, at any depth, by the field's dotted path.

It does not know what only some values or some models reject.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from vlmkit_server.apis.openai_chat.wire import NotSupported
from vlmkit_server.wire.body import BodyReader
from vlmkit_server.wire.row import Action, Row
from vlmkit_server.wire.table import TABLE

_Types = Mapping[str, Mapping[str, list[Any]]]


@cache
def paths_of(shape: type[msgspec.Struct], names: frozenset[str]) -> frozenset[str]:
    """Return the paths at which bodies of a shape may have fields with some names."""
    return frozenset(
        _nested(path, name)
        for path, struct in _structs(inspect.type_info(shape), "", ())
        for name in names.intersection(struct.__struct_fields__)
    )


@cache
def rejected_fields(reader: BodyReader[Any]) -> frozenset[str]:
    """Return the fields that bodies must not have, unless their values are neutral.

    Those are fields that accept no value, and fields that the field table rejects.
    """
    without_value = {
        _nested(parent, name)
        for parent, fields in _types(reader.shape).items()
        for name, types in fields.items()
        if NotSupported in types
    }
    rejected = {path for path, action in actions(reader).items() if action == "rejected"}
    return reader.refused | without_value | rejected


@cache
def actions(reader: BodyReader[Any]) -> Mapping[str, Action]:
    """Return how each field of the field table is handled, by its path."""
    types = _types(reader.shape)
    paths = {reader.inner + row.field: row for row in TABLE.values()}
    paths |= {name: TABLE[name] for name in reader.fields if name in TABLE}
    return {
        path: _action(reader, row, path, types)
        for path, row in paths.items()
        if path.rpartition(".")[0] in types
    }


def _action(reader: BodyReader[Any], row: Row, path: str, types: _Types) -> Action:
    parent, _, name = path.rpartition(".")
    field_types = types[parent].get(name, [])
    if path in reader.refused or (
        field_types and all(each == NotSupported for each in field_types)
    ):
        return "rejected"
    if field_types:
        is_idle = path in reader.hints or row.action == "no effect"
        return "no effect" if is_idle else "implemented"
    if path in reader.known.aliases:
        return "alias"
    return "rejected" if reader.known.is_rejected(row) else "no effect"


def _types(shape: type[msgspec.Struct]) -> _Types:
    """Return the types of all fields that a body may contain, by the paths of their structs."""
    structs: dict[str, set[type[msgspec.Struct]]] = {}
    for path, struct in _structs(inspect.type_info(shape), "", ()):
        structs.setdefault(path, set()).add(struct)
    found: dict[str, dict[str, list[Any]]] = {path: {} for path in structs}
    for path, own in structs.items():
        for struct in own:
            for field in msgspec.structs.fields(struct):
                found[path].setdefault(field.encode_name, []).append(field.type)
    return found


def _structs(
    kind: inspect.Type, path: str, above: tuple[type[msgspec.Struct], ...]
) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield every struct that a type may contain, with its path; recursion is left out."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from _structs(inner, path, above)
        case inspect.UnionType(types=types):
            for each in types:
                yield from _structs(each, path, above)
        case inspect.ListType() | inspect.VarTupleType():
            yield from _structs(kind.item_type, path, above)
        case inspect.StructType(cls=struct, fields=fields) if struct not in above:
            yield path, struct
            for field in fields:
                yield from _structs(field.type, _nested(path, field.encode_name), (*above, struct))


def _nested(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
