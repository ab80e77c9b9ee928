"""Errors on the wire: one table from error classes to HTTP, and OpenAI's error body.

A body holds our own words only: never what a client sent beyond the name of a field, never the
text of a library's exception.
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
    VlmkitError,
)
from vlmkit.kit.traces import trace_of
from vlmkit_server.http.unserved import unserved

log = logging.getLogger(__name__)

RETRY_AFTER_S = 2  # where nobody knows how long it will be
LONGEST_WAIT_S = 60  # that is asked of anybody: it may be over sooner than is known
CLIENT_GONE = 499  # nginx's number; nobody is left to read it


class ModelNotFound(RequestError):  # noqa: N818 - reads as a sentence where it is raised
    """No model of this name is served."""

    code = "model_not_found"


class NotStored(RequestError):  # noqa: N818
    """Nothing of this id is stored for this client."""

    code = "response_not_found"


class WrongMediaType(RequestError):  # noqa: N818
    """The body is not announced as JSON."""

    code = "unsupported_media_type"


class EncodingRefused(WrongMediaType):
    """The body has a content encoding that is not decoded here."""


class BodyTooSlow(RequestError):  # noqa: N818
    """The body did not arrive in time."""

    code = "request_timeout"


class HostRefused(RequestError):  # noqa: N818
    """The request was meant for another host."""

    code = "host_not_allowed"


class KeyMissing(RequestError):  # noqa: N818
    """There is no API key, and the server asks for one."""

    code = "missing_api_key"


class KeyRefused(RequestError):  # noqa: N818
    """The API key is not one of those that are taken."""

    code = "invalid_api_key"


class MayNot(RequestError):  # noqa: N818
    """The API key may not do this."""

    code = "insufficient_permissions"


class Overloaded(QueueFull):
    """There is no room for this now, of something that the server counts.

    Args:
        message: of what.
        hint: what to do.
        retry_after_s: when there will be, as far as can be told.
    """

    code = "server_overloaded"

    def __init__(
        self, message: str, *, hint: str = "try again later", retry_after_s: int | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class RateLimited(RequestError):  # noqa: N818
    """A key, or an address, has used up what it may ask for in a time.

    Attributes:
        retry_after_s: when it may again; None where no waiting helps.
    """

    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, hint: str, retry_after_s: int | None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class Unavailable(VlmkitError):  # noqa: N818
    """The server takes no work now: it loads, drains or has failed."""

    def __init__(self, message: str, *, code: str, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


def waiting_s(known_s: float | None) -> int:
    """Return after how many whole seconds to try again, of what is known of that, if anything."""
    return RETRY_AFTER_S if known_s is None else min(LONGEST_WAIT_S, max(1, ceil(known_s)))


class ClientGone(Exception):  # noqa: N818 - not an error of ours, and nobody is told
    """The client closed the connection before its answer was ready."""


class _Status(NamedTuple):
    status: int
    type: str
    retry_after_s: int | None = None


_STATUS: Mapping[type[VlmkitError], _Status] = {
    KeyMissing: _Status(401, "authentication_error"),
    KeyRefused: _Status(401, "authentication_error"),
    MayNot: _Status(403, "permission_error"),
    ModelNotFound: _Status(404, "invalid_request_error"),
    NotStored: _Status(404, "invalid_request_error"),
    BodyTooSlow: _Status(408, "invalid_request_error"),
    WrongMediaType: _Status(415, "invalid_request_error"),
    HostRefused: _Status(421, "invalid_request_error"),
    QueueFull: _Status(429, "rate_limit_error", RETRY_AFTER_S),
    RateLimited: _Status(429, "rate_limit_error"),
    RequestError: _Status(400, "invalid_request_error"),
    Unavailable: _Status(503, "service_unavailable_error", RETRY_AFTER_S),
    OutOfMemory: _Status(503, "service_unavailable_error", RETRY_AFTER_S),
    EngineFailed: _Status(503, "service_unavailable_error", RETRY_AFTER_S),
    PromptNotMade: _Status(503, "service_unavailable_error", RETRY_AFTER_S),
    EngineError: _Status(500, "server_error"),
}
_INTERNAL = _Status(500, "server_error")


class Fault(msgspec.Struct, frozen=True):
    """What went wrong, in OpenAI's shape."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every answer that is an error."""

    error: Fault


WriteError = Callable[[Fault, int, Scope], bytes]
"""Encodes an error, given its status and the request."""

INTERNAL_FAULT = Fault("the server failed; see its log", "server_error", code="internal_error")


def fault_of(error: Exception, scope: Scope) -> Fault:
    """Return what a client may know about an error; anything unexpected goes to the log."""
    status = _status_of(error)
    state = scope["state"]
    state["error"] = getattr(error, "code", "engine_error")
    if status is _INTERNAL or isinstance(error, EngineError):
        request_id = state.get("request_id", "")
        # What it says may repeat what was sent; the loop logs an engine's own trace.
        trace = f"\n{trace_of(error)}" if status is _INTERNAL else ""
        log.error(
            "request %s failed: %s%s", request_id, type(error).__name__, trace,
            extra={"request_id": request_id},
        )  # fmt: skip
        log.debug("what request %s met", request_id, exc_info=error)
    if status is _INTERNAL:
        state["error"] = INTERNAL_FAULT.code
        return INTERNAL_FAULT
    hint = f" ({error.hint})" if isinstance(error, VlmkitError) and error.hint else ""
    param = error.param if isinstance(error, RequestError) else None
    return Fault(f"{error}{hint}", status.type, param, getattr(error, "code", "engine_error"))


def openai_error(fault: Fault, _status: int, _scope: Scope) -> bytes:
    """Encode an error."""
    return msgspec.json.encode(ErrorBody(fault))


def error_handlers(write: WriteError = openai_error) -> ExceptionHandlersMap:
    """Return how routes answer exceptions.

    Args:
        write: puts an error into an API's own shape.
    """

    def respond(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        """Answer an exception of ours, or any that was not expected."""
        body, status, headers = _parts(error, request.scope, write)
        return Response(body, status_code=status, media_type=MediaType.JSON, headers=headers)

    def respond_to_http_error(
        request: Request[Any, Any, Any], error: HTTPException
    ) -> Response[bytes]:
        """Answer what the framework refuses: a wrong path, a wrong method."""
        fault, headers = _http_fault(error, request.scope)
        request.scope["state"]["error"] = fault.code
        body, status = write(fault, error.status_code, request.scope), error.status_code
        return Response(body, status_code=status, media_type=MediaType.JSON, headers=headers)

    return {Exception: respond, HTTPException: respond_to_http_error, ClientGone: _respond_to_gone}


def error_response(error: Exception, scope: Scope) -> ASGIResponse:
    """Return the answer of code outside of routes."""
    body, status, headers = _parts(error, scope, openai_error)
    return ASGIResponse(body=body, status_code=status, headers=headers)


def status_of(error: Exception) -> int:
    """Return the status of an answer that is an error."""
    return _status_of(error).status


def _http_fault(error: HTTPException, scope: Scope) -> tuple[Fault, dict[str, str]]:
    """Return what the framework refused, and headers."""
    phrase = HTTPStatus(error.status_code).phrase
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    headers = {k: v for k, v in (error.headers or {}).items() if k.lower() == "allow"}
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        headers["connection"] = "close"  # the rest of the body is not worth reading
        return Fault("the body is too large", kind, code="request_too_large"), headers
    message = phrase.lower()
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = unserved(scope["path"]) or message
    return Fault(message, kind, code=phrase.lower().replace(" ", "_")), headers


def _respond_to_gone(_request: Request[Any, Any, Any], _error: Exception) -> Response[bytes]:
    """End a request whose client is gone; the bytes go nowhere."""
    return Response(b"", status_code=CLIENT_GONE)


def _status_of(error: Exception) -> _Status:
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), _INTERNAL)


def _parts(error: Exception, scope: Scope, write: WriteError) -> tuple[bytes, int, dict[str, str]]:
    """Return body, status and headers."""
    status = _status_of(error)
    headers = {}
    retry_after_s = getattr(error, "retry_after_s", None) or status.retry_after_s
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    elif isinstance(error, RateLimited):
        headers["x-should-retry"] = "false"  # as OpenAI's and Anthropic's clients understand it
    if status.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, EncodingRefused):
        headers["accept-encoding"] = "gzip, identity"  # RFC 9110, section 12.5.3
    if status.status == HTTPStatus.REQUEST_TIMEOUT:
        headers["connection"] = "close"  # the rest of the body is not worth waiting for
    body = write(fault_of(error, scope), status.status, scope)
    return body, status.status, headers
