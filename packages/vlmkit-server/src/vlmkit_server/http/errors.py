"""Errors over HTTP: the table from error classes to statuses, and OpenAI's error body.

A body contains the server's own messages alone: of what a client sent, at most a field's name, and
never the text of a library's exception.
"""

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from math import ceil
from typing import Any, NamedTuple

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException
from litestar.response.base import ASGIResponse
from litestar.types import ExceptionHandlersMap, Scope

from vlmkit.errors import (
    EngineError,
    EngineFailed,
    OutOfMemory,
    PromptNotMade,
    QueueFull,
    RequestError,
    RequestQuarantined,
    VlmkitError,
    WorkerLost,
)
from vlmkit.kit.traces import trace_of
from vlmkit_server.http.unserved import unserved

log = logging.getLogger(__name__)

RETRY_AFTER_S = 2  # where the time is unknown
MAX_RETRY_AFTER_S = 60  # the wait may end earlier than estimated
CLIENT_GONE = 499  # nginx's number; no client receives it

API_OPTION = "api"
"""The option of a route handler that names the API and its distribution."""


class ModelNotFound(RequestError):  # noqa: N818 - reads as a sentence where it is raised
    """No model with this name is served."""

    code = "model_not_found"


class NotStored(RequestError):  # noqa: N818
    """No object with this id is stored for this client."""

    code = "response_not_found"


class WrongMediaType(RequestError):  # noqa: N818
    """The body is not declared as JSON."""

    code = "unsupported_media_type"


class EncodingRefused(WrongMediaType):
    """The body has a content encoding that the server does not support."""


class BodyTooSlow(RequestError):  # noqa: N818
    """The body did not arrive in time."""

    code = "request_timeout"


class HostRefused(RequestError):  # noqa: N818
    """The request is meant for another host."""

    code = "host_not_allowed"


class KeyMissing(RequestError):  # noqa: N818
    """The request has no API key, and the server requires one."""

    code = "missing_api_key"


class KeyRefused(RequestError):  # noqa: N818
    """The API key is invalid."""

    code = "invalid_api_key"


class ScopeMissing(RequestError):  # noqa: N818
    """The API key lacks the scope that the route needs."""

    code = "insufficient_permissions"


class Overloaded(QueueFull):
    """A resource limit is reached.

    Args:
        message: the resource.
        hint: what the client can do.
        retry_after_s: an estimate of when there is room.
    """

    code = "server_overloaded"

    def __init__(
        self, message: str, *, hint: str = "try again later", retry_after_s: int | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class RateLimited(RequestError):  # noqa: N818
    """A key or an address has used up a rate limit.

    Attributes:
        retry_after_s: when the limit allows the request; None if it never does.
    """

    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, hint: str, retry_after_s: int | None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class Unavailable(VlmkitError):  # noqa: N818
    """The server accepts no work now: it is loading or draining, or it failed."""

    def __init__(self, message: str, *, code: str, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


class TooLate(Unavailable):
    """A request exceeded its deadline."""

    code = "deadline_exceeded"

    def __init__(self) -> None:
        super().__init__("the request was not done in the time that it had", code=self.code)


def waiting_s(known_s: float | None) -> int:
    """Return after how many whole seconds to retry, given an estimate or None."""
    return RETRY_AFTER_S if known_s is None else min(MAX_RETRY_AFTER_S, max(1, ceil(known_s)))


class ClientGone(Exception):  # noqa: N818 - not an error, and not reported
    """The client closed the connection before its answer was ready."""


class _Status(NamedTuple):
    status: int
    type: str
    retry_after_s: int | None = None


_STATUS: Mapping[type[VlmkitError], _Status] = {
    KeyMissing: _Status(401, "authentication_error"),
    KeyRefused: _Status(401, "authentication_error"),
    ScopeMissing: _Status(403, "permission_error"),
    ModelNotFound: _Status(404, "invalid_request_error"),
    NotStored: _Status(404, "invalid_request_error"),
    BodyTooSlow: _Status(408, "invalid_request_error"),
    WrongMediaType: _Status(415, "invalid_request_error"),
    HostRefused: _Status(421, "invalid_request_error"),
    QueueFull: _Status(429, "rate_limit_error", RETRY_AFTER_S),
    RateLimited: _Status(429, "rate_limit_error"),
    RequestQuarantined: _Status(422, "invalid_request_error"),
    RequestError: _Status(400, "invalid_request_error"),
    Unavailable: _Status(503, "service_unavailable_error", RETRY_AFTER_S),
    OutOfMemory: _Status(503, "service_unavailable_error", RETRY_AFTER_S),
    EngineFailed: _Status(503, "service_unavailable_error", RETRY_AFTER_S),
    WorkerLost: _Status(503, "service_unavailable_error", RETRY_AFTER_S),
    PromptNotMade: _Status(503, "service_unavailable_error", RETRY_AFTER_S),
    EngineError: _Status(500, "server_error"),
}
_INTERNAL = _Status(500, "server_error")


class Fault(msgspec.Struct, frozen=True):
    """An error in OpenAI's shape."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error response."""

    error: Fault


WriteError = Callable[[Fault, int, Scope], bytes]
"""Encodes an error, given its status and the request."""

INTERNAL_FAULT = Fault("the server failed; see its log", "server_error", code="internal_error")


def fault_of(error: Exception, scope: Scope) -> Fault:
    """Return what a client may learn of an error; unexpected errors go to the log."""
    status = _status_of(error)
    state = scope["state"]
    state["error"] = getattr(error, "code", "engine_error")
    if status is _INTERNAL or isinstance(error, EngineError):
        request_id = state.get("request_id", "")
        # Its text may contain client data; the engine loop logs an engine's own trace.
        trace = f"\n{trace_of(error)}" if status is _INTERNAL else ""
        log.error(
            "request %s%s failed: %s%s", request_id, _of_api(scope), type(error).__name__, trace,
            extra={"request_id": request_id},
        )  # fmt: skip
        log.debug("error of request %s", request_id, exc_info=error)
    if status is _INTERNAL:
        state["error"] = INTERNAL_FAULT.code
        return INTERNAL_FAULT
    hint = f" ({error.hint})" if isinstance(error, VlmkitError) and error.hint else ""
    param = error.param if isinstance(error, RequestError) else None
    return Fault(f"{error}{hint}", status.type, param, getattr(error, "code", "engine_error"))


def openai_error(fault: Fault, _status: int, _scope: Scope) -> bytes:
    """Encode an error in OpenAI's shape."""
    return msgspec.json.encode(ErrorBody(fault))


class OpenAiErrors:
    """The error body of OpenAI's APIs, for APIs that have the same."""

    error_type = ErrorBody

    def write_error(self, fault: Fault, status: int, scope: Scope) -> bytes:
        """Encode an error in OpenAI's shape."""
        return openai_error(fault, status, scope)


def error_handlers(write: WriteError = openai_error) -> ExceptionHandlersMap:
    """Return the exception handlers of routes.

    Args:
        write: encodes an error in an API's own shape.
    """

    def respond(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        """Answer any exception but the framework's."""
        body, status, headers = _parts(error, request.scope, write)
        return Response(body, status_code=status, media_type=MediaType.JSON, headers=headers)

    def respond_to_http_error(
        request: Request[Any, Any, Any], error: HTTPException
    ) -> Response[bytes]:
        """Answer an error of the framework, such as a wrong path or method."""
        fault, headers = _http_fault(error, request.scope)
        request.scope["state"]["error"] = fault.code
        body, status = write(fault, error.status_code, request.scope), error.status_code
        return Response(body, status_code=status, media_type=MediaType.JSON, headers=headers)

    return {Exception: respond, HTTPException: respond_to_http_error, ClientGone: _respond_to_gone}


def error_response(error: Exception, scope: Scope, write: WriteError) -> ASGIResponse:
    """Return the response to an error that is raised outside routes."""
    body, status, headers = _parts(error, scope, write)
    return ASGIResponse(body=body, status_code=status, headers=headers)


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error."""
    return _status_of(error).status


def _http_fault(error: HTTPException, scope: Scope) -> tuple[Fault, dict[str, str]]:
    """Return an error of the framework as a fault, and its headers."""
    phrase = HTTPStatus(error.status_code).phrase
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    headers = {k: v for k, v in (error.headers or {}).items() if k.lower() == "allow"}
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        headers["connection"] = "close"  # the rest of the body is not read
        return Fault("the body is too large", kind, code="request_too_large"), headers
    message = phrase.lower()
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = unserved(scope["path"]) or message
    return Fault(message, kind, code=phrase.lower().replace(" ", "_")), headers


def _respond_to_gone(_request: Request[Any, Any, Any], _error: Exception) -> Response[bytes]:
    """End a request whose client has disconnected; no bytes are sent."""
    return Response(b"", status_code=CLIENT_GONE)


def _status_of(error: Exception) -> _Status:
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), _INTERNAL)


def _of_api(scope: Scope) -> str:
    """Return a phrase that names the API of a request; empty for a route of the server itself."""
    handler: Any = scope.get("route_handler")
    api = "" if handler is None else handler.opt.get(API_OPTION, "")
    return f" of {api}" if api else ""


def _parts(error: Exception, scope: Scope, write: WriteError) -> tuple[bytes, int, dict[str, str]]:
    """Return body, status and headers."""
    status = _status_of(error)
    headers = {}
    retry_after_s = getattr(error, "retry_after_s", None) or status.retry_after_s
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    elif isinstance(error, RateLimited):
        headers["x-should-retry"] = "false"  # OpenAI's and Anthropic's clients obey it
    if status.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, EncodingRefused):
        headers["accept-encoding"] = "gzip, identity"  # RFC 9110, section 12.5.3
    if status.status == HTTPStatus.REQUEST_TIMEOUT:
        headers["connection"] = "close"  # the rest of the body is not awaited
    body = write(fault_of(error, scope), status.status, scope)
    return body, status.status, headers
