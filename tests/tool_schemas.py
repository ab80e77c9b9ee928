"""More than five hundred tool schemas as programs generate them, the same in every run.

They come from pydantic models over many types, typed dictionaries, dataclasses, hand-written MCP
tools and OpenAPI documents. Each keyword that may be unsupported occurs at each position where it
may stand.
"""

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Optional

import pydantic
from pydantic import Field
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

Schema = dict[str, Any]


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(pydantic.BaseModel):
    x: float
    y: float = 0.0


class Tree(pydantic.BaseModel):
    name: str
    children: list["Tree"] = []


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    weight_kg: float


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    path: pathlib.Path
    mode: Literal["r", "w"] = "r"


class Pair(NamedTuple):
    first: int
    second: str


class Options(TypedDict, total=False):
    limit: int
    tags: set[str]


@dataclasses.dataclass
class Job:
    name: str
    at: dt.datetime
    after: Optional["Job"] = None


FIELD_TYPES: tuple[Any, ...] = (
    *(str, int, float, bool, bytes, complex, None, Any, object, dict, list, set, frozenset, tuple),
    *(dt.datetime, dt.date, dt.time, dt.timedelta, decimal.Decimal),
    *(uuid.UUID, pathlib.Path, pathlib.PurePosixPath, fractions.Fraction, re.Pattern),
    *(ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network),
    *(ipaddress.IPv6Interface, pydantic.SecretStr, pydantic.SecretBytes, pydantic.AnyUrl),
    *(pydantic.HttpUrl, pydantic.FileUrl, pydantic.PostgresDsn, pydantic.IPvAnyAddress),
    *(pydantic.FilePath, pydantic.DirectoryPath, pydantic.NewPath, pydantic.Json),
    *(pydantic.Base64Bytes, pydantic.Base64Str, pydantic.ByteSize, pydantic.PositiveInt),
    *(pydantic.NegativeFloat, pydantic.NonNegativeInt, pydantic.FiniteFloat, pydantic.StrictBool),
    *(pydantic.AwareDatetime, pydantic.NaiveDatetime, pydantic.PastDate, pydantic.FutureDatetime),
    *(pydantic.UUID4, pydantic.JsonValue, pydantic.StrictStr, Colour, Level, Literal["a", 1, True]),
    *(Point, Tree, Closed, Pair, Options, Job, Cat | Dog, int | str | None),
    Annotated[Cat | Dog, Field(discriminator="kind")],
    Annotated[str, Field(json_schema_extra={"pattern": "^(?!admin)[a-z]+$"})],
    Annotated[str, Field(pattern=r"^\w{2,8}$", min_length=2, max_length=8)],
    Annotated[str, Field(min_length=1, max_length=64, examples=["a", "b"])],
    Annotated[int, Field(ge=0, lt=100, multiple_of=5)],
    Annotated[float, Field(gt=0, le=1)],
    Annotated[list[int], Field(min_length=1, max_length=3)],
    Annotated[set[int], Field(min_length=1)],
    tuple[int, str],
    tuple[int, ...],
    dict[int, str],
    dict[Colour, int],
    dict[Annotated[str, Field(pattern="^[a-z]+$")], int],
    type[int],
)
"""Types that fields of models have."""

KEYWORDS: dict[str, Schema] = {
    **{f"format {name}": {"type": "string", "format": name}
       for name in ("path", "binary", "password", "date-time", "uri-reference", "regex", "int64")},
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "not": {"type": "string", "not": {"enum": ["root"]}},
    "contains": {"type": "array", "contains": {"const": 1}, "minContains": 1},
    "if": {"type": "object", "properties": {"a": {"type": "integer"}},
           "if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
    "dependentRequired": {"type": "object", "properties": {"a": {}, "b": {}},
                          "dependentRequired": {"a": ["b"]}},
    "dependencies": {"type": "object", "dependencies": {"a": ["b"]}},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}},
    "unevaluatedProperties": {"type": "object", "properties": {"a": {}},
                              "unevaluatedProperties": False},
    "look-ahead": {"type": "string", "pattern": "^(?=.*[0-9]).{8,}$"},
    "look-behind": {"type": "string", "pattern": "(?<=a)b"},
    "back-reference": {"type": "string", "pattern": r"(a|b)\1"},
    "edges of words": {"type": "string", "pattern": r"\bcat\b"},
    "malformed pattern": {"type": "string", "pattern": "[a-"},
    "ECMA's pattern": {"type": "string", "pattern": r"^[\w\-]+\/\d{1,3}$"},
    "external $ref": {"$ref": "https://example.com/schema.json"},
    "$ref without an end": {"$ref": "#/$defs/nowhere"},
    "$dynamicRef": {"$dynamicRef": "#node"},
    "$recursiveRef": {"$recursiveRef": "#"},
    "mixed enum": {"enum": [1, "a", None, True, 2.5, ["x"], {"k": 1}]},
    "const": {"const": {"a": [1, "b"]}},
    "null": {"const": None},
    "prefixItems": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}],
                    "items": False},
    "patternProperties": {"type": "object", "patternProperties": {"^x-": {"type": "string"}},
                          "additionalProperties": False},
    "overlapping patternProperties": {"type": "object",
                                      "patternProperties": {"^a": {}, "b$": {"type": "null"}}},
    "patternProperties that look ahead": {"type": "object", "patternProperties": {"^(?!x)": {}}},
    "discriminator": {"oneOf": [{"type": "object", "properties": {"k": {"const": k}},
                                 "required": ["k"]} for k in ("a", "b")],
                      "discriminator": {"propertyName": "k"}},
    "overlapping oneOf": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
    "nullable": {"type": "string", "nullable": True, "enum": ["a", "b"]},
    "examples": {"type": "string", "examples": ["x"], "example": "y", "deprecated": True},
    "true": True,
    "false": False,
    "exclusiveMinimum of draft 4": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
    "items of draft 4": {"type": "array", "items": [{"type": "integer"}], "additionalItems": False},
    "any": {"type": "any"},
    "required of draft 3": {"type": "string", "required": True},
    "another type": {"type": "file"},
    "no schema": "string",
    "malformed properties": {"type": "object", "properties": None},
    "malformed bounds": {"type": "integer", "minimum": "3"},
    "senseless bounds": {"type": "string", "minLength": 5, "maxLength": 2},
    "empty enum": {"enum": []},
    "empty anyOf": {"anyOf": []},
    "bounds of properties": {"type": "object", "properties": {"a": {}}, "minProperties": 1},
    "large multipleOf": {"type": "integer", "multipleOf": 999_999},
    "large minItems": {"type": "array", "minItems": 200_000},
    "large repetition": {"type": "string", "pattern": "(a{1000}){1000}"},
    "comments": {"$comment": "x", "title": "T", "description": "d", "default": {"not": 1},
                 "contentMediaType": "text/html", "readOnly": True, "x-order": 3},
}  # fmt: skip
"""Schemas of one value, by what is remarkable about them."""


def tool_schemas() -> Iterator[tuple[str, Schema]]:
    """Yield schemas of tools' arguments, each with a name for errors."""
    yield from _of_models()
    yield from _of_adapters()
    yield from _of_keywords()
    yield from _of_servers()
    yield from _of_openapi()


def _of_models() -> Iterator[tuple[str, Schema]]:
    """Yield schemas of pydantic's models."""
    for number, kind in enumerate(FIELD_TYPES):
        for place, held in (
            ("plain", kind),
            ("optional", Optional[kind]),  # noqa: UP045 - for values that are no types
            ("list", list[kind]),
            ("values", dict[str, kind]),
        ):
            if (schema := _schema_of_model(held)) is not None:
                yield f"model {number} {place}", schema


def _of_adapters() -> Iterator[tuple[str, Schema]]:
    """Yield schemas of typed dictionaries and dataclasses."""
    kinds = [kind for kind in FIELD_TYPES if isinstance(kind, type)]
    for number, kind in enumerate(kinds):
        typed = TypedDict("Typed", {"value": kind, "values": list[kind]})  # type: ignore[operator, misc]  # noqa: UP013
        data = dataclasses.make_dataclass("Data", [("value", kind), ("pair", tuple[kind, int])])
        for name, held in (("typed", typed), ("data", data)):
            if (schema := _schema_of(held)) is not None:
                yield f"{name} {number}", schema


def _schema_of_model(kind: Any) -> Schema | None:
    try:
        made = pydantic.create_model("Arguments", value=(kind, ...), note=(str, "none"))
    except pydantic.PydanticSchemaGenerationError:
        return None
    return _schema_of(made)


def _schema_of(kind: Any) -> Schema | None:
    """Return pydantic's schema of a type, if it has one."""
    try:
        return pydantic.TypeAdapter(kind).json_schema()
    except (pydantic.PydanticInvalidForJsonSchema, pydantic.PydanticSchemaGenerationError):
        return None


def _of_keywords() -> Iterator[tuple[str, Schema]]:
    """Yield schemas with each keyword in each place."""
    for name, value in KEYWORDS.items():
        held = {"type": "object", "properties": {"value": value, "note": {"type": "string"}}}
        yield f"{name} in properties", held
        yield f"{name} in items", _object(value={"type": "array", "items": value})
        yield f"{name} in anyOf", _object(value={"anyOf": [value, {"type": "null"}]})
        yield f"{name} in $defs", _object(value={"$ref": "#/$defs/V"}) | {"$defs": {"V": value}}
        old = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"V": value}}
        yield f"{name} in definitions", old | _object(value={"$ref": "#/definitions/V"})
        if isinstance(value, dict) and value.get("type") == "object":
            yield f"{name} as the whole", value


def _object(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _of_servers() -> Iterator[tuple[str, Schema]]:
    """Yield schemas as MCP servers write them: of files, of version control, of a browser..."""
    path = {"type": "string", "format": "path", "description": "A path."}
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "additionalProperties": False}
    yield "read", draft | _object(path={"type": "string"}, tail={"type": "number"})
    edit = _object(oldText={"type": "string"}, newText={"type": "string"}) | {
        "additionalProperties": False
    }
    yield "edit", draft | _object(path=path, edits={"type": "array", "items": edit})
    yield "repository", _object(repo_path=path, max_count={"type": "integer", "default": 10})
    yield "files", _object(repo_path=path, files={"type": "array", "items": path, "minItems": 1})
    yield (
        "fetch",
        _object(
            url={"type": "string", "format": "uri", "minLength": 1},
            max_length={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1_000_000},
        ),
    )
    yield "nothing", {"type": "object"}
    yield "nothing at all", {}
    yield "no properties", {"type": "object", "properties": {}, "additionalProperties": False}
    yield (
        "entities",
        _object(
            entities={
                "type": "array",
                "uniqueItems": True,
                "items": _object(name={"type": "string"}),
            }
        ),
    )
    yield "identified", {"$id": "https://example.com/tool.json", **_object(path=path)}
    yield "another draft", {"$schema": "https://example.com/meta", **_object(path=path)}
    node = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    yield "tree", node
    yield (
        "loop",
        _object(a={"$ref": "#/$defs/a"})
        | {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    )
    yield "many", _object(**{f"option_{number}": {"type": "string"} for number in range(60)})
    yield "optional ones", {
        "type": "object", "properties": {f"o{n}": {"type": "boolean"} for n in range(300)}
    }  # fmt: skip
    yield "deep", _deep(80)


def _deep(depth: int) -> Schema:
    schema: Schema = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"inner": schema}}
    return schema


def _of_openapi() -> Iterator[tuple[str, Schema]]:
    """Yield schemas as OpenAPI's documents hold them, version 3.0 mostly."""
    kinds = (
        *("int32", "int64", "float", "double", "byte", "binary", "date", "date-time", "password"),
        *("email", "uuid", "uri", "hostname", "ipv4", "decimal", "partial-date", "phone"),
    )
    for name in kinds:
        number = name in ("int32", "int64", "float", "double", "decimal")
        value: Schema = {"type": "number" if number else "string", "format": name}
        yield f"parameter {name}", _object(value=value | {"nullable": True, "example": 1})
        schemas = {"Pet": _object(value=value), "Pets": {"type": "array", "items": value}}
        part = _object(pet={"$ref": "#/components/schemas/Pet"})
        yield f"component {name}", part | {"components": {"schemas": schemas}}
        yield f"component {name} elsewhere", part
        yield (
            f"all of {name}",
            {"allOf": [_object(value=value), {"type": "object", "properties": {"more": {}}}]},
        )
