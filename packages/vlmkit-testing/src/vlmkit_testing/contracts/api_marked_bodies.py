"""Bodies of a declared type that have a marker in place of each text. No tests."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect

MAX_DEPTH = 12


def marked_bodies(
    shape: type[msgspec.Struct], body: Mapping[str, Any], marker: str
) -> Iterator[dict[str, Any]]:
    """Yield a body with another value of one field, for each value with a marker.

    The values have each alternative of the field's type, at any depth, and the marker also where a
    text is not allowed.

    Args:
        shape: the type of the body.
        body: a body that is accepted.
        marker: is in place of each text of the other value.
    """
    values, seen = _Values(marker), set[bytes]()
    for field in _fields(shape):
        for value in values.of(field.type):
            marked = {**body, field.encode_name: value}
            encoded = msgspec.json.encode(marked)
            if marker.encode() in encoded and encoded not in seen:
                seen.add(encoded)
                yield marked


def _fields(shape: type[msgspec.Struct]) -> Sequence[inspect.Field]:
    kind = inspect.type_info(shape)
    assert isinstance(kind, inspect.StructType)
    return kind.fields


class _Values:
    """Returns values of types as JSON values, a valid one first.

    Args:
        marker: stands for each text.
    """

    def __init__(self, marker: str) -> None:
        self._marker = marker

    def of(self, kind: inspect.Type, depth: int = 0) -> list[Any]:
        """Return values that have each alternative of a type, at any depth, at least once."""
        if depth > MAX_DEPTH:
            return []
        match kind:
            case inspect.Metadata():
                return self.of(kind.type, depth)
            case inspect.UnionType():
                kinds = sorted(kind.types, key=lambda each: isinstance(each, inspect.NoneType))
                return [value for each in kinds for value in self.of(each, depth)]
            case inspect.StructType():
                return self._objects(kind, depth)
            case inspect.CollectionType():
                return self._arrays(kind, depth)
            case inspect.DictType():
                held = self.of(kind.value_type, depth + 1)
                return [{self._marker: value} for value in held]
        return [*_without_text(kind), self._marker, *self._free(kind)]

    def _free(self, kind: inspect.Type) -> list[Any]:
        """Return values of a type that allows any value."""
        is_free = isinstance(kind, inspect.AnyType | inspect.RawType)
        return [{"type": self._marker}, [self._marker]] if is_free else []

    def _arrays(self, kind: inspect.CollectionType, depth: int) -> list[Any]:
        """Return an array of each value of its elements, and one with an element twice."""
        held = self.of(kind.item_type, depth + 1)
        num = max(1, kind.min_length or 0)
        return [*([value] * num for value in held), *([value] * 2 for value in held[:1])]

    def _objects(self, kind: inspect.StructType, depth: int) -> list[Any]:
        """Return an object with each value of each of its fields, and one with all fields."""
        values = {field.encode_name: self.of(field.type, depth + 1) for field in kind.fields}
        tag = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
        firsts = {name: found[0] for name, found in values.items() if found}
        required = {each.encode_name for each in kind.fields if each.required}
        least = tag | {name: value for name, value in firsts.items() if name in required}
        more = [{**least, name: value} for name, found in values.items() for value in found]
        return [least, *more, tag | firsts]


def _without_text(kind: inspect.Type) -> list[Any]:
    """Return valid values that have no text of a client; none for texts and free values."""
    match kind:
        case inspect.LiteralType():
            return list(kind.values)
        case inspect.EnumType():
            return [each.value for each in kind.cls]
        case inspect.BoolType():
            return [True]
        case inspect.IntType() | inspect.FloatType():
            return [1 if kind.ge is None else max(1, kind.ge)]
    return []
