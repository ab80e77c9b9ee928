"""What is done about each field of a body, at any depth, by the dotted places of fields.

What only some values or some models reject is not known here.
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
def places_of(shape: type[msgspec.Struct], names: frozenset[str]) -> frozenset[str]:
    """Return where bodies of a shape may have fields of some names."""
    return frozenset(
        _inside(place, name)
        for place, struct in _structs(inspect.type_info(shape), "", ())
        for name in names.intersection(struct.__struct_fields__)
    )


@cache
def rejected_fields(reader: BodyReader[Any]) -> frozenset[str]:
    """Return the fields that bodies may not have, unless their values are neutral.

    Those are fields that take no value, and fields that the table of fields rejects.
    """
    without_value = {
        _inside(parent, name)
        for parent, fields in _types(reader.shape).items()
        for name, types in fields.items()
        if NotSupported in types
    }
    rejected = {place for place, action in actions(reader).items() if action == "rejected"}
    return reader.refused | without_value | rejected


@cache
def actions(reader: BodyReader[Any]) -> Mapping[str, Action]:
    """Return what is done about each field of the table that bodies may hold, by its place."""
    types = _types(reader.shape)
    places = {reader.inner + row.field: row for row in TABLE.values()}
    places |= {name: TABLE[name] for name in reader.fields if name in TABLE}
    return {
        place: _action(reader, row, place, types)
        for place, row in places.items()
        if place.rpartition(".")[0] in types
    }


def _action(reader: BodyReader[Any], row: Row, place: str, types: _Types) -> Action:
    parent, _, name = place.rpartition(".")
    own = types[parent].get(name, [])
    if place in reader.refused or (own and all(each == NotSupported for each in own)):
        return "rejected"
    if own:
        is_idle = place in reader.hints or row.action == "no effect"
        return "no effect" if is_idle else "implemented"
    if place in reader.known.aliases:
        return "alias"
    return "rejected" if reader.known.is_rejected(row) else "no effect"


def _types(shape: type[msgspec.Struct]) -> _Types:
    """Return the types of all fields that a body can hold, by the places of their structs."""
    structs: dict[str, set[type[msgspec.Struct]]] = {}
    for place, struct in _structs(inspect.type_info(shape), "", ()):
        structs.setdefault(place, set()).add(struct)
    found: dict[str, dict[str, list[Any]]] = {place: {} for place in structs}
    for place, own in structs.items():
        for struct in own:
            for field in msgspec.structs.fields(struct):
                found[place].setdefault(field.encode_name, []).append(field.type)
    return found


def _structs(
    kind: inspect.Type, place: str, above: tuple[type[msgspec.Struct], ...]
) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield every struct that a type can hold, with its place; one within itself is left out."""
    match kind:
        case inspect.Metadata(type=inner):
            yield from _structs(inner, place, above)
        case inspect.UnionType(types=types):
            for each in types:
                yield from _structs(each, place, above)
        case inspect.ListType() | inspect.VarTupleType():
            yield from _structs(kind.item_type, place, above)
        case inspect.StructType(cls=struct, fields=fields) if struct not in above:
            yield place, struct
            for field in fields:
                yield from _structs(field.type, _inside(place, field.encode_name), (*above, struct))


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
