"""Constraints of any size: JSON Schemas, regular expressions, Lark grammars and choices.

Each function maps a size to a constraint that grows with it in one keyword or operator. A cost
without a bound, or one that grows faster than the size, is a breach.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

Grown = Mapping[str, Callable[[int], Any]]


def _nested(size: int, make: Callable[[Any], Any], inner: Any) -> Any:
    for _ in range(size):
        inner = make(inner)
    return inner


def _words(size: int) -> list[str]:
    return [f"x{number}y{number * 7}" for number in range(size)]


def _exactly(low: str, high: str, value: int, **more: Any) -> Any:
    return more | {low: value, high: value}


SCHEMAS: Grown = {
    "maxLength": lambda n: {"type": "string", "maxLength": n},
    "minLength": lambda n: {"type": "string", "minLength": n},
    "length": lambda n: _exactly("minLength", "maxLength", n, type="string"),
    "pattern {n}": lambda n: {"type": "string", "pattern": f"^a{{{n}}}$"},
    "pattern {0,n}": lambda n: {"type": "string", "pattern": f"^[a-z]{{0,{n}}}$"},
    "pattern text": lambda n: {"type": "string", "pattern": "^" + "ab" * n + "$"},
    "format": lambda n: {"anyOf": [{"type": "string", "format": "date-time"}] * n},
    "multipleOf": lambda n: {"type": "integer", "multipleOf": n - 1 or 1},
    "multipleOf fraction": lambda n: {"type": "number", "multipleOf": 1 / (n + 1)},
    "minimum digits": lambda n: {"type": "integer", "minimum": int("1" * min(n, 60))},
    "range": lambda n: {"type": "integer", "minimum": -n, "maximum": n * 7 + 1},
    "number range": lambda n: {"type": "number", "minimum": -n / 7, "maximum": n / 3},
    "exclusive range": lambda n: {
        "type": "integer",
        "exclusiveMinimum": 0,
        "exclusiveMaximum": n + 2,
    },
    "minItems": lambda n: {"type": "array", "items": {"type": "integer"}, "minItems": n},
    "maxItems": lambda n: {"type": "array", "items": {"type": "integer"}, "maxItems": n},
    "items": lambda n: _exactly("minItems", "maxItems", n, type="array", items={}),
    "nested minItems": lambda n: {
        "type": "array",
        "minItems": n,
        "items": {"type": "array", "minItems": n, "items": {"type": "integer"}},
    },
    "prefixItems": lambda n: {"type": "array", "prefixItems": [{"type": "integer"}] * n},
    "enum": lambda n: {"enum": _words(n)},
    "enum of numbers": lambda n: {"enum": list(range(n))},
    "const": lambda n: {"const": "a" * n},
    "const nested": lambda n: {"const": _nested(min(n, 200), lambda v: [v], 1)},
    "properties": lambda n: {"type": "object", "properties": {w: {} for w in _words(n)}},
    "required": lambda n: {
        "type": "object",
        "properties": {w: {"type": "integer"} for w in _words(n)},
        "required": _words(n),
    },
    "required unlisted": lambda n: {"type": "object", "required": _words(n)},
    "patternProperties": lambda n: {
        "type": "object",
        "patternProperties": {f"^{w}.*$": {"type": "integer"} for w in _words(n)},
    },
    "additionalProperties": lambda n: _nested(
        min(n, 200), lambda v: {"type": "object", "additionalProperties": v}, {"type": "null"}
    ),
    "minProperties": lambda n: {"type": "object", "minProperties": n},
    "maxProperties": lambda n: {"type": "object", "maxProperties": n},
    "anyOf": lambda n: {"anyOf": [{"type": "object", "properties": {w: {}}} for w in _words(n)]},
    "oneOf": lambda n: {"oneOf": [{"const": w} for w in _words(n)]},
    "allOf": lambda n: {"allOf": [{"type": "object", "properties": {w: {}}} for w in _words(n)]},
    "allOf of anyOf": lambda n: {
        "allOf": [{"anyOf": [{"required": [w]}, {"required": [f"{w}z"]}]} for w in _words(n)]
    },
    "$ref chain": lambda n: {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{k}": {"$ref": f"#/$defs/d{k + 1}"} for k in range(n)} | {f"d{n}": {}},
    },
    "$ref doubling": lambda n: {
        "$ref": "#/$defs/d0",
        "$defs": {
            f"d{k}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{k + 1}"}] * 2}
            for k in range(min(n, 500))
        }
        | {f"d{min(n, 500)}": {"type": "null"}},
    },
    "$ref loop": lambda n: {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}, "n": n}},
    "$defs": lambda n: {"type": "null", "$defs": {w: {"type": "integer"} for w in _words(n)}},
    "depth": lambda n: _nested(
        min(n, 200), lambda v: {"type": "object", "properties": {"a": v}}, {"type": "null"}
    ),
    "not": lambda n: _nested(min(n, 200), lambda v: {"not": v}, {"type": "null"}),
    "if": lambda n: _nested(min(n, 200), lambda v: {"if": {}, "then": v}, {"type": "null"}),
    "unknown keyword": lambda n: {"type": "null", "x-note": "a" * n},
    "description": lambda n: {"type": "null", "description": " " * n},
    "x-guidance": lambda n: {"type": "object", "x-guidance": {"item_separator": "," + " " * n}},
}

REGEXES: Grown = {
    "a{n}": lambda n: f"a{{{n}}}",
    "a{0,n}": lambda n: f"a{{0,{n}}}",
    "a{n,}": lambda n: f"a{{{n},}}",
    "(a{n}){n}": lambda n: f"(a{{{n}}}){{{n}}}",
    "((a{9}){9})...": lambda n: "(" * min(n, 99) + "a" + "{9})" * min(n, 99),
    "subset": lambda n: f"(a|b)*a(a|b){{{n}}}",
    "a?^n a^n": lambda n: "a?" * n + "a" * n,
    "(a*)*": lambda n: _nested(min(n, 200), lambda v: f"({v})*", "a"),
    "groups": lambda n: "(" * n + "a" + ")" * n,
    "alternatives": lambda n: "|".join(_words(n)),
    "suffixes": lambda n: "|".join("a" * k + "b" for k in range(min(n, 4000))),
    "classes": lambda n: "[a-c]" * n,
    "\\w{n}": lambda n: f"\\w{{{n}}}",
    "\\p{L}*": lambda n: "(\\p{L}|\\d)*" * n,
    ".{0,n}x": lambda n: f".*x.{{0,{n}}}",
    "literal": lambda n: "a" * n,
    "unicode": lambda n: "\u00e9\u4e2d" * n,
    "flags": lambda n: f"(?i){'aB' * n}",
    "lookahead": lambda n: "(?=a)" * n,
    "and": lambda n: f"[^{'abc' * n}]*",
}

LARKS: Grown = {
    "rules": lambda n: (
        "start: "
        + " | ".join(f"r{k}" for k in range(n))
        + "\n"
        + "".join(f'r{k}: "x{k}"\n' for k in range(n))
    ),
    "chain": lambda n: (
        "start: r0\n" + "".join(f"r{k}: r{k + 1}\n" for k in range(n)) + f'r{n}: "a"\n'
    ),
    "doubling": lambda n: (
        "start: r0\n" + "".join(f"r{k}: r{k + 1} r{k + 1}\n" for k in range(n)) + f'r{n}: "a"\n'
    ),
    "terminals": lambda n: (
        "start: "
        + " ".join(f"T{k}" for k in range(n))
        + "\n"
        + "".join(f"T{k}: /[a-z]{k}/\n" for k in range(n))
    ),
    "alternatives": lambda n: "start: " + " | ".join(json.dumps(w) for w in _words(n)) + "\n",
    "repeat": lambda n: f'start: "a"~{n}\n',
    "repeat range": lambda n: f'start: ("a" "b"?)~0..{n}\n',
    "nested repeat": lambda n: f'start: a~{n}\na: b~{n}\nb: "a"~{n}\n',
    "terminal regex": lambda n: f"start: T\nT: /a{{{n}}}/\n",
    "subset regex": lambda n: f"start: T\nT: /(a|b)*a(a|b){{{n}}}/\n",
    "ambiguous": lambda n: f'start: e\ne: {" | ".join(["e e"] * min(n, 4000))} | "a"\n',
    "empty": lambda n: "start: " + "e " * n + '\ne: "a"?\n',
    "groups": lambda n: "start: " + "(" * min(n, 5000) + '"a"' + ")" * min(n, 5000) + "\n",
    "literal": lambda n: f'start: "{"a" * n}"\n',
    "comments": lambda n: "// x\n" * n + 'start: "a"\n',
    "json": lambda n: 'start: %json {"type": "string", "maxLength": ' + str(n) + "}\n",
    "imports": lambda n: "%import common.NUMBER\n" * n + "start: NUMBER\n",
    "ignore": lambda n: "%ignore /[ \\t]+/\n" * n + 'start: "a"\n',
}

CHOICES: Grown = {
    "many": _words,
    "prefixes": lambda n: ["a" * k for k in range(1, min(n, 2000) + 1)],
    "long": lambda n: ["a" * n, "b" * n],
    "same": lambda n: ["a"] * n,
    "control tokens": lambda n: [f"<|im_end|>{k}" for k in range(n)],
    "spaces": lambda n: [" " * n + "x", " " * n],
}
