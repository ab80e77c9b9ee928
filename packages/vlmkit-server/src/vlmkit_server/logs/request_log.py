"""Writes a line for each request, and one more where it did something of consequence.

Stands before everything else, so that what is refused is written down as well. Says the route and
not the path: a path, and above all a query, is what somebody sent.
"""

import json
import time
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from vlmkit_server.http.operation import Operation
from vlmkit_server.logs.audit import AuditLog
from vlmkit_server.logs.format import iso
from vlmkit_server.logs.line_file import LineFile
from vlmkit_server.logs.request_record import NOTED, RequestRecord

_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
_KEPT = ("/v1/files", "/v1/batches", "/v1/messages/batches", "/v1/responses/{")
"""What begins with these and is no reading makes, stops or deletes what is kept."""


class RequestLines:
    """Looks on at an application.

    Args:
        app: the application.
        access: takes a line for each request; None where nobody wants them.
        audit: takes what was done of consequence.
    """

    def __init__(self, app: ASGIApp, access: LineFile | None, audit: AuditLog) -> None:
        self._app = app
        self._access = access
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and write down what came of it."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        noted = scope.setdefault("state", {})[NOTED] = RequestRecord()

        async def received() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                noted.num_received_bytes += len(message["body"])
            elif not noted.is_whole:
                noted.has_left = True
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                noted.status = message["status"]
            elif message["type"] == "http.response.body":
                noted.num_sent_bytes += len(message["body"])
                noted.is_whole = not message["more_body"]
            await send(message)

        began_s, start_s = time.time(), time.perf_counter()
        try:
            await self._app(scope, received, sent)
        finally:
            if self._access is not None:
                took_s = round(time.perf_counter() - start_s, 6)
                line = {"time": iso(began_s)} | _who(scope) | _what(scope, noted, took_s)
                self._access.add(json.dumps(line).encode())
            if self._audit.is_on:
                self._note(scope, noted)

    def _note(self, scope: Scope, noted: RequestRecord) -> None:
        who, method = _who(scope), _method(scope)
        facts = {"route": who["route"], "method": method, "request": who["request"]}
        if noted.status in (401, 403):
            self._audit.refuse(who["address"], noted.status, who["key"], **facts)
        elif _is_consequent(scope, method):
            found = scope["path_params"] if noted.status < 400 else {}  # else it is what was sent
            about = {name: str(value) for name, value in found.items()} or None
            self._audit.note("request", **who, method=method, status=noted.status, about=about)


def _who(scope: Scope) -> dict[str, Any]:
    """Return who asked, and for which route."""
    state, client = scope["state"], scope.get("client")
    key = state.get("key")
    return {
        "request": state.get("request_id", ""),
        "address": client[0] if client else "",
        "key": key.id if key else None,
        "key_name": key.name if key else None,
        "route": scope.get("path_template") or None,
    }


def _what(scope: Scope, noted: RequestRecord, took_s: float) -> dict[str, Any]:
    """Return what came of a request."""
    error = scope["state"].get("error")
    end = "done" if noted.is_whole else "left" if noted.has_left else "cut"
    return {
        "method": _method(scope),
        "status": noted.status,
        "received_bytes": noted.num_received_bytes,
        "sent_bytes": noted.num_sent_bytes,
        "total_s": took_s,
        "end": end,
        **({"error": error} if error else {}),
        **noted.told(),
    }


def _method(scope: Scope) -> str:
    method = str(scope.get("method"))
    return method if method in _METHODS else "other"


def _is_consequent(scope: Scope, method: str) -> bool:
    handler: Any = scope.get("route_handler")
    operation: Operation | None = None if handler is None else handler.opt.get("operation")
    if operation is None or method not in ("POST", "PUT", "PATCH", "DELETE"):
        return False
    template = scope.get("path_template", "")
    return operation.access == "admin" or template.startswith(_KEPT)
