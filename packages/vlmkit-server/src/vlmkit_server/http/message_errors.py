"""Errors in Anthropic's shape; the errors and their statuses are the same for every API.

Some routes of Anthropic's API are also routes of OpenAI's. Their clients differ by a header.
"""

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from litestar.datastructures import Headers
from litestar.types import Scope

from vlmkit_server.http.errors import Fault, openai_error

_VERSION = "anthropic-version"
_TYPES: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_TIMEOUT: "timeout_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.INTERNAL_SERVER_ERROR: "api_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}


class Details(msgspec.Struct):
    """The error code, for programs."""

    error_code: str | None


class MessageFault(msgspec.Struct):
    """An error in Anthropic's shape."""

    type: str
    message: str
    details: Details


class MessageErrorBody(msgspec.Struct, tag_field="type", tag="error"):
    """The body of an error response, or the data of an error event."""

    error: MessageFault
    request_id: str


def message_error(fault: Fault, status: int, scope: Scope) -> bytes:
    """Encode an error; its message starts with the field's name."""
    param, message = fault.param, fault.message
    if param is not None and not message.startswith(param):
        message = f"{param}: {message}"
    kind = _TYPES.get(status, "invalid_request_error")
    body = MessageFault(kind, message, Details(fault.code))
    return msgspec.json.encode(MessageErrorBody(body, scope["state"].get("request_id", "")))


def is_anthropics(headers: Headers) -> bool:
    """Tell whether a client uses Anthropic's API: its clients always send a version."""
    return _VERSION in headers


def error_for_client(fault: Fault, status: int, scope: Scope) -> bytes:
    """Encode an error in Anthropic's shape for its clients, and in OpenAI's for others."""
    write = message_error if is_anthropics(Headers.from_scope(scope)) else openai_error
    return write(fault, status, scope)
