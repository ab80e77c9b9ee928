"""Errors in Anthropic's shape; what is an error, and its status, is the same for every API."""

from http import HTTPStatus

import msgspec
from litestar.types import Scope

from vlmkit_server.http.errors import Fault

_TYPES = {
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
    """What a program can tell errors apart by."""

    error_code: str | None


class MessageFault(msgspec.Struct):
    """What went wrong."""

    type: str
    message: str
    details: Details


class MessageErrorBody(msgspec.Struct, tag_field="type", tag="error"):
    """The body of an answer, or the data of an event, that is an error."""

    error: MessageFault
    request_id: str


def message_error(fault: Fault, status: int, scope: Scope) -> bytes:
    """Encode an error; its message names the field that it is about."""
    place, message = fault.param, fault.message
    if place is not None and not message.startswith(place):
        message = f"{place}: {message}"
    kind = _TYPES.get(HTTPStatus(status), "invalid_request_error")
    told = MessageFault(kind, message, Details(fault.code))
    return msgspec.json.encode(MessageErrorBody(told, scope["state"].get("request_id", "")))
