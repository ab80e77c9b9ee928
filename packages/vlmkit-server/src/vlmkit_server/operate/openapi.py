"""``GET /openapi.json``: what this server takes and answers, as an OpenAPI document.

All of it is read off what runs: the routes, and the types that their bodies are decoded into and
encoded from. What types cannot say, such as that two fields exclude each other, is a 400.
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
    400: "Something in the body is wrong; `param` names it.",
    404: "What is named is not here.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is not announced as JSON.",
    429: "Too much is under way.",
}
_NOT_FOUND = {400: "A parameter is wrong.", 404: _REFUSALS[404]}
_ALWAYS = {421: "The request is meant for another host.", 500: "The server failed."}
_UNREADY = {503: "The server, or this model, takes no work now."}
_HAS_RETRY_AFTER = (429, 503)
_NAMED = {
    name: {"description": "What the request is called.", "required": True, "schema": _TEXT}
    for name in ("x-request-id", "request-id")
}
_IGNORED = {HEADER: {"description": "Keys of the body that had no effect.", "schema": _TEXT}}
_TIMING = {"server-timing": {"description": "Where the time went.", "schema": _TEXT}}
_RETRY = {"retry-after": {"description": "Seconds.", "required": True, "schema": _TEXT}}
_PARAMETERS = [
    {
        "name": "x-request-id",
        "in": "header",
        "description": "What the request is to be called.",
        "schema": _TEXT,
    }
]
_STRICT = {
    "name": STRICT_HEADER,
    "in": "header",
    "description": "`1` has keys of the body that would be ignored refused.",
    "schema": _TEXT,
}


class OpenApiController(Controller):
    """For clients that are made from a description."""

    @route("/openapi.json", http_method=READ, operation=Operation(dict[str, Any], access="key"))
    async def tell(self, document: NamedDependency[bytes]) -> Response[bytes]:
        """Describe every route of this server."""
        return Response(document, media_type=MediaType.JSON)


def openapi_document(app: Litestar, added: KnownFields = MappingProxyType({})) -> bytes:
    """Return the document of an application's routes; takes tens of milliseconds.

    Args:
        app: the application.
        added: fields that plugins added to requests.
    """
    handlers = list(_handlers(app))
    types = dict.fromkeys(kind for *_, told in handlers for kind in told.types)
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    _add_fields(components, added)
    _require_tags_of_unions_alone(components)
    names = dict(zip(types, schemas, strict=True))
    paths: dict[str, _Json] = {}
    for path, handler, told in handlers:
        for method in sorted(handler.http_methods):
            own = told.of(method)
            paths.setdefault(path, {})[method.lower()] = {
                "operationId": _operation_id(method, path),
                "summary": (handler.fn.__doc__ or "").partition("\n")[0],
                "parameters": _parameters(path, own),
                **_sent(own, names),
                "responses": _responses(own, names, method, path),
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
    """Add the fields of plugins to the bodies that may hold them."""
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
    """Return a schema whose definitions are found among an OpenAPI document's components."""
    if isinstance(schema, Mapping):
        return {key: _moved(value, prefix) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_moved(each, prefix) for each in schema]
    if isinstance(schema, str) and schema.startswith(_DEFINED):
        return f"#/components/schemas/{prefix}{schema.removeprefix(_DEFINED)}"
    return schema


def _operation_id(method: str, path: str) -> str:
    return f"{method.lower()} {path}".translate(_AS_NAME)


def _links(told: Operation) -> _Json:
    """Return what can be done with the id of an answer, each by the one parameter of its path."""
    return {
        _operation_id(method, path): {
            "operationId": _operation_id(method, path),
            "parameters": {_names(path)[0]: "$response.body#/id"},
        }
        for method, path in told.links
    }


def _names(path: str) -> list[str]:
    """Return the parameters of a path."""
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _handlers(app: Litestar) -> Iterable[tuple[str, HTTPRouteHandler, Operation]]:
    """Yield the path of each handler, as documents write it, and what it says of itself."""
    for each in app.routes:
        if isinstance(each, HTTPRoute):
            for handler in each.route_handlers:
                if "operation" in handler.opt:
                    yield each.path_format, handler, handler.opt["operation"]


def _parameters(path: str, told: Operation) -> Seq[_Json]:
    """Return what a request may say outside of its body."""
    path_schema = {"in": "path", "required": True, "schema": _TEXT}
    found = [{"name": name} | path_schema for name in _names(path)]
    if told.query:
        asked = msgspec.json.schema(told.query, ref_template="")
        ((_, shape),) = asked["$defs"].items()
        found += [{"name": n, "in": "query", "schema": s} for n, s in shape["properties"].items()]
    return [*found, *_PARAMETERS, *([_STRICT] if told.body or told.form else [])]


def _sent(told: Operation, names: Mapping[Any, _Json]) -> _Json:
    """Return what a request has as its body, if it has one."""
    if told.body:
        content = {"application/json": {"schema": names[told.body]}}
    elif told.form:
        content = {"multipart/form-data": {"schema": names[told.form]}}
    else:
        return {}
    return {"requestBody": {"required": True, "content": content}}


def _require_tags_of_unions_alone(schema: Any) -> None:
    """Say in place that a tag may be left out where only one thing can be meant: it is taken so."""
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
    """Return the schema of one event of a stream, as readers of OpenAPI 3.1 take it."""
    data = _TEXT | {"description": f"JSON of a {name}, or of an error, or at the end `[DONE]`."}
    return {"type": "object", "properties": {"event": _TEXT, "data": data}, "required": ["data"]}


def _responses(
    told: Operation, names: Mapping[Any, _Json], method: str, path: str
) -> dict[str, _Json]:
    """Return every answer of an operation, by status."""
    content: dict[str, _Json] = {told.media_type: {"schema": {}}}
    if told.answer is not bytes:
        content = {"application/json": {"schema": names[told.answer]}}
    if told.events:
        content["text/event-stream"] = {"schema": _event(told.events)}
    has_body = bool(told.body or told.form)
    headers = _NAMED | (_IGNORED if has_body else {}) | (_TIMING if told.has_timing else {})
    found: dict[int, _Json] = {
        200: {"description": "The answer.", "headers": headers, "content": content}
    }
    if told.links:
        found[200]["links"] = _links(told)
    for status, description in _errors(told, method, path).items():
        kind = told.unready if told.unready and status == 503 else told.error
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


def _errors(told: Operation, method: str, path: str) -> dict[int, str]:
    """Return what each status means that is no success."""
    errors = _ALWAYS | (_REFUSALS | _UNREADY if told.body or told.form else {})
    if "{" in path:
        errors = errors | _NOT_FOUND
    if told.may_be_missing:
        errors = errors | {404: _REFUSALS[404]}
    if told.query:
        errors = errors | {400: _NOT_FOUND[400]}
    if told.unready:
        errors = errors | _UNREADY
    if told.events and method == "GET":  # what lasts has a place in the server
        errors = errors | {429: _REFUSALS[429]} | _UNREADY
    return errors
