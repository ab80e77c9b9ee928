"""The web page as an API: one route for each of its files, which anyone may read.

The page has no data. Its script asks the other routes of the server, which need a key where keys
are required.
"""

import hashlib
from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Any

from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Scope

from vlmkit_server.conversation.exchange import Exchange
from vlmkit_server.conversation.host import Host
from vlmkit_server.http.errors import ErrorBody, Fault, openai_error
from vlmkit_server.interfaces.api import Route
from vlmkit_webui.settings import WebPageSettings

HTML = "text/html"
MEDIA_TYPES = {
    "html": HTML,
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
START, FOLDER = "index.html", "/webui"
RUNNING = b"vlmkit is running\n"
"""The answer of ``GET /`` to clients that are no browser: some ask whether a server is there."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The page loads its own files alone, and no text becomes markup or code."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # A browser would resolve the host names of links in answers, which a model chooses.
    "x-dns-prefetch-control": "off",
    "cache-control": "no-cache",
}

Answer = Callable[[Exchange, None], Coroutine[Any, Any, ASGIApp]]


class WebPageApi:
    """The web page of a server.

    Args:
        settings: whether there is one.
    """

    error_type = ErrorBody

    def __init__(self, settings: WebPageSettings) -> None:
        self._settings = settings

    def write_error(self, fault: Fault, status: int, scope: Scope) -> bytes:
        """Encode an error in OpenAI's shape, which the page reads of every other route, too."""
        return openai_error(fault, status, scope)

    def routes(self, host: Host) -> list[Route]:
        """Return the routes of the page's files; none where the page is disabled."""
        enabled = self._settings.enabled
        if enabled is None:
            enabled = not host.service.settings.is_public
        return [_route(name, content) for name, content in _files().items()] if enabled else []


def _files() -> dict[str, bytes]:
    """Return the content of the page's files, by name."""
    folder = files("vlmkit_webui") / "page"
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def _route(name: str, content: bytes) -> Route:
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]
    return Route(
        path="/" if name == START else f"{FOLDER}/{name}",
        scope="open",
        method="GET",
        handler=_shown(content, media_type, is_start=name == START),
        answer=bytes,
        media_type=media_type,
    )


def _shown(content: bytes, media_type: str, *, is_start: bool) -> Answer:
    """Return the handler that sends a file, unless the browser has it already."""
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = HEADERS | {"etag": etag}

    async def show(exchange: Exchange, _body: None) -> ASGIApp:
        """Show a file of the web page."""
        asked = exchange.http.headers
        if is_start and HTML not in asked.get("accept", "").lower():
            return ASGIResponse(body=RUNNING, media_type="text/plain")
        if asked.get("if-none-match") == etag:
            return ASGIResponse(status_code=304, headers=headers)
        return ASGIResponse(body=content, headers=headers, media_type=media_type)

    return show
