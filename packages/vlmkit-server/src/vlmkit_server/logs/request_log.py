"""Writes an access log line for each request, and an audit line for security-relevant ones.

It is the outermost layer but one, so refused requests are logged, too. It logs the route, not the
path: a path, and above all a query, contains client data.
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
from vlmkit_server.logs.request_record import RECORD, RequestRecord

_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
_STORED = ("/v1/files", "/v1/batches", "/v1/messages/batches", "/v1/responses/{")
"""Prefixes of routes whose writing methods create, cancel or delete stored objects."""


class RequestLog:
    """Middleware that logs every request of an application.

    Args:
        app: the application.
        access: receives a line for each request; None where there is no access log.
        audit: receives security-relevant requests.
    """

    def __init__(self, app: ASGIApp, access: LineFile | None, audit: AuditLog) -> None:
        self._app = app
        self._access = access
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log its outcome."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        record = scope.setdefault("state", {})[RECORD] = RequestRecord()

        async def received() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                record.num_received_bytes += len(message["body"])
            elif not record.is_whole:
                record.is_client_gone = True
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            elif message["type"] == "http.response.body":
                record.num_sent_bytes += len(message["body"])
                record.is_whole = not message["more_body"]
            await send(message)

        began_s, start_s = time.time(), time.perf_counter()
        try:
            await self._app(scope, received, sent)
        finally:
            if self._access is not None:
                took_s = round(time.perf_counter() - start_s, 6)
                line = {"time": iso(began_s)} | _caller(scope) | _outcome(scope, record, took_s)
                self._access.add(json.dumps(line).encode())
            if self._audit.is_on:
                self._note(scope, record)

    def _note(self, scope: Scope, record: RequestRecord) -> None:
        caller, method = _caller(scope), _method(scope)
        facts = {"route": caller["route"], "method": method, "request": caller["request"]}
        if record.status in (401, 403):
            self._audit.refuse(caller["address"], record.status, caller["key"], **facts)
        elif _is_audited(scope, method):
            found = (
                scope["path_params"] if record.status < 400 else {}
            )  # otherwise it is client data
            about = {name: str(value) for name, value in found.items()} or None
            self._audit.note("request", **caller, method=method, status=record.status, about=about)


def _caller(scope: Scope) -> dict[str, Any]:
    """Return the caller of a request, and its route."""
    state, client = scope["state"], scope.get("client")
    key = state.get("key")
    return {
        "request": state.get("request_id", ""),
        "address": client[0] if client else "",
        "key": key.id if key else None,
        "key_name": key.name if key else None,
        "route": scope.get("path_template") or None,
    }


def _outcome(scope: Scope, record: RequestRecord, took_s: float) -> dict[str, Any]:
    """Return the outcome of a request."""
    error = scope["state"].get("error")
    end = "done" if record.is_whole else "left" if record.is_client_gone else "cut"
    return {
        "method": _method(scope),
        "status": record.status,
        "received_bytes": record.num_received_bytes,
        "sent_bytes": record.num_sent_bytes,
        "total_s": took_s,
        "end": end,
        **({"error": error} if error else {}),
        **record.fields(),
    }


def _method(scope: Scope) -> str:
    method = str(scope.get("method"))
    return method if method in _METHODS else "other"


def _is_audited(scope: Scope, method: str) -> bool:
    handler: Any = scope.get("route_handler")
    operation: Operation | None = None if handler is None else handler.opt.get("operation")
    if operation is None or method not in ("POST", "PUT", "PATCH", "DELETE"):
        return False
    template = scope.get("path_template", "")
    return operation.access == "admin" or template.startswith(_STORED)
