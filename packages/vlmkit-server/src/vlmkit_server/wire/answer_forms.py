"""The form that a body wants its answer in: what may be sent, and the constraint that it comes to.

OpenAI has ``response_format``, other servers have ``structured_outputs`` and ``guided_json`` and
its like. How an answer is held to a constraint is the runner's business.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from vlmkit.errors import ConstraintError, RequestError
from vlmkit.types.constraint import (
    MAX_CHARS,
    Constraint,
    JsonObject,
    JsonSchema,
    Lark,
    OneOf,
    Regex,
)

SchemaName = Annotated[str, Meta(max_length=512)]
MAX_SCHEMA_BYTES = 8 * MAX_CHARS  # as it was sent, spaces between its parts included


class TextForm(msgspec.Struct, tag_field="type", tag="text"):
    """Any text, as it is the case anyway."""


class JsonObjectForm(msgspec.Struct, kw_only=True, tag_field="type", tag="json_object"):
    """Any JSON object, or one that a schema describes.

    A response repeats it: a schema that was not sent must not be encoded.
    """

    schema: Raw | UnsetType = UNSET


class NamedSchema(msgspec.Struct, kw_only=True):
    """A schema and what it is called; with ``strict``, each of its keywords must be enforced."""

    name: SchemaName | None = None
    description: str | None = None
    schema: Raw = msgspec.field(default_factory=Raw)
    strict: bool | None = None


class JsonSchemaForm(msgspec.Struct, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that a schema describes, which stands in ``json_schema`` or beside the type."""

    json_schema: NamedSchema | None = None
    schema: Raw = msgspec.field(default_factory=Raw)
    name: SchemaName | None = None
    strict: bool | None = None


ResponseFormat = TextForm | JsonObjectForm | JsonSchemaForm


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """One of several ways to say what an answer must keep to."""

    json: Raw = msgspec.field(default_factory=Raw)
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class Formed(msgspec.Struct, kw_only=True):
    """The fields of a body that ask for a form; at most one of them may.

    What is to be a schema is not decoded before it is known to be short.
    """

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Raw = msgspec.field(default_factory=Raw)
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class RequestedForm(NamedTuple):
    """What an answer must keep to, and the field that asks for it."""

    field: str
    constraint: Constraint


def requested_form(body: Formed) -> RequestedForm | None:
    """Return the form that a body asks for; None leaves the answer free.

    Raises:
        RequestError: several fields ask for one, or one asks for what makes no sense.
    """
    found = []
    for field, make, said in _asked(body):
        try:
            found.append(RequestedForm(field, make(said)))
        except ConstraintError as error:
            error.param = field
            raise
    if len(found) > 1:
        fields = [form.field for form in found]
        raise RequestError(f"{' and '.join(fields)} exclude each other", param=fields[1])
    return found[0] if found else None


def _asked(body: Formed) -> Iterator[tuple[str, Callable[[Any], Constraint], Any]]:
    """Yield each field that asks, what makes a constraint of it, and what it holds."""
    form, outputs = body.response_format, body.structured_outputs or StructuredOutputs()
    if isinstance(form, JsonObjectForm):
        schema = _given(form.schema)
        yield "response_format", _object if schema is None else _described, schema
    elif isinstance(form, JsonSchemaForm):
        schema, is_strict = _schema_of(form)
        described = partial(_described, is_strict=is_strict)
        yield "response_format", _object if schema is None else described, schema
    if outputs.json_object:
        yield "structured_outputs.json_object", _object, None
    for field, make, said in (
        ("guided_json", _schema, _given(body.guided_json)),
        ("guided_regex", Regex, body.guided_regex),
        ("guided_choice", _choice, body.guided_choice),
        ("guided_grammar", Lark, body.guided_grammar),
        ("structured_outputs.json", _schema, _given(outputs.json)),
        ("structured_outputs.regex", Regex, outputs.regex),
        ("structured_outputs.choice", _choice, outputs.choice),
        ("structured_outputs.grammar", Lark, outputs.grammar),
    ):
        if said is not None:
            yield field, make, said


def _schema_of(form: JsonSchemaForm) -> tuple[Raw | None, bool]:
    """Return the schema of a form, if it has one, and whether it is strict.

    Raises:
        RequestError: it has two, or no place for one.
    """
    schema, named = _given(form.schema), form.json_schema
    if named is None and schema is None:
        raise RequestError(
            "response_format of type json_schema needs json_schema.schema, or schema",
            param="response_format",
        )
    if named is not None and schema is not None:
        raise RequestError(
            "response_format.json_schema and response_format.schema exclude each other",
            param="response_format.schema",
        )
    if named is None:
        return schema, bool(form.strict)
    return _given(named.schema), bool(named.strict or form.strict)


def _object(_: None) -> JsonObject:
    return JsonObject()


def _given(value: Raw | UnsetType) -> Raw | None:
    """Return a value, if there is one and it is not null."""
    if isinstance(value, UnsetType) or not len(value):
        return None
    return value if bytes(memoryview(value)[:5]) != b"null" else None


def _schema(value: Raw) -> JsonSchema:
    """Return what a schema, or its text, comes to."""
    schema = _decoded(value)
    return JsonSchema(schema) if isinstance(schema, str) else JsonSchema.of(schema)


def _described(value: Raw, *, is_strict: bool = False) -> JsonSchema:
    return JsonSchema.of(_decoded(value), is_strict=is_strict)


def _decoded(value: Raw) -> Any:
    if len(value) > MAX_SCHEMA_BYTES:
        raise ConstraintError(f"a schema is over the limit of {MAX_CHARS} characters")
    try:
        return msgspec.json.decode(value)
    except (ValueError, RecursionError):  # what was not decoded was not checked, either
        raise ConstraintError("a schema must be JSON, of bounded depth") from None


def _choice(texts: list[str]) -> OneOf:
    return OneOf(tuple(texts))
