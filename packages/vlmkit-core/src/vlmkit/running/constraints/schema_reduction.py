"""Leaves out of a JSON schema what a compiler does not take, keyword by keyword.

What says the same in another way is rewritten first: forms of earlier drafts and of OpenAPI, and
keywords that say nothing. Compiles nothing; takes time proportional to the schema.
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
"""Keywords without which a value still has the parts that a schema names."""

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
"""Values by which a keyword says what is the case anyway."""

_NEEDS = {
    **dict.fromkeys(("then", "else"), "if"),
    **dict.fromkeys(("minContains", "maxContains"), "contains"),
}
"""Keywords that say nothing without another."""

_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems")
_NOT_EMPTY = ("anyOf", "oneOf", "enum")
_IDENTIFIERS = ("$schema", "$id")  # references are within the schema itself


class LeftOut(NamedTuple):
    """A keyword that is left out of a schema.

    Attributes:
        path: where it stands, as a JSON pointer.
        keyword: its name; empty for a whole schema.
        reason: why, as the end of a sentence whose subject is the schema.
    """

    path: str
    keyword: str
    reason: str


class Reduced(NamedTuple):
    """A schema that a compiler takes, as far as its declaration says.

    Attributes:
        schema: with what says the same in another way rewritten.
        left_out: of it.
    """

    schema: Any
    left_out: list[LeftOut]


def reduced(schema: Any, support: SchemaSupport, faulty: AbstractSet[str] = frozenset()) -> Reduced:
    """Return a schema without the keywords that a compiler does not take.

    Args:
        schema: as JSON has it.
        support: what the compiler takes.
        faulty: more keywords to leave out, wherever they stand; of ``oneOf`` there remains that a
            value matches one of its schemas at least.

    Raises:
        ConstraintError: the schema is nested too deeply.
    """
    reduction = _Reduction(schema, support, faulty)
    return Reduced(reduction.node(schema, "", 0), reduction.left_out)


def escaped(key: str) -> str:
    """Return a key as a JSON pointer holds it."""
    return key.replace("~", "~0").replace("/", "~1")


class _Reduction:
    """One schema under way."""

    def __init__(self, root: Any, support: SchemaSupport, faulty: AbstractSet[str]) -> None:
        self._root = root
        self._support = support
        self._faulty = faulty
        self.left_out: list[LeftOut] = []

    def node(self, schema: Any, path: str, depth: int) -> Any:
        """Return a schema without what is left out of it."""
        if depth > MAX_DEPTH:
            raise ConstraintError(f"depth of a schema: it is over the limit of {MAX_DEPTH}")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            self._leave_out(path, "", "holds a value that is no schema")
            return True
        made: dict[str, Any] = {}
        for key, value in rewritten(schema).items():
            place = f"{path}/{escaped(key)}"
            reason = self._reason(key, value, schema)
            if reason:
                self._leave_out(place, key, reason)
            if not reason:
                made[key] = self._inner(key, value, place, depth + 1)
            elif key == "oneOf" and isinstance(value, list) and value and "anyOf" not in schema:
                made["anyOf"] = self._inner(key, value, place, depth + 1)
        return made

    def _leave_out(self, path: str, keyword: str, reason: str) -> None:
        self.left_out.append(LeftOut(path, keyword, reason))

    def _inner(self, key: str, value: Any, place: str, depth: int) -> Any:
        """Return a keyword's value, the schemas in it reduced."""
        if key in _NAMED:
            return {
                name: self.node(each, f"{place}/{escaped(name)}", depth)
                for name, each in value.items()
                if key != "patternProperties" or self._takes_name(name, place)
            }
        if key in _LISTED:
            return [self.node(each, f"{place}/{n}", depth) for n, each in enumerate(value)]
        return self.node(value, place, depth) if key in _SINGLE else value

    def _takes_name(self, pattern: str, place: str) -> bool:
        if self._support.takes_pattern(pattern):
            return True
        reason = "uses a pattern that is not supported"
        self._leave_out(f"{place}/{escaped(pattern)}", "patternProperties", reason)
        return False

    def _reason(self, key: str, value: Any, node: Mapping[str, Any]) -> str:
        """Return why a keyword cannot be taken; empty if it can."""
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
        """Tell whether a reference leads to a schema of this document."""
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
    """Return what is wrong with the value of a keyword, by itself; empty if nothing is."""
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
    """Return the keywords of a schema in the form of JSON Schema's last draft."""
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
    """Rewrite a list of schemas for the first items, and the one for the rest."""
    more = made.pop("additionalItems", None)
    if isinstance(made.get("items"), list) and "prefixItems" not in made:
        made["prefixItems"] = made.pop("items")
        if more is not None:
            made["items"] = more


def _add_null(made: dict[str, Any]) -> None:
    """Let a value be null as well, as OpenAPI's ``nullable`` does."""
    kind = made.get("type")
    if isinstance(kind, str) and kind != "null":
        made["type"] = [kind, "null"]
        if isinstance(values := made.get("enum"), list) and None not in values:
            made["enum"] = [*values, None]
