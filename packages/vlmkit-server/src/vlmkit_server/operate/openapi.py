"""``GET /openapi.json``: the API of this server as an OpenAPI document.

Everything is derived from the running server: the routes, and the types that bodies are decoded
into and encoded from. What types cannot express, such as two exclusive fields, is a 400.
"""

from collections.abc import Iterable, Mapping, Sequence as Seq
from types import MappingProxyType
from typing import Any

import msgspec
from litestar import Controller, Litestar, MediaType, Response, route
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute

from vlmkit._version import __version__
from vlmkit_server.exchange.service import KnownFields
from vlmkit_server.http.errors import ErrorBody
from vlmkit_server.http.methods import READ
from vlmkit_server.http.operation import Operation
from vlmkit_server.operate.capabilities import BODIES, GENERATE_BODIES
from vlmkit_server.wire.ignored import HEADER, STRICT_HEADER

_Json = dict[str, Any]
_TEXT = {"type": "string"}
_DEFINED = "#/$defs/"
_AS_NAME = str.maketrans({" ": "_", "/": "_", "{": None, "}": None, ".": "_"})
_REFUSALS = {
    400: "A field of the body is invalid; `param` names it.",
    404: "The named object does not exist.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    429: "Too many requests are in progress.",
}
_NOT_FOUND = {400: "A parameter is invalid.", 404: _REFUSALS[404]}
_ALWAYS = {421: "The request is meant for another host.", 500: "The server failed."}
_UNREADY = {503: "The server, or this model, accepts no work now."}
_HAS_RETRY_AFTER = (429, 503)
_NAMED = {
    name: {"description": "The id of the request.", "required": True, "schema": _TEXT}
    for name in ("x-request-id", "request-id")
}
_IGNORED = {HEADER: {"description": "Fields of the body that had no effect.", "schema": _TEXT}}
_TIMING = {"server-timing": {"description": "Timings of the request.", "schema": _TEXT}}
_RETRY = {"retry-after": {"description": "Seconds.", "required": True, "schema": _TEXT}}
_PARAMETERS = [
    {
        "name": "x-request-id",
        "in": "header",
        "description": "The id that the request is to have.",
        "schema": _TEXT,
    }
]
_STRICT = {
    "name": STRICT_HEADER,
    "in": "header",
    "description": "`1` refuses a body with fields that would be ignored.",
    "schema": _TEXT,
}


class OpenApiController(Controller):
    """The API description, for client generators."""

    @route("/openapi.json", http_method=READ, operation=Operation(dict[str, Any], access="key"))
    async def describe(self, document: NamedDependency[bytes]) -> Response[bytes]:
        """Describe every route of this server."""
        return Response(document, media_type=MediaType.JSON)


def openapi_document(app: Litestar, added: KnownFields = MappingProxyType({})) -> bytes:
    """Return the document of an application's routes; takes tens of milliseconds.

    Args:
        app: the application.
        added: fields that plugins add to requests.
    """
    handlers = list(_handlers(app))
    types = dict.fromkeys(kind for *_, operation in handlers for kind in operation.types)
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    _add_fields(components, added)
    _require_tags_of_unions_alone(components)
    names = dict(zip(types, schemas, strict=True))
    paths: dict[str, _Json] = {}
    for path, handler, described in handlers:
        for method in sorted(handler.http_methods):
            operation = described.of(method)
            paths.setdefault(path, {})[method.lower()] = {
                "operationId": _operation_id(method, path),
                "summary": (handler.fn.__doc__ or "").partition("\n")[0],
                "parameters": _parameters(path, operation),
                **_request_body(operation, names),
                "responses": _responses(operation, names, method, path),
            }
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "vlmkit", "version": __version__},
            "paths": dict(sorted(paths.items())),
            "components": {"schemas": dict(sorted(components.items()))},
        }
    )


def _add_fields(components: dict[str, Any], added: KnownFields) -> None:
    """Add the fields of plugins to the bodies that accept them."""
    properties: _Json = {}
    for name, meanings in added.items():
        own = []
        for number, each in enumerate(meanings):
            prefix = f"{name}.{number}."
            schema = _moved(each.schema, prefix)
            for inner, shape in schema.pop("$defs", {}).items():
                components[prefix + inner] = shape
            own.append(schema)
        properties[name] = {"anyOf": [*own, {"type": "null"}], "default": None}
    for reader in (BODIES | GENERATE_BODIES).values():
        if reader.takes_added and (body := components.get(reader.shape.__name__)):
            body["properties"].update(properties)


def _moved(schema: Any, prefix: str) -> Any:
    """Return a schema whose references point to the OpenAPI document's components."""
    if isinstance(schema, Mapping):
        return {key: _moved(value, prefix) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_moved(each, prefix) for each in schema]
    if isinstance(schema, str) and schema.startswith(_DEFINED):
        return f"#/components/schemas/{prefix}{schema.removeprefix(_DEFINED)}"
    return schema


def _operation_id(method: str, path: str) -> str:
    return f"{method.lower()} {path}".translate(_AS_NAME)


def _links(operation: Operation) -> _Json:
    """Return the operations on the id of a response, each by its path's one parameter."""
    return {
        _operation_id(method, path): {
            "operationId": _operation_id(method, path),
            "parameters": {_names(path)[0]: "$response.body#/id"},
        }
        for method, path in operation.links
    }


def _names(path: str) -> list[str]:
    """Return the parameters of a path."""
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _handlers(app: Litestar) -> Iterable[tuple[str, HTTPRouteHandler, Operation]]:
    """Yield each handler with its path, as documents write it, and its operation."""
    for each in app.routes:
        if isinstance(each, HTTPRoute):
            for handler in each.route_handlers:
                if "operation" in handler.opt:
                    yield each.path_format, handler, handler.opt["operation"]


def _parameters(path: str, operation: Operation) -> Seq[_Json]:
    """Return the parameters of a request."""
    path_schema = {"in": "path", "required": True, "schema": _TEXT}
    found = [{"name": name} | path_schema for name in _names(path)]
    if operation.query:
        query = msgspec.json.schema(operation.query, ref_template="")
        ((_, shape),) = query["$defs"].items()
        found += [{"name": n, "in": "query", "schema": s} for n, s in shape["properties"].items()]
    return [*found, *_PARAMETERS, *([_STRICT] if operation.body or operation.form else [])]


def _request_body(operation: Operation, names: Mapping[Any, _Json]) -> _Json:
    """Return the request body of an operation, if it has one."""
    if operation.body:
        content = {"application/json": {"schema": names[operation.body]}}
    elif operation.form:
        content = {"multipart/form-data": {"schema": names[operation.form]}}
    else:
        return {}
    return {"requestBody": {"required": True, "content": content}}


def _require_tags_of_unions_alone(schema: Any) -> None:
    """Make tags optional, in place, except in unions: elsewhere the decoder infers them."""
    if isinstance(schema, dict):
        if "discriminator" in schema:
            schema["required"] = [schema["discriminator"]["propertyName"]]
        elif isinstance(schema.get("required"), list):
            known = schema["properties"]
            schema["required"] = [
                name for name in schema["required"] if len(known[name].get("enum", ())) != 1
            ]
    for each in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(each, dict | list):
            _require_tags_of_unions_alone(each)


def _event(name: str) -> _Json:
    """Return the schema of one event of a stream, in the form of OpenAPI 3.1."""
    data = _TEXT | {"description": f"JSON of a {name}, or of an error, or at the end `[DONE]`."}
    return {"type": "object", "properties": {"event": _TEXT, "data": data}, "required": ["data"]}


def _responses(
    operation: Operation, names: Mapping[Any, _Json], method: str, path: str
) -> dict[str, _Json]:
    """Return every response of an operation, by status."""
    content: dict[str, _Json] = {operation.media_type: {"schema": {}}}
    if operation.answer is not bytes:
        content = {"application/json": {"schema": names[operation.answer]}}
    if operation.events:
        content["text/event-stream"] = {"schema": _event(operation.events)}
    has_body = bool(operation.body or operation.form)
    headers = _NAMED | (_IGNORED if has_body else {}) | (_TIMING if operation.has_timing else {})
    found: dict[int, _Json] = {
        200: {"description": "The answer.", "headers": headers, "content": content}
    }
    if operation.links:
        found[200]["links"] = _links(operation)
    for status, description in _errors(operation, method, path).items():
        kind = operation.unready if operation.unready and status == 503 else operation.error
        kind = ErrorBody if status == 421 else kind
        retry = _RETRY if has_body and status in _HAS_RETRY_AFTER else {}
        found[status] = {
            "description": description,
            "headers": _NAMED | retry,
            "content": {"application/json": {"schema": names[kind]}},
        }
    if method == "HEAD":
        for each in found.values():
            del each["content"]
    return {str(status): found[status] for status in sorted(found)}


def _errors(operation: Operation, method: str, path: str) -> dict[int, str]:
    """Return the description of each error status of an operation."""
    errors = _ALWAYS | (_REFUSALS | _UNREADY if operation.body or operation.form else {})
    if "{" in path:
        errors = errors | _NOT_FOUND
    if operation.may_be_missing:
        errors = errors | {404: _REFUSALS[404]}
    if operation.query:
        errors = errors | {400: _NOT_FOUND[400]}
    if operation.unready:
        errors = errors | _UNREADY
    if operation.events and method == "GET":  # a stream is admitted like a request
        errors = errors | {429: _REFUSALS[429]} | _UNREADY
    return errors
