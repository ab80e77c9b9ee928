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
from vlmkit_server.interfaces.api import Route
from vlmkit_server.wire.ignored import HEADER, STRICT_HEADER

_Json = dict[str, Any]
_STRING = {"type": "string"}
_DEFINITIONS = "#/$defs/"
_COMPONENTS = "#/components/schemas/"
# Characters of a path that an operation's id replaces or omits.
_ID_CHARACTERS = str.maketrans({" ": "_", "/": "_", "{": None, "}": None, ".": "_"})
# Descriptions of errors, by status.
_BODY_ERRORS = {
    400: "A field of the body is invalid; `param` names it.",
    404: "The named object does not exist.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    429: "Too many requests are in progress.",
}
_PATH_ERRORS = {400: "A parameter is invalid.", 404: _BODY_ERRORS[404]}
_COMMON_ERRORS = {421: "The request is meant for another host.", 500: "The server failed."}
_UNAVAILABLE = {503: "The server, or this model, accepts no work now."}
_HAS_RETRY_AFTER = (429, 503)
_REQUEST_ID_HEADERS = {
    name: {"description": "The id of the request.", "required": True, "schema": _STRING}
    for name in ("x-request-id", "request-id")
}
_IGNORED_HEADER = {
    HEADER: {"description": "Fields of the body that had no effect.", "schema": _STRING}
}
_TIMING_HEADER = {"server-timing": {"description": "Timings of the request.", "schema": _STRING}}
_RETRY_HEADER = {"retry-after": {"description": "Seconds.", "required": True, "schema": _STRING}}
_COMMON_PARAMETERS = [
    {
        "name": "x-request-id",
        "in": "header",
        "description": "The id that the request is to have.",
        "schema": _STRING,
    }
]
_STRICT_PARAMETER = {
    "name": STRICT_HEADER,
    "in": "header",
    "description": "`1` refuses a body with fields that would be ignored.",
    "schema": _STRING,
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
        added: the fields that plugins add to requests.
    """
    handlers = list(_handlers(app))
    types = dict.fromkeys(kind for *_, operation in handlers for kind in operation.types)
    schemas, components = msgspec.json.schema_components(types, ref_template=_COMPONENTS + "{name}")
    schema_of = dict(zip(types, schemas, strict=True))
    _add_fields(components, schema_of, app.state.apis.routes, added)
    _require_tags_of_unions_alone(components)
    paths: dict[str, _Json] = {}
    for path, handler, described in handlers:
        for method in sorted(handler.http_methods):
            operation = described.of(method)
            paths.setdefault(path, {})[method.lower()] = {
                "operationId": _operation_id(method, path),
                "summary": (handler.fn.__doc__ or "").partition("\n")[0],
                "parameters": _parameters(path, operation),
                **_request_body(operation, schema_of),
                "responses": _responses(operation, schema_of, method, path),
            }
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "vlmkit", "version": __version__},
            "paths": dict(sorted(paths.items())),
            "components": {"schemas": dict(sorted(components.items()))},
        }
    )


def _add_fields(
    components: dict[str, Any],
    schema_of: Mapping[Any, _Json],
    routes: Seq[Route],
    added: KnownFields,
) -> None:
    """Add the fields of plugins to the bodies that accept them."""
    properties: _Json = {}
    for name, facts_of_plugins in added.items():  # several plugins may add a field of the same name
        alternatives = []
        for number, facts in enumerate(facts_of_plugins):
            prefix = f"{name}.{number}."
            schema = _with_moved_references(facts.schema, prefix)
            for definition_name, definition in schema.pop("$defs", {}).items():
                components[prefix + definition_name] = definition
            alternatives.append(schema)
        properties[name] = {"anyOf": [*alternatives, {"type": "null"}], "default": None}
    readers = (route.reader for route in routes if route.reader)
    for shape in {reader.shape for reader in readers if reader.takes_added}:
        name = schema_of[shape]["$ref"].removeprefix(_COMPONENTS)  # its module's, if two share one
        components[name]["properties"].update(properties)


def _with_moved_references(schema: Any, prefix: str) -> Any:
    """Return a schema whose references point to the OpenAPI document's components."""
    if isinstance(schema, Mapping):
        return {key: _with_moved_references(value, prefix) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_with_moved_references(item, prefix) for item in schema]
    if isinstance(schema, str) and schema.startswith(_DEFINITIONS):
        return f"{_COMPONENTS}{prefix}{schema.removeprefix(_DEFINITIONS)}"
    return schema


def _operation_id(method: str, path: str) -> str:
    return f"{method.lower()} {path}".translate(_ID_CHARACTERS)


def _links(operation: Operation) -> _Json:
    """Return the operations that take the ``id`` of a response as the parameter of their path."""
    return {
        _operation_id(method, path): {
            "operationId": _operation_id(method, path),
            "parameters": {_path_parameters(path)[0]: "$response.body#/id"},
        }
        for method, path in operation.links
    }


def _path_parameters(path: str) -> list[str]:
    """Return the names of the parameters of a path."""
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _handlers(app: Litestar) -> Iterable[tuple[str, HTTPRouteHandler, Operation]]:
    """Yield each handler with its path, as documents write it, and its operation."""
    for app_route in app.routes:
        if isinstance(app_route, HTTPRoute):
            for handler in app_route.route_handlers:
                if "operation" in handler.opt:
                    yield app_route.path_format, handler, handler.opt["operation"]


def _parameters(path: str, operation: Operation) -> Seq[_Json]:
    """Return the parameters of a request."""
    path_schema = {"in": "path", "required": True, "schema": _STRING}
    found = [{"name": name} | path_schema for name in _path_parameters(path)]
    if operation.query:
        query = msgspec.json.schema(operation.query, ref_template="")
        ((_, shape),) = query["$defs"].items()
        found += [{"name": n, "in": "query", "schema": s} for n, s in shape["properties"].items()]
    return [
        *found,
        *_COMMON_PARAMETERS,
        *([_STRICT_PARAMETER] if operation.body or operation.form else []),
    ]


def _request_body(operation: Operation, schema_of: Mapping[Any, _Json]) -> _Json:
    """Return the request body of an operation, if it has one."""
    if operation.body:
        content = {"application/json": {"schema": schema_of[operation.body]}}
    elif operation.form:
        content = {"multipart/form-data": {"schema": schema_of[operation.form]}}
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
    for inner in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(inner, dict | list):
            _require_tags_of_unions_alone(inner)


def _event(name: str) -> _Json:
    """Return the schema of one event of a stream, in the form of OpenAPI 3.1."""
    data = _STRING | {"description": f"JSON of a {name}, or of an error, or at the end `[DONE]`."}
    return {"type": "object", "properties": {"event": _STRING, "data": data}, "required": ["data"]}


def _responses(
    operation: Operation, schema_of: Mapping[Any, _Json], method: str, path: str
) -> dict[str, _Json]:
    """Return every response of an operation, by status."""
    content: dict[str, _Json] = {operation.media_type: {"schema": {}}}
    if operation.answer is not bytes:
        content = {"application/json": {"schema": schema_of[operation.answer]}}
    if operation.events:
        is_lines = operation.stream_type != "text/event-stream"
        line = schema_of[operation.answer] if is_lines else _event(operation.events)
        content[operation.stream_type] = {"schema": line}
    has_body = bool(operation.body or operation.form)
    headers = (
        _REQUEST_ID_HEADERS
        | (_IGNORED_HEADER if has_body else {})
        | (_TIMING_HEADER if operation.has_timing else {})
    )
    found: dict[int, _Json] = {
        200: {"description": "The answer.", "headers": headers, "content": content}
    }
    if operation.links:
        found[200]["links"] = _links(operation)
    for status, description in _error_descriptions(operation, method, path).items():
        error_type: type[msgspec.Struct] = operation.error
        if status == 503 and operation.unready:
            error_type = operation.unready
        if status == 421:  # the gate answers, which knows no route
            error_type = ErrorBody
        retry = _RETRY_HEADER if has_body and status in _HAS_RETRY_AFTER else {}
        found[status] = {
            "description": description,
            "headers": _REQUEST_ID_HEADERS | retry,
            "content": {"application/json": {"schema": schema_of[error_type]}},
        }
    if method == "HEAD":
        for response in found.values():
            del response["content"]
    return {str(status): found[status] for status in sorted(found)}


def _error_descriptions(operation: Operation, method: str, path: str) -> dict[int, str]:
    """Return the description of each error status of an operation."""
    errors = _COMMON_ERRORS | (
        _BODY_ERRORS | _UNAVAILABLE if operation.body or operation.form else {}
    )
    if "{" in path:
        errors = errors | _PATH_ERRORS
    if operation.query:
        errors = errors | {400: _PATH_ERRORS[400]}
    if operation.unready:
        errors = errors | _UNAVAILABLE
    if operation.events and method == "GET":  # a stream is admitted like a request
        errors = errors | {429: _BODY_ERRORS[429]} | _UNAVAILABLE
    return errors
