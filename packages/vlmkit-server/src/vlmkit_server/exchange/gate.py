"""What every request passes first: is it meant for this host, and what is it called.

Wraps the whole application, so that paths which do not exist pass it as well.
"""

import asyncio
import re
import secrets
from collections.abc import Mapping

from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from vlmkit.errors import RequestError
from vlmkit.kit import heap
from vlmkit_server.exchange.deadline import DEADLINE, HEADER, time_for
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.caller import speaks_for
from vlmkit_server.http.errors import CLIENT_GONE, HostRefused, error_response
from vlmkit_server.rate_limits.guard import ACCOUNT
from vlmkit_server.rate_limits.headers import limit_headers
from vlmkit_server.settings.server import is_loopback

LARGE_BYTES = 2**18
TRIM_AFTER_S = 1.0
OF_NO_TENANT = ""

_TIMEOUT = HEADER.encode()
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._~:-]{1,128}")
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Gate:
    """Counts requests, names them and refuses those for other hosts.

    A server on the loopback interface answers to loopback names only, and those that its operator
    lists: a web page whose own name was made to point at 127.0.0.1 gets nothing.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        host, allowed = service.settings.host, service.settings.allowed_hosts
        is_open = not allowed and not is_loopback(host)
        self._hosts = None if is_open else _LOOPBACK_NAMES | {host, *allowed}
        self._is_trim_due = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with an id that its answer shows."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id", b""))
        scope.setdefault("state", {})["request_id"] = request_id

        status = CLIENT_GONE
        looked_on = self._service.monitors.began(scope, request_id)

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                shown = MutableScopeHeaders(message)
                shown["x-request-id"] = shown["request-id"] = request_id  # Anthropic's name
                if (account := scope["state"].get(ACCOUNT)) is not None:
                    shown.update(limit_headers(account, scope["path"]))
            await send(message)

        try:
            with self._service.opened():
                await self._enter(scope, receive, send_named, headers)
        finally:
            if _is_large(headers):
                self._trim_soon()
            if looked_on is not None:
                self._service.monitors.ended(looked_on, scope, status)

    def _trim_soon(self) -> None:
        """Return freed memory to the system in a second, once for all that end meanwhile.

        A refused request reaches no engine, whose loop does the same when it is idle.
        """
        if not self._is_trim_due:
            self._is_trim_due = True
            asyncio.get_running_loop().call_later(TRIM_AFTER_S, self._trim)

    def _trim(self) -> None:
        self._is_trim_due = False
        self._service.offload.discard(heap.trim, OF_NO_TENANT)

    async def _enter(
        self, scope: Scope, receive: Receive, send: Send, headers: Mapping[bytes, bytes]
    ) -> None:
        """Let a request in that is meant for this host, and note until when it has time."""
        try:
            time_s = time_for(headers.get(_TIMEOUT), self._service.settings.timeout_s)
        except RequestError as wrong:
            await error_response(wrong, scope)(scope, receive, send)
            return
        if speaks_for(scope) is None:  # nobody waits for what the server asks itself
            scope["state"][DEADLINE] = asyncio.get_running_loop().time() + time_s
        host = headers.get(b"host")
        if self._hosts is not None and host is not None and _name(host) not in self._hosts:
            error = HostRefused(
                "this server answers to its own address only",
                hint="its operator can name others in server.allowed_hosts",
            )
            await error_response(error, scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_large(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a body is large, or may be."""
    length = headers.get(b"content-length", b"")
    return b"transfer-encoding" in headers or (length.isdigit() and int(length) >= LARGE_BYTES)


def _name(host: bytes) -> str:
    """Return a Host header's name without its port."""
    name = host.decode("latin-1").lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


def _request_id(given: bytes) -> str:
    return given.decode() if _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(8)}"
