"""Which fields a body may not have, read off its type: at any depth, by their dotted places.

What only some values or some models reject is not known here.
"""

from collections.abc import Iterator, Mapping, Set as AbstractSet
from functools import cache

import msgspec
from msgspec import inspect

from vlmkit.server.chat.wire import NotSupported
from vlmkit.server.fields.ignored import CHANGING

_Structs = Mapping[str, AbstractSet[type[msgspec.Struct]]]


@cache
def places_of(shape: type[msgspec.Struct], names: frozenset[str]) -> frozenset[str]:
    """Return where bodies of a shape may have fields of some names."""
    return frozenset(
        _inside(place, name)
        for place, struct in _structs(inspect.type_info(shape), "", ())
        for name in names.intersection(struct.__struct_fields__)
    )


@cache
def rejected_fields(shape: type[msgspec.Struct]) -> frozenset[str]:
    """Return the fields that bodies of a shape may not have, unless they say nothing.

    Those are fields that take no value, and fields by which other servers change the answer and
    that the shape lacks.
    """
    structs: dict[str, set[type[msgspec.Struct]]] = {}
    for place, struct in _structs(inspect.type_info(shape), "", ()):
        structs.setdefault(place, set()).add(struct)
    without_value = {
        _inside(place, field.encode_name)
        for place, found in structs.items()
        for struct in found
        for field in msgspec.structs.fields(struct)
        if field.type == NotSupported
    }
    return frozenset(without_value | {name for name in CHANGING if _is_lacking(name, structs)})


def _is_lacking(place: str, structs: _Structs) -> bool:
    """Tell whether bodies may hold what a field would be in, and have no such field there."""
    parent, _, name = place.rpartition(".")
    found = structs.get(parent, frozenset())
    return bool(found) and not any(name in struct.__struct_fields__ for struct in found)


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
