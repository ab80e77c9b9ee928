"""The values that a field of a body may have, where they are few: for errors about others."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec
from msgspec import inspect

_STEPS = re.compile(r"[^.\[\]]+|\[[^\]]*\]")


@lru_cache(maxsize=256)
def known_values(shape: type[msgspec.Struct], place: str) -> tuple[str, ...]:
    """Return the values that a field may have, in their order; none where they are not few.

    Args:
        shape: of the whole body.
        place: of the field, such as ``messages[].content[].type``.
    """
    *steps, last = _STEPS.findall(place) or [""]
    kinds: list[inspect.Type] = [inspect.type_info(shape)]
    for step in steps:
        kinds = [found for kind in kinds for found in _within(kind, step)]
    tags = [str(kind.tag) for kind in _structs(kinds) if kind.tag_field == last]
    if tags:
        return tuple(dict.fromkeys(tags))
    found = [inner for kind in kinds for inner in _within(kind, last)]
    return tuple(dict.fromkeys(value for kind in found for value in _listed(kind)))


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
    """Yield the types of a field, or of what a list holds."""
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
