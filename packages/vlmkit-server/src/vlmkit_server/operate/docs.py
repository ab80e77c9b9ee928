"""``GET /docs``: the OpenAPI document as an HTML page, rendered by the server, without scripts."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from litestar import Controller, Response, route
from litestar.di import NamedDependency

from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation
from vlmkit_server.http.page import HTML, around, element, link, page, page_response, table

_Json = Mapping[str, Any]
_SCHEMAS = "#/components/schemas/"
_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "minLength": "characters ≥",
    "maxLength": "characters ≤",
    "minItems": "items ≥",
    "maxItems": "items ≤",
    "pattern": "like",
}


class DocsController(Controller):
    """Documentation, for developers of clients."""

    @route("/docs", http_method=READ, operation=Operation(bytes, media_type=HTML, access="key"))
    async def show(self, docs: NamedDependency[bytes]) -> Response[bytes]:
        """Show the OpenAPI document."""
        return page_response(docs)


def docs_page(document: bytes) -> bytes:
    """Return the page of an OpenAPI document; takes tens of milliseconds."""
    return page("vlmkit: API reference", _body(msgspec.json.decode(document)))


def _body(document: _Json) -> Iterator[str]:
    yield around("p", "Version ", element("code", document["info"]["version"]), ". ")
    yield around("p", "For programs: ", link("/openapi.json"), ".")
    operations = [
        (path, method, each)
        for path, methods in document["paths"].items()
        for method, each in methods.items()
        if method != "head"
    ]
    rows = [
        [_anchor(path, method, each), element("span", each["summary"])]
        for path, method, each in operations
    ]
    yield table(("request", "what it does"), rows)
    for path, method, each in operations:
        yield from _operation(path, method, each)
    yield element("h2", "Types")
    for name, schema in document["components"]["schemas"].items():
        yield from _type(name, schema)


def _anchor(path: str, method: str, operation: _Json) -> str:
    return link(f"#{operation['operationId']}", f"{method.upper()} {path}")


def _operation(path: str, method: str, operation: _Json) -> Iterator[str]:
    yield element("h2", f"{method.upper()} {path}", id=operation["operationId"])
    yield element("p", operation["summary"])
    rows = [
        [element("code", p["name"]), element("span", p["in"]), _shape(p["schema"])]
        for p in operation["parameters"]
    ]
    yield table(("parameter", "in", "type"), rows)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield around("p", "Body, ", element("code", kind), ": ", _shape(content["schema"]))
    rows = []
    for status, answer in operation["responses"].items():
        shapes = [
            around("div", element("code", kind), " ", _shape(each["schema"]))
            for kind, each in answer.get("content", {}).items()
        ]
        rows.append([element("code", status), element("span", answer["description"]), *shapes])
    yield table(("status", "means", "body"), [[*row[:2], "".join(row[2:])] for row in rows])


def _type(name: str, schema: _Json) -> Iterator[str]:
    yield element("h3", name, id=f"type-{name}")
    if description := schema.get("description"):
        yield element("p", description)
    if "properties" not in schema:
        yield around("p", _shape(schema))
        return
    required = schema.get("required", ())
    rows = [
        [element("code", key), _shape(each), _default(each, is_required=key in required)]
        for key, each in schema["properties"].items()
    ]
    yield table(("field", "type", "default"), rows)


def _default(schema: _Json, *, is_required: bool) -> str:
    if is_required:
        return element("em", "required")
    return element("code", _json(schema["default"])) if "default" in schema else ""


def _shape(schema: Any) -> str:
    """Return a schema's type, in one line of HTML."""
    if not isinstance(schema, Mapping):
        return element("span", "anything" if schema else "nothing")
    if ref := schema.get("$ref"):
        name = ref.removeprefix(_SCHEMAS)
        return link(f"#type-{name}", name)
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return " or ".join(_shape(each) for each in schema[union])
    for constant in ("enum", "const"):
        if constant in schema:
            values = schema[constant] if constant == "enum" else [schema[constant]]
            return " or ".join(element("code", _json(value)) for value in values)
    return _plain(schema)


def _plain(schema: _Json) -> str:
    kind = schema.get("type", "anything")
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    bounds = [f"{sign} {schema[name]}" for name, sign in _BOUNDS.items() if name in schema]
    shown = element("span", f"{text} ({', '.join(bounds)})" if bounds else text)
    if kind == "array":
        items = [
            *schema.get("prefixItems", ()),
            *([schema["items"]] if schema.get("items") else []),
        ]
        return shown + " of " + ", ".join(map(_shape, items)) if items else shown
    if kind == "object" and isinstance(inner := schema.get("additionalProperties"), Mapping):
        return f"{shown} of {_shape(inner)}"
    return shown


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
