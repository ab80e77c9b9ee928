"""Limits on constraints, checked before any library reads them.

They bound numbers, repetitions, alternatives and characters as they are written. Whether a
constraint is valid, or expensive to follow, is not checked here.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from vlmkit.errors import ConstraintError
from vlmkit.types.constraint import MAX_TEXTS, Constraint, JsonSchema, Lark, OneOf, Regex

MAX_MULTIPLE = 20_000
MAX_REPEATS = 100_000
MAX_MINIMUM = 100_000  # of items, characters and properties
MAX_MAXIMUM = 2**53 - 1  # generated schemas use it for "any number"
MAX_MAX_LENGTH = 2**32 - 1  # it becomes a repetition in a pattern
MAX_BRANCHES = 1_000
MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_EXPONENT = 400  # of ten
MAX_ALL_CHARS = 2**18  # of a grammar and all its schemas; tools are compiled to one grammar

_NUMBERS = {
    **dict.fromkeys(("minItems", "minLength", "minProperties", "minContains"), MAX_MINIMUM),
    **dict.fromkeys(("maxItems", "maxProperties", "maxContains"), MAX_MAXIMUM),
    "maxLength": MAX_MAX_LENGTH,
}
_LISTS = {
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), MAX_BRANCHES),
    **dict.fromkeys(("enum", "required"), MAX_TEXTS),
}
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DATA = ("const", "default", "examples", "enum")
_LISTS_OF_NAMES = ("required", "type")
_SEPARATE = ("properties", "items", "prefixItems", "additionalProperties", "$defs", "definitions")
_ANNOTATIONS = ("title", "description", "default", "examples", "deprecated", "readOnly")

_REPEAT = r"\{\s*+(?P<least>\d*+)\s*+(?:,\s*+(?P<most>\d*+)\s*+)?+\}"  # nothing is read twice
_IN_PATTERN = re.compile(
    r"\\[pPxuU]\{[^}]*\}|\\.|(?P<set>\[)|(?P<open>\()|(?P<close>\))|" + _REPEAT + r"|[*+?]",
    re.DOTALL,
)
_IN_GRAMMAR = re.compile(
    r'(?:\#|//)[^\n]*|"(?:\\.|[^"\\\n])*+"?|/(?P<pattern>(?:\\.|[^/\\])*+)/?'
    r"|%(?:json|regex|llguidance)\s*+(?P<json>)|(?P<open>\()|(?P<close>\))"
    r"|" + _REPEAT + r"|~\s*+(?P<first>\d++)(?:\s*+\.\.\s*+(?P<second>\d++))?+|[\w\-]++",
    re.DOTALL,
)
_IN_SET = re.compile(r"\\.|[\[\]]", re.DOTALL)


def check_limits(constraint: Constraint) -> None:
    """Refuse a constraint that is over a limit, and may not compile in bounded time.

    Raises:
        ConstraintError: it is; the message names the keyword and its limit.
    """
    multiples = _Multiples([], [])
    match constraint:
        case JsonSchema(text=text):
            multiples = _check_schema(json.loads(text))
        case Regex(pattern):
            _check_pattern(pattern)
        case Lark(rules=rules, schemas=schemas):
            _refuse_over(
                num_chars_of(constraint), MAX_ALL_CHARS, "characters of all schemas together"
            )
            multiples = _check_grammar(rules)
            for _, schema in schemas:
                multiples.add(_check_schema(json.loads(schema.text)))
    multiples.check()


def num_chars_of(constraint: Constraint) -> int:
    """Return how many characters a constraint has."""
    match constraint:
        case JsonSchema(text=text) | Regex(text):
            return len(text)
        case OneOf(texts):
            return sum(map(len, texts))
        case Lark(rules=rules, schemas=schemas):
            return len(rules) + sum(len(schema.text) for _, schema in schemas)
    return 0


def _refuse_over(value: float, limit: int, what: str, keyword: str = "") -> None:
    if value > limit:
        raise ConstraintError(f"{what}: {value} is over the limit of {limit}", keyword=keyword)


class _Multiples(NamedTuple):
    """Values of ``multipleOf`` as whole numbers, without their decimal points.

    Attributes:
        all: all values.
        combined: values of which several may apply to one number. Their cost is their least common
            multiple; the cost of all others is their sum.
    """

    all: list[int]
    combined: list[int]

    def add(self, others: "_Multiples") -> None:
        """Add the values of another schema."""
        self.all.extend(others.all)
        self.combined.extend(others.combined)

    def check(self) -> None:
        """Refuse values that would take too long to compile."""
        if _common_multiple(self.all) <= MAX_MULTIPLE:
            return
        if _common_multiple(self.combined) > MAX_MULTIPLE or sum({*self.all}) > MAX_MULTIPLE:
            raise ConstraintError(
                f"multipleOf is over the limit of {MAX_MULTIPLE}: the sum of its values, or the "
                "least common multiple of those that are combined, without their decimal points",
                keyword="multipleOf",
            )


def _common_multiple(values: list[int]) -> int:
    common = 1
    for value in values:
        common = math.lcm(common, value)
        if common > MAX_MULTIPLE:
            return common
    return common


# JSON schemas


def _check_schema(schema: Any) -> _Multiples:
    """Check a schema and its subschemas; return all values of ``multipleOf``."""
    multiples, num_nodes, refers = _Multiples([], []), 0, False
    waiting = [(schema, 0, False)]
    while waiting:
        node, depth, is_combined = waiting.pop()
        num_nodes += 1
        _refuse_over(num_nodes, MAX_NODES, "schemas in a schema")
        _refuse_over(depth, MAX_DEPTH, "depth of a schema")
        if isinstance(node, Mapping):
            is_combined = is_combined or _combines(node)
            found = _check_keywords(node)
            multiples.add(_Multiples(found, found if is_combined else []))
            refers = refers or (is_combined and "$ref" in node)
            waiting += [(inner, depth + 1, is_combined) for inner in _inner(node)]
    # A reference may lead to any schema of the document.
    return multiples._replace(combined=multiples.all) if refers else multiples


def _combines(node: Mapping[str, Any]) -> bool:
    """Return whether one value may have to match several schemas of a node, or one of several."""
    if "$ref" in node and any(key != "$ref" and key not in _ANNOTATIONS for key in node):
        return True
    return any(
        isinstance(value, Mapping | list) and key not in (*_SEPARATE, *_DATA, *_LISTS_OF_NAMES)
        for key, value in node.items()
    )


def _inner(node: Mapping[str, Any]) -> Iterator[Any]:
    """Yield all values in schema positions of a schema, even if they are no schemas."""
    for key, value in node.items():
        if key in _NAMED and isinstance(value, Mapping):
            yield from value.values()
        elif isinstance(value, list) and key not in _DATA:
            yield from value
        elif isinstance(value, Mapping) and key not in _DATA:
            yield value


def _check_keywords(node: Mapping[str, Any]) -> list[int]:
    for key, limit in _NUMBERS.items():
        if isinstance(value := node.get(key), int | float):
            _refuse_over(value, limit, key, key)
    for key, limit in _LISTS.items():
        if isinstance(value := node.get(key), list):
            _refuse_over(len(value), limit, f"values of {key}", key)
    patterns = [node.get("pattern")]
    if isinstance(named := node.get("patternProperties"), Mapping):
        patterns += named
    for pattern in patterns:
        if isinstance(pattern, str):
            _check_pattern(pattern)
    return _multiple(node.get("multipleOf"))


def _multiple(value: Any) -> list[int]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        return []
    if not found.is_finite() or abs(found.adjusted()) >= MAX_EXPONENT:
        return [MAX_MULTIPLE + 1]
    _, digits, exponent = found.normalize().as_tuple()
    return [int("".join(map(str, digits))) * 10 ** max(0, int(exponent))]


# Patterns and grammars


class _Repeats:
    """Multiplies the counts of nested repetitions."""

    def __init__(self) -> None:
        self._most = [1]  # inside each open group
        self._last = 1  # inside the last item

    def open(self) -> None:
        self._most.append(1)

    def close(self) -> None:
        self._last = self._most.pop() if len(self._most) > 1 else 1
        self._most[-1] = max(self._most[-1], self._last)

    def atom(self, num: int = 1) -> None:
        self._last = num
        self._most[-1] = max(self._most[-1], num)

    def repeat(self, *counts: str | None) -> None:
        stated = [count for count in counts if count]
        num = max((int(count) if len(count) < 10 else 10**9 for count in stated), default=1)
        self.atom(self._last * max(1, num))
        what = "repetitions in a pattern, those around it included"
        _refuse_over(self._last, MAX_REPEATS, what, "pattern")

    @property
    def largest(self) -> int:
        return max(self._most)


def _check_pattern(pattern: str) -> int:
    """Check a regular expression; return the highest number of nested repetitions."""
    repeats, position = _Repeats(), 0
    while position < len(pattern):
        found = _IN_PATTERN.match(pattern, position)
        if found is None:
            repeats.atom()
            position += 1
            continue
        position = found.end()
        if found["set"]:
            position = _set_end(pattern, position)
            repeats.atom()
        elif not _nest(repeats, found) and found[0].startswith("\\"):
            repeats.atom()
    return repeats.largest


def _nest(repeats: _Repeats, found: re.Match[str]) -> bool:
    """Count a bracket or a repetition; return whether the match was one."""
    if found["open"]:
        repeats.open()
    elif found["close"]:
        repeats.close()
    elif found["least"] is not None:
        repeats.repeat(found["least"], found["most"])
    else:
        return False
    return True


def _set_end(pattern: str, position: int) -> int:
    """Return where a character set ends whose bracket is before a position."""
    depth = 1
    for found in _IN_SET.finditer(pattern, position):
        depth += {"[": 1, "]": -1}.get(found[0], 0)
        if not depth:
            return found.end()
    return len(pattern)


def _check_grammar(rules: str) -> _Multiples:
    """Check a Lark grammar; return the values of ``multipleOf`` in its schemas."""
    multiples, repeats, position = _Multiples([], []), _Repeats(), 0
    while found := _IN_GRAMMAR.search(rules, position):
        position = found.end()
        if found["json"] is not None:
            schema, position = _json_at(rules, position)
            multiples.add(_check_schema(schema))
        elif found["pattern"] is not None:
            repeats.atom(_check_pattern(found["pattern"]))
        elif found["first"] is not None:
            repeats.repeat(found["first"], found["second"])
        elif not _nest(repeats, found) and not found[0].startswith(("#", "//")):
            repeats.atom()
    return multiples


def _json_at(rules: str, position: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(rules, position)
    except (ValueError, RecursionError):
        raise ConstraintError("a schema in a grammar must be JSON, of bounded depth") from None
