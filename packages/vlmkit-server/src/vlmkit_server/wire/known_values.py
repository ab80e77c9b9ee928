"""Finds the supported values of a field with a small set of values, for error messages."""

import re
from collections.abc import Iterable, Iterator
from functools import cache

import msgspec
from msgspec import Raw, inspect

from vlmkit_server.wire.unused import LeftOut

_STEPS = re.compile(r"[^.\[\]]+|\[[^\]]*\]")


def known_values(shape: type[msgspec.Struct], path: str, body: bytes) -> tuple[str, ...]:
    """Return the values that a field may have, in order; empty unless they are a small set.

    Args:
        shape: the struct of the whole body.
        path: the path of the field, such as ``messages[0].content[1].type``.
        body: the JSON text: the types of the objects around the field decide which fields they
            have.
    """
    *steps, last = _STEPS.findall(path) or [""]
    kinds: list[inspect.Type] = [_info(shape)]
    content: Raw | None = Raw(body)
    for step in steps:
        kinds = [found for kind in _possible(kinds, content) for found in _within(kind, step)]
        content = _held(content, step)
    tags = [
        str(kind.tag)
        for kind in _structs(kinds)
        if kind.tag_field == last and not issubclass(kind.cls, LeftOut)
    ]
    if tags:
        return tuple(dict.fromkeys(tags))
    found = [inner for kind in _possible(kinds, content) for inner in _within(kind, last)]
    return tuple(dict.fromkeys(value for kind in found for value in _listed(kind)))


@cache
def _info(shape: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(shape)


def _held(content: Raw | None, step: str) -> Raw | None:
    """Return the JSON value at one step of a path, if there is one."""
    try:
        if step.startswith("["):
            return msgspec.json.decode(content or b"", type=list[Raw])[int(step[1:-1])]
        return msgspec.json.decode(content or b"", type=dict[str, Raw]).get(step)
    except (ValueError, IndexError, RecursionError):
        return None


def _possible(kinds: Iterable[inspect.Type], content: Raw | None) -> Iterator[inspect.Type]:
    """Yield types, except structs that an object's tag excludes."""
    for kind in kinds:
        for each in _alone(kind):
            if isinstance(each, inspect.StructType) and each.tag_field is not None:
                tag = _held(content, each.tag_field)
                if tag is not None and bytes(tag) != msgspec.json.encode(each.tag):
                    continue
            yield each


def _alone(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the types of a union, or the type itself."""
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _alone(each)
    elif isinstance(kind, inspect.Metadata):
        yield from _alone(kind.type)
    else:
        yield kind


def _structs(kinds: Iterable[inspect.Type]) -> Iterator[inspect.StructType]:
    for kind in kinds:
        yield from (each for each in _alone(kind) if isinstance(each, inspect.StructType))


def _within(kind: inspect.Type, step: str) -> Iterator[inspect.Type]:
    """Yield the types of a field, or of a list's items."""
    for each in _alone(kind):
        if isinstance(each, inspect.StructType):
            yield from (field.type for field in each.fields if field.encode_name == step)
        elif isinstance(each, inspect.ListType | inspect.VarTupleType) and step.startswith("["):
            yield each.item_type
        elif isinstance(each, inspect.DictType):
            yield each.value_type


def _listed(kind: inspect.Type) -> Iterator[str]:
    for each in _alone(kind):
        if isinstance(each, inspect.LiteralType):
            yield from map(str, each.values)
