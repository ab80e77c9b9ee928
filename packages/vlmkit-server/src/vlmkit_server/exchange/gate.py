"""The ASGI layer around the application: request ids, alternative paths, host checks, deadlines.

It wraps the whole application, so requests for paths that do not exist pass it, too.
"""

import asyncio
import re
import secrets
from collections.abc import Mapping
from types import MappingProxyType

from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from vlmkit.errors import RequestError
from vlmkit.kit import heap
from vlmkit_server.admission.admission import TIMEOUT_HEADER, Admission
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.errors import (
    CLIENT_GONE,
    HostRefused,
    WriteError,
    error_response,
    openai_error,
)
from vlmkit_server.rate_limits.headers import limit_headers
from vlmkit_server.settings.server import is_loopback

LARGE_BYTES = 2**18
TRIM_AFTER_S = 1.0
NO_TENANT = ""

_TIMEOUT = TIMEOUT_HEADER.encode()
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._~:-]{1,128}")
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


ALIASES: Mapping[str, str] = MappingProxyType(
    {"/apply-template": "/v1/chat/completions/render"}
    | {
        path.removeprefix("/v1"): path
        for path in (
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/embeddings",
            "/v1/models",
            "/v1/responses",
        )
    }
)
"""Alternative paths, and the paths of their routes."""


class Gate:
    """Counts requests, gives them ids, and refuses those for other hosts.

    A server on the loopback interface accepts loopback names, and names that its operator lists.
    So a web page whose name was made to resolve to 127.0.0.1 (DNS rebinding) gets nothing.

    Args:
        app: the application.
        service: the state of the server.
        write: encodes an error in the shape of the API that a path belongs to.
    """

    def __init__(self, app: ASGIApp, service: Service, write: WriteError = openai_error) -> None:
        self._app = app
        self._service = service
        self._write = write
        host, allowed = service.settings.host, service.settings.allowed_hosts
        is_open = not allowed and not is_loopback(host)
        self._hosts = None if is_open else _LOOPBACK_NAMES | {host, *allowed}
        self._is_trim_due = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add its id to the response headers."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        if (path := ALIASES.get(scope["path"])) is not None:
            scope["path"], scope["raw_path"] = path, path.encode()
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id", b""))
        scope.setdefault("state", {})["request_id"] = request_id
        is_large = _is_large(headers)

        status = CLIENT_GONE
        monitored = self._service.monitors.began(scope, request_id)
        admission = self._service.admission.open(scope)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                response_headers = MutableScopeHeaders(message)
                response_headers["x-request-id"] = request_id
                response_headers["request-id"] = request_id  # Anthropic's name
                if admission.usage is not None:
                    response_headers.update(limit_headers(admission.usage, scope["path"]))
            await send(message)

        try:
            async with admission:
                await self._enter(scope, receive, send_with_id, headers, admission)
        finally:
            if is_large:
                self._trim_soon()
            if monitored is not None:
                self._service.monitors.ended(monitored, scope, status)

    def _trim_soon(self) -> None:
        """Return freed memory to the system in a second, once for all requests that end until then.

        A refused request reaches no engine loop, which trims memory when it is idle.
        """
        if not self._is_trim_due:
            self._is_trim_due = True
            asyncio.get_running_loop().call_later(TRIM_AFTER_S, self._trim)

    def _trim(self) -> None:
        self._is_trim_due = False
        self._service.offload.discard(heap.trim, NO_TENANT)

    async def _enter(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: Mapping[bytes, bytes],
        admission: Admission,
    ) -> None:
        """Set the client's deadline, check the host, and pass the request on."""
        if (timeout := headers.get(_TIMEOUT)) is not None:
            try:
                admission.shorten_deadline(timeout)
            except RequestError as error:
                await error_response(error, scope, self._write)(scope, receive, send)
                return
        host = headers.get(b"host")
        if self._hosts is not None and host is not None and _name(host) not in self._hosts:
            refusal = HostRefused(
                "this server answers to its own address only",
                hint="its operator can name others in server.allowed_hosts",
            )
            await error_response(refusal, scope, self._write)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_large(headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a body is large, or may be."""
    length = headers.get(b"content-length", b"")
    return b"transfer-encoding" in headers or (length.isdigit() and int(length) >= LARGE_BYTES)


def _name(host: bytes) -> str:
    """Return the name in a Host header, without the port."""
    name = host.decode("latin-1").lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


def _request_id(given: bytes) -> str:
    return given.decode() if _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(8)}"
