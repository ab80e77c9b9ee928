"""CORS: which web pages may read this server's responses. By default, none may.

Browsers enforce this rule and send a preflight request first; other clients are not affected.
"""

from collections.abc import Collection, Container

from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

MAX_AGE_S = 600  # a browser may cache the preflight response
_EXPOSED = (
    "request-id, retry-after, server-timing, x-request-id, x-should-retry, x-vlmkit-ignored, "
    "x-vlmkit-max-tokens, x-vlmkit-unconstrained"
)

_OF_BROWSERS = ("origin", "referer", "sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site")


def may_be_of_page(headers: Container[str]) -> bool:
    """Tell whether a web page may have sent a request with a body.

    Browsers add ``Origin`` to every request of a page but GET and HEAD (Fetch standard, "append a
    request Origin header").
    """
    return any(name in headers for name in _OF_BROWSERS)


class Cors:
    """Lets pages of allowed origins use an application.

    Args:
        app: the application.
        allowed: origins such as ``https://chat.example.com``, exactly as a browser sends them.
        exposed: further response headers that such a page may read.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str], exposed: Collection[str]) -> None:
        self._app = app
        self._exposed = ", ".join((_EXPOSED, *exposed))
        self._allowed = frozenset(origin.encode() for origin in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight request, or add the CORS headers to the response."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"")
        is_allowed = origin in self._allowed
        requested_method = headers.get(b"access-control-request-method", b"")

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                response_headers = MutableScopeHeaders(message)
                response_headers.add("vary", "origin")
                if is_allowed:
                    response_headers["access-control-allow-origin"] = origin.decode("latin-1")
                    response_headers["access-control-expose-headers"] = self._exposed
            await send(message)

        if is_allowed and requested_method and scope["method"] == "OPTIONS":
            names = headers.get(b"access-control-request-headers", b"")
            preflight_headers = [
                (b"access-control-allow-methods", requested_method),
                (b"access-control-allow-headers", names),
                (b"access-control-max-age", b"%d" % MAX_AGE_S),
            ]
            await send_with_cors(
                {"type": "http.response.start", "status": 204, "headers": preflight_headers}
            )
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        await self._app(scope, receive, send_with_cors)
