"""Constraints with large numbers are refused before they are compiled; errors name the keyword."""

import time

import pytest

from vlmkit.errors import ConstraintError
from vlmkit.running.constraints.compiled import ENTRY_BYTES, ConstraintCache
from vlmkit.running.constraints.limits import MAX_MULTIPLE, MAX_REPEATS, check_limits
from vlmkit.types.constraint import JsonSchema, Lark, OneOf, Regex

M_991 = {"multipleOf": 991}
A_REF = {"$ref": "#/properties/a"}


def schema(**keywords):
    return JsonSchema.of(keywords)


def nested(depth):
    found = {"type": "string"}
    for _ in range(depth):
        found = {"type": "array", "items": found}
    return JsonSchema.of(found)


@pytest.mark.parametrize(
    ("constraint", "named"),
    [
        (schema(type="integer", multipleOf=99_999_989), "multipleOf"),
        (schema(type="integer", multipleOf=100_000), "multipleOf"),
        (schema(type="number", multipleOf=1e308), "multipleOf"),
        (schema(type="number", multipleOf=0.123456789), "multipleOf"),
        (schema(anyOf=[{"multipleOf": n} for n in (1009, 1013)]), "multipleOf"),
        (schema(properties={"multipleOf": {"multipleOf": 30_011}}), "multipleOf"),
        (schema(properties={f"p{n}": {"multipleOf": n} for n in (9973, 9967, 67)}), "multipleOf"),
        (
            schema(**{"$ref": "#/$defs/a", "$defs": {"a": {"multipleOf": 997}}, **M_991}),
            "multipleOf",
        ),
        (schema(properties={"a": {"multipleOf": 997}, "b": {**A_REF, **M_991}}), "multipleOf"),
        (
            schema(properties={"a": {"multipleOf": 997}, "b": {"allOf": [A_REF, M_991]}}),
            "multipleOf",
        ),
        (
            schema(properties={"a": {"multipleOf": 997}}, patternProperties={"a": M_991}),
            "multipleOf",
        ),
        (schema(properties={"a": {"multipleOf": 997}}, anyOf=[{"items": M_991}]), "multipleOf"),
        (Lark('start: %json {"multipleOf": 99999989}'), "multipleOf"),
        (Lark("start: a", (("a", schema(multipleOf=99_999_989)),)), "multipleOf"),
        (schema(type="array", minItems=10**9), "minItems"),
        (schema(type="array", maxItems=2**53), "maxItems"),
        (schema(type="string", maxLength=2**32), "maxLength"),
        (schema(type="string", minLength=10**9), "minLength"),
        (schema(type="object", minProperties=10**9), "minProperties"),
        (schema(enum=[*range(5000)]), "enum"),
        (schema(anyOf=[{}] * 2000), "anyOf"),
        (nested(100), "depth"),
        (schema(type="string", pattern="a{100001}"), "repetitions"),
        (schema(type="object", patternProperties={"(a{999}){999}": {}}), "repetitions"),
        (Regex("a{1000000000}"), "repetitions"),
        (Regex("(a{1000}){1000}"), "repetitions"),
        (Regex("a{9}{99}{999}"), "repetitions"),
        (Regex("((a|b{400})c){1,400}"), "repetitions"),
        (Lark('start: "a" ~ 100001'), "repetitions"),
        (Lark('start: ("a" ~ 1..1000){1000}'), "repetitions"),
        (Lark("start: /a{1000}/{1000}"), "repetitions"),
        (Lark("start: a", tuple((f"a{n}", schema(const="x" * 60_000)) for n in range(5))), "char"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_number_that_is_too_large_is_refused_with_its_keyword(constraint, named):
    with pytest.raises(ConstraintError, match=named) as caught:
        check_limits(constraint)
    assert "limit" in str(caught.value)
    assert "99999989" not in str(caught.value)


@pytest.mark.parametrize(
    "constraint",
    [
        schema(type="number", multipleOf=0.01),
        schema(type="number", multipleOf=1e-9),
        schema(type="integer", multipleOf=MAX_MULTIPLE),
        schema(properties={"a": {"multipleOf": 25}, "b": {"multipleOf": 100}}),
        schema(const={"multipleOf": 99_999_989, "minItems": 10**9}),
        schema(properties={f"m{n}": {"multipleOf": n} for n in (7, 12, 60, 64, 1000, 1440, 3600)}),
        schema(properties={"a": {"items": {"multipleOf": 997}}, "b": {**M_991, "title": "b"}}),
        schema(
            properties={"a": A_REF, "b": A_REF, "c": M_991}, **{"$defs": {"a": {"multipleOf": 997}}}
        ),
        Lark("start: a | b", (("a", schema(multipleOf=997)), ("b", schema(multipleOf=991)))),
        schema(properties={"minItems": {"type": "string", "maxLength": 2**32 - 1}}),
        schema(type="array", maxItems=2**53 - 1),
        Regex(f".{{0,{MAX_REPEATS}}}"),
        Regex(r"\p{L}{3}[a{9999999}]\{9999999}"),
        Regex("(a{100}|b{100}){100}c{100}"),
        Regex("a{,b{"),
        Lark('start: "{9999999}" /[{]9999999[}]/ // ~ 9999999\n# {9999999}'),
        OneOf(("a{9999999}",)),
    ],
    ids=lambda value: str(value)[:50],
)
def test_text_that_only_looks_like_a_large_number_is_accepted(constraint):
    check_limits(constraint)


@pytest.mark.parametrize(
    "text",
    ["/\\", '"\\', "(", "[a", "~1", "{1", "%json ", "<", "\\", "{ ", "~ ", "{\t,", "\\p{", "a{1}"],
)
def test_checking_takes_time_proportional_to_the_text(text):
    """The CPU time for 64,000 characters is below 0.1 s; repeated passes would take minutes."""
    text *= 64_000 // len(text)
    began_s = time.process_time()
    for constraint in (Regex(text), Lark(text), Lark(f"{text[:1]}{' ' * 60_000}")):
        try:
            check_limits(constraint)
        except ConstraintError:
            continue
    assert time.process_time() - began_s < 20


def test_the_cache_of_compiled_constraints_is_bounded_and_evicts_from_the_largest_tenant():
    cache = ConstraintCache(10 * ENTRY_BYTES)
    for number in range(20):
        cache.put(b"flood", Regex(f"{number}"), object, "flood", ENTRY_BYTES)
    assert cache.num_bytes == 10 * ENTRY_BYTES
    for number in range(3):
        cache.put(b"honest", Regex(f"{number}"), object, "honest", ENTRY_BYTES)
    for number in range(100, 200):
        cache.put(b"flood", Regex(f"{number}"), object, "flood", ENTRY_BYTES)
    assert [cache.get(b"honest", Regex(f"{number}")) for number in range(3)] == [object] * 3
    assert cache.get(b"flood", Regex("0")) is None
    assert cache.get(b"flood", Regex("199")) is object
    assert cache.get(b"honest", Regex("199")) is None, "no tenant learns what others sent"
    cache.put(b"honest", Regex("large"), object, "honest", 11 * ENTRY_BYTES)
    assert cache.num_bytes <= 10 * ENTRY_BYTES
    assert cache.get(b"honest", Regex("large")) is None
