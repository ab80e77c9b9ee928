"""How a request's body is read: as much as was announced, in the time that it has."""

import asyncio
from typing import Any

from litestar import Request

from vlmkit.server.http.errors import BodyTooSlow
from vlmkit.settings.server import ServerSettings


def announced_bytes(request: Request[Any, Any, Any], settings: ServerSettings) -> int:
    """Return how large a body may be: what its header says, or else all that is allowed."""
    most = settings.max_body_bytes
    announced = request.headers.get("content-length", "")
    return min(int(announced), most) if announced.isdecimal() else most


async def whole_body(request: Request[Any, Any, Any], settings: ServerSettings) -> bytes:
    """Read a body.

    Raises:
        BodyTooSlow: it did not arrive in time.
    """
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            return b"".join([part async for part in request.stream()])  # and keep none
    except TimeoutError:
        raise BodyTooSlow("the body did not arrive in time") from None
