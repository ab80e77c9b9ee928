"""Arguments of tools for tests, derived from those that work and from JSON schemas. No tests."""

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

Arguments = dict[str, Any]
SAMPLES: Mapping[str, Any] = {
    "string": "one",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def arguments_of(schema: Mapping[str, Any]) -> Arguments:
    """Return arguments that a simple schema allows: its required properties, or else all."""
    properties = schema.get("properties") or {}
    names = schema.get("required") or list(properties)
    return {name: _sample(properties.get(name) or {}) for name in names}


def varied(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Arguments]:
    """Yield the arguments, and copies of them in which one value differs, without an end."""
    yield copy.deepcopy(dict(arguments))
    places = [place for place in _leaves(arguments) if _changed(arguments, schema, place, 1)]
    for number in itertools.count(1) if places else ():
        for place in places:
            yield _changed(arguments, schema, place, number)


def _sample(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if kind == "object":
        return arguments_of(schema)
    if kind in {"integer", "number"}:
        return schema.get("minimum", SAMPLES[kind])
    return SAMPLES.get(kind, "one")


def _leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of all values that are neither objects nor lists."""
    if isinstance(value, Mapping | list):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in pairs:
            yield from _leaves(each, (*place, key))
    elif place:
        yield place


def _changed(
    arguments: Mapping[str, Any], schema: Mapping[str, Any], place: tuple[Any, ...], number: int
) -> Arguments:
    """Return arguments with another value at a place; empty if there is no other."""
    changed: Any = copy.deepcopy(dict(arguments))
    parent: Any = changed
    for key in place[:-1]:
        parent = parent[key]
        schema = (schema.get("properties") or {}).get(key) or schema.get("items") or {}
    key = place[-1]
    own = (schema.get("properties") or {}).get(key) or schema.get("items") or {}
    value = _other(parent[key], own, number)
    if value == parent[key]:
        return {}
    parent[key] = value
    return changed  # type: ignore[no-any-return]


def _other(value: Any, schema: Mapping[str, Any], number: int) -> Any:
    """Return another value of the same type; the same where there is none."""
    if choices := schema.get("enum"):
        return (
            choices[(choices.index(value) + number) % len(choices)] if value in choices else value
        )
    match value:
        case bool():
            return value is (number % 2 == 0)
        case int() | float():
            most = schema.get("maximum", value + number)
            return value + number if value + number <= most else value - number
        case str():
            return f"{value} {number}" if "format" not in schema else value
    return value
