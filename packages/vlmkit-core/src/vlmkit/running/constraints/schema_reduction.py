"""Reduces a JSON schema to the keywords that a compiler supports.

First, the schema is normalised: forms of earlier drafts and of OpenAPI are rewritten, and keywords
without effect are dropped. It compiles nothing, and takes time linear in the schema.
"""

import re
from collections.abc import Mapping, Set as AbstractSet
from typing import Any, NamedTuple
from urllib.parse import unquote

from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import SchemaSupport
from vlmkit.running.constraints.limits import MAX_DEPTH

NARROWING = frozenset(
    {
        *("format", "pattern", "not", "oneOf", "uniqueItems"),
        *("contains", "minContains", "maxContains", "propertyNames", "dependentRequired"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    }
)
"""Keywords that only narrow values: without them, a value keeps the structure of its schema."""

TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_NUMBER = (int, float)
_SCHEMA = (Mapping, bool)
_SHAPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), (Mapping,)),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "enum", "prefixItems", "required"), (list,)),
    **dict.fromkeys(("pattern", "format", "$ref"), (str,)),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (int,)),
    **dict.fromkeys(("minProperties", "maxProperties"), (int,)),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("items", "additionalProperties", "additionalItems"), _SCHEMA),
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
}
"""Values with which a keyword has no effect."""

_NEEDS = {
    **dict.fromkeys(("then", "else"), "if"),
    **dict.fromkeys(("minContains", "maxContains"), "contains"),
}
"""Keywords that have no effect without another one."""

_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems")
_NOT_EMPTY = ("anyOf", "oneOf", "enum")
_IDENTIFIERS = ("$schema", "$id")  # references are resolved within the schema itself


class LeftOut(NamedTuple):
    """A keyword that is left out of a schema.

    Attributes:
        path: its location, as a JSON pointer.
        keyword: its name; empty for a whole schema.
        reason: a predicate whose subject is the schema.
    """

    path: str
    keyword: str
    reason: str


class Reduced(NamedTuple):
    """A schema that a compiler supports, as far as it declares.

    Attributes:
        schema: the schema, normalised and reduced.
        left_out: the keywords that are left out of it.
    """

    schema: Any
    left_out: list[LeftOut]


def reduced(schema: Any, support: SchemaSupport, faulty: AbstractSet[str] = frozenset()) -> Reduced:
    """Return a schema without the keywords that a compiler does not support.

    Args:
        schema: the schema, as decoded JSON.
        support: the keywords that the compiler supports.
        faulty: more keywords to leave out everywhere. ``oneOf`` then becomes ``anyOf``, unless
            the schema has that, too.

    Raises:
        ConstraintError: the schema is nested too deeply.
    """
    reduction = _Reduction(schema, support, faulty)
    return Reduced(reduction.node(schema, "", 0), reduction.left_out)


def escaped(key: str) -> str:
    """Return a key escaped for a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


class _Reduction:
    """The reduction of one schema."""

    def __init__(self, root: Any, support: SchemaSupport, faulty: AbstractSet[str]) -> None:
        self._root = root
        self._support = support
        self._faulty = faulty
        self.left_out: list[LeftOut] = []

    def node(self, schema: Any, path: str, depth: int) -> Any:
        """Return a schema without the keywords that are left out."""
        if depth > MAX_DEPTH:
            raise ConstraintError(f"depth of a schema: it is over the limit of {MAX_DEPTH}")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            self._leave_out(path, "", "holds a value that is no schema")
            return True
        made: dict[str, Any] = {}
        for key, value in rewritten(schema).items():
            location = f"{path}/{escaped(key)}"
            reason = self._reason(key, value, schema)
            if reason:
                self._leave_out(location, key, reason)
            if not reason:
                made[key] = self._inner(key, value, location, depth + 1)
            elif key == "oneOf" and isinstance(value, list) and value and "anyOf" not in schema:
                made["anyOf"] = self._inner(key, value, location, depth + 1)
        return made

    def _leave_out(self, path: str, keyword: str, reason: str) -> None:
        self.left_out.append(LeftOut(path, keyword, reason))

    def _inner(self, key: str, value: Any, location: str, depth: int) -> Any:
        """Return the value of a keyword, with the schemas in it reduced."""
        if key in _NAMED:
            return {
                name: self.node(each, f"{location}/{escaped(name)}", depth)
                for name, each in value.items()
                if key != "patternProperties" or self._takes_name(name, location)
            }
        if key in _LISTED:
            return [self.node(each, f"{location}/{n}", depth) for n, each in enumerate(value)]
        return self.node(value, location, depth) if key in _SINGLE else value

    def _takes_name(self, pattern: str, location: str) -> bool:
        if self._support.takes_pattern(pattern):
            return True
        reason = "uses a pattern that is not supported"
        self._leave_out(f"{location}/{escaped(pattern)}", "patternProperties", reason)
        return False

    def _reason(self, key: str, value: Any, node: Mapping[str, Any]) -> str:
        """Return why a keyword is not supported; empty if it is."""
        if key in self._support.unsupported:
            return f"uses {key}, which is not supported"
        if key in self._faulty:
            return f"uses {key} in a way that is not supported"
        if malformed := _malformed(key, value):
            return malformed
        if key == "$ref" and not self._resolves(value):
            return "uses a $ref that does not lead to a part of itself"
        if key == "format":
            return self._format_reason(value, node)
        if key == "pattern" and not self._support.takes_pattern(value):
            return "uses a pattern that is not supported"
        return ""

    def _format_reason(self, value: str, node: Mapping[str, Any]) -> str:
        formats, types = self._support.formats, node.get("type", "string")
        if formats is None or value in formats or "string" not in types:
            return ""
        return f"uses a format that is not supported; supported are {', '.join(sorted(formats))}"

    def _resolves(self, reference: str) -> bool:
        """Return whether a reference leads to a schema of this document."""
        if reference == "#":
            return True
        if not reference.startswith("#/"):
            return False
        found = self._root
        for part in unquote(reference[2:]).split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif (
                isinstance(found, list)
                and re.fullmatch("[0-9]{1,6}", key)
                and (int(key) < len(found))
            ):
                found = found[int(key)]
            else:
                return False
        return isinstance(found, _SCHEMA)


def _malformed(key: str, value: Any) -> str:
    """Return why the value of a keyword is malformed; empty if it is not."""
    shapes = _SHAPES.get(key)
    is_bool = isinstance(value, bool) and bool not in (shapes or ())
    if shapes and (is_bool or not isinstance(value, shapes)):
        return f"has a malformed value of {key}"
    if key in _NOT_EMPTY and not value:
        return f"has an empty list as {key}"
    if key == "required" and not all(isinstance(name, str) for name in value):
        return "has a malformed value of required"
    if key == "type" and not _is_type(value):
        return "has a type that JSON Schema does not have"
    return ""


def _is_type(value: Any) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return isinstance(value, list) and bool(value) and all(
        isinstance(each, str) and each in TYPES for each in value
    )  # fmt: skip


def rewritten(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a schema in the form of JSON Schema's latest draft."""
    made = {key: value for key, value in node.items() if key not in _IDENTIFIERS}
    for key in [key for key in made if key in _NEUTRAL and _is_neutral(made[key], key)]:
        del made[key]
    for key in [key for key, other in _NEEDS.items() if key in made and other not in made]:
        del made[key]
    if "if" in made and not {"then", "else"} & made.keys():
        del made["if"]
    if made.get("type") == "any":
        del made["type"]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(is_exclusive := made.get(exclusive), bool):
            del made[exclusive]
            if is_exclusive and bound in made:
                made[exclusive] = made.pop(bound)
    _rewrite_items(made)
    if made.pop("nullable", None) is True:
        _add_null(made)
    return made


def _is_neutral(value: Any, key: str) -> bool:
    return any(type(value) is type(other) and value == other for other in _NEUTRAL[key])


def _rewrite_items(made: dict[str, Any]) -> None:
    """Rewrite ``items`` lists and ``additionalItems`` as ``prefixItems`` and ``items``."""
    more = made.pop("additionalItems", None)
    if isinstance(made.get("items"), list) and "prefixItems" not in made:
        made["prefixItems"] = made.pop("items")
        if more is not None:
            made["items"] = more


def _add_null(made: dict[str, Any]) -> None:
    """Allow null, too, as OpenAPI's ``nullable`` does."""
    kind = made.get("type")
    if isinstance(kind, str) and kind != "null":
        made["type"] = [kind, "null"]
        if isinstance(values := made.get("enum"), list) and None not in values:
            made["enum"] = [*values, None]
