"""The output format of an answer: the fields that request it, and the resulting constraint.

OpenAI has ``response_format``; other servers have ``structured_outputs``, ``guided_json`` and
similar fields. The runner enforces the constraint.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from vlmkit.errors import ConstraintError, RequestError
from vlmkit.types.constraint import (
    Constraint,
    JsonObject,
    JsonSchema,
    Lark,
    OneOf,
    Regex,
    decoded_schema,
)

_FORMAT = "response_format"
SchemaName = Annotated[str, Meta(max_length=512)]


class TextForm(msgspec.Struct, tag_field="type", tag="text"):
    """Any text, which is the default."""


class JsonObjectForm(msgspec.Struct, kw_only=True, tag_field="type", tag="json_object"):
    """Any JSON object, or one that matches a schema.

    A response repeats it: a missing schema must not be encoded.
    """

    schema: Raw | UnsetType = UNSET


class NamedSchema(msgspec.Struct, kw_only=True):
    """A schema and its name; with ``strict``, each of its keywords must be enforced."""

    name: SchemaName | None = None
    description: str | None = None
    schema: Raw = msgspec.field(default_factory=Raw)
    strict: bool | None = None


class JsonSchemaForm(msgspec.Struct, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that matches a schema, which is in ``json_schema`` or beside the type."""

    json_schema: NamedSchema | None = None
    schema: Raw = msgspec.field(default_factory=Raw)
    name: SchemaName | None = None
    strict: bool | None = None


ResponseFormat = TextForm | JsonObjectForm | JsonSchemaForm


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """One of several kinds of constraints."""

    json: Raw = msgspec.field(default_factory=Raw)
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class Formed(msgspec.Struct, kw_only=True):
    """The fields of a body that request an output format; at most one may be set.

    A schema is decoded only after its length is checked.
    """

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Raw = msgspec.field(default_factory=Raw)
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class RequestedForm(NamedTuple):
    """The requested constraint, and the field that requests it."""

    field: str
    constraint: Constraint


def requested_form(
    body: Formed, path: str = _FORMAT, form: ResponseFormat | None = None
) -> RequestedForm | None:
    """Return the output format that a body requests; None leaves the answer free.

    Args:
        body: the fields that request one.
        path: the body's own field for a format, where it is not ``response_format``.
        form: the format that this field requests.

    Raises:
        RequestError: several fields request one, or a constraint is invalid.
    """
    if form is not None and body.response_format is not None:
        raise RequestError(f"{_FORMAT} and {path} exclude each other", param=_FORMAT)
    found = []
    for field, parse, value in _requested(body, path, form or body.response_format):
        try:
            found.append(RequestedForm(field, parse(value)))
        except ConstraintError as error:
            error.param = field
            raise
    if len(found) > 1:
        fields = [each.field for each in found]
        raise RequestError(f"{' and '.join(fields)} exclude each other", param=fields[1])
    return found[0] if found else None


def _requested(
    body: Formed, path: str, form: ResponseFormat | None
) -> Iterator[tuple[str, Callable[[Any], Constraint], Any]]:
    """Yield each field that is set, the parser of its constraint, and its value."""
    outputs = body.structured_outputs or StructuredOutputs()
    if isinstance(form, JsonObjectForm):
        schema = _given(form.schema)
        yield path, _object if schema is None else _described, schema
    elif isinstance(form, JsonSchemaForm):
        schema, is_strict = _schema_of(form, path)
        described = partial(_described, is_strict=is_strict)
        yield path, _object if schema is None else described, schema
    if outputs.json_object:
        yield "structured_outputs.json_object", _object, None
    for field, parse, value in (
        ("guided_json", _schema, _given(body.guided_json)),
        ("guided_regex", Regex, body.guided_regex),
        ("guided_choice", _choice, body.guided_choice),
        ("guided_grammar", Lark, body.guided_grammar),
        ("structured_outputs.json", _schema, _given(outputs.json)),
        ("structured_outputs.regex", Regex, outputs.regex),
        ("structured_outputs.choice", _choice, outputs.choice),
        ("structured_outputs.grammar", Lark, outputs.grammar),
    ):
        if value is not None:
            yield field, parse, value


def _schema_of(form: JsonSchemaForm, path: str) -> tuple[Raw | None, bool]:
    """Return the schema of a format, if it has one, and whether it is strict.

    Raises:
        RequestError: it has two schemas, or no field for one.
    """
    schema, named = _given(form.schema), form.json_schema
    if named is None and schema is None:
        raise RequestError(
            f"{path} of type json_schema needs json_schema.schema, or schema", param=path
        )
    if named is not None and schema is not None:
        raise RequestError(
            f"{path}.json_schema and {path}.schema exclude each other", param=f"{path}.schema"
        )
    if named is None:
        return schema, bool(form.strict)
    return _given(named.schema), bool(named.strict or form.strict)


def _object(_: None) -> JsonObject:
    return JsonObject()


def _given(value: Raw | UnsetType) -> Raw | None:
    """Return a value, or None if it is missing or null."""
    if isinstance(value, UnsetType) or not len(value):
        return None
    return value if bytes(memoryview(value)[:5]) != b"null" else None


def _schema(value: Raw) -> JsonSchema:
    """Return the constraint of a schema, or of a schema's text."""
    schema = decoded_schema(value)
    return JsonSchema(schema) if isinstance(schema, str) else JsonSchema.of(schema)


def _described(value: Raw, *, is_strict: bool = False) -> JsonSchema:
    return JsonSchema.of(decoded_schema(value), is_strict=is_strict)


def _choice(texts: list[str]) -> OneOf:
    return OneOf(tuple(texts))
