"""Which web pages may read this server's answers: none but those whose origins the operator lists.

Browsers keep this rule and ask before they send; a program that is no browser is not held by it.
"""

from collections.abc import Collection

from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

MAX_AGE_S = 600  # for which a browser need not ask again
_EXPOSED = (
    "request-id, retry-after, server-timing, x-request-id, x-should-retry, x-vlmkit-ignored, "
    "x-vlmkit-max-tokens, x-vlmkit-unconstrained"
)


class Cors:
    """Lets pages of some origins use an application.

    Args:
        app: the application.
        allowed: origins such as ``https://chat.example.com``, exactly as a browser writes them.
        exposed: names of headers of answers that such a page may read, besides those that every
            answer may have.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str], exposed: Collection[str]) -> None:
        self._app = app
        self._exposed = ", ".join((_EXPOSED, *exposed))
        self._allowed = frozenset(origin.encode() for origin in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a browser that asks whether it may send, or mark the answer as open to it."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"")
        is_allowed = origin in self._allowed
        asked = headers.get(b"access-control-request-method", b"")

        async def send_open(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableScopeHeaders(message)
                own.add("vary", "origin")
                if is_allowed:
                    own["access-control-allow-origin"] = origin.decode("latin-1")
                    own["access-control-expose-headers"] = self._exposed
            await send(message)

        if is_allowed and asked and scope["method"] == "OPTIONS":
            names = headers.get(b"access-control-request-headers", b"")
            may = [
                (b"access-control-allow-methods", asked),
                (b"access-control-allow-headers", names),
                (b"access-control-max-age", b"%d" % MAX_AGE_S),
            ]
            await send_open({"type": "http.response.start", "status": 204, "headers": may})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        await self._app(scope, receive, send_open)
