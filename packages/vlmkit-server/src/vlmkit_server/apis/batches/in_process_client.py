"""Requests that the server makes of itself: the application is called as HTTP would call it.

So a line of a batch passes everything that a request passes, and is counted wherever one is.
"""

import asyncio
from typing import Any, NamedTuple

from litestar.types import ASGIApp, Message

from vlmkit_server.http.caller import Caller, internal_state


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


class InProcessClient:
    """Asks an application.

    Args:
        app: it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def post(
        self, path: str, body: bytes, caller: Caller, request_id: str, gone: asyncio.Event
    ) -> Answer:
        """Send a body, and return the answer.

        Args:
            path: of the route.
            body: JSON.
            caller: whose request it is.
            request_id: what it is called.
            gone: is set when nobody wants the answer any more; one that says so comes back.
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
