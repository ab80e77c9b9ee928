"""A client in the server's own process: it calls the ASGI application as HTTP would.

So a batch line passes every check and counter that a request passes.
"""

import asyncio
from typing import Any, NamedTuple

from litestar.types import ASGIApp, Message

from vlmkit_server.http.caller import Caller, internal_state


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes


class InProcessClient:
    """Calls an application.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def post(
        self, path: str, body: bytes, caller: Caller, request_id: str, gone: asyncio.Event
    ) -> Answer:
        """Send a body, and return the response.

        Args:
            path: the route's path.
            body: JSON.
            caller: the caller on whose behalf the request is made.
            request_id: the request's id.
            gone: set to disconnect; the response then has the status 499.
        """
        has_sent = False
        status, headers, parts = 500, dict[str, str](), list[bytes]()

        async def receive() -> Any:
            nonlocal has_sent, body
            if not has_sent:
                has_sent, content = True, body
                body = b""
                return {"type": "http.request", "body": content, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers.update((k.decode(), v.decode()) for k, v in message["headers"])
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        scope: Any = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"x-request-id", request_id.encode()),
            ],
            "client": (caller.account, 0) if caller.account else None,
            "server": None,
            "extensions": {},
            "state": internal_state(caller),
        }
        await self._app(scope, receive, send)
        return Answer(status, headers, b"".join(parts))
