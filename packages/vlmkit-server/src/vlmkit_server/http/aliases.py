"""Alternative paths of some routes, as llama.cpp's server has them; most leave out the API version.

A path is replaced before anything else reads it, so limits, logs, metrics and permissions are those
of the route.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

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


class Aliases:
    """Replaces alternative paths by those of their routes.

    Args:
        app: the application that has the routes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with the route's own path."""
        if scope["type"] == ScopeType.HTTP and (path := ALIASES.get(scope["path"])) is not None:
            scope = cast(Scope, {**scope, "path": path, "raw_path": path.encode()})
        await self._app(scope, receive, send)
