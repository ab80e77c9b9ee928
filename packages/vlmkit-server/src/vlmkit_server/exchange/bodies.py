"""How requests' bodies are read: each in the time that it has, all within one bound.

What was received counts, not what was announced. Where there is no room, the body of whoever sends
most gives way, if it is still on its way.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from litestar import Request

from vlmkit_server.exchange.content_encoding import gunzip_of
from vlmkit_server.exchange.offload import LARGE_BYTES
from vlmkit_server.http.caller import caller_of
from vlmkit_server.http.errors import BodyTooSlow, ClientGone
from vlmkit_server.http.quota import Quota


class Body:
    """What one request sent, for as long as it is held.

    Args:
        bodies: which it is one of.
        caller: who sends it.
    """

    def __init__(self, bodies: "Bodies", caller: str) -> None:
        self.caller = caller
        self._bodies = bodies
        self._patience: asyncio.Timeout | None = None
        self._reason: Exception | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost with it."""
        return False

    @property
    def can_leave(self) -> bool:
        """Whether it is still on its way."""
        return self._patience is not None

    def leave(self) -> None:
        """End the reading: there is no room."""
        self.end(self._bodies.room.refusal(self.caller))

    def end(self, reason: Exception) -> None:
        """End the reading, if it has not ended."""
        if self._reason is not None or (self._patience and self._patience.expired()):
            return
        self._reason = reason
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def read(self, request: Request[Any, Any, Any]) -> bytes:
        """Return the whole body, decompressed.

        Raises:
            EncodingRefused: it is compressed in a way that is not known here.
            RequestError: it is not what its encoding says.
            RequestEntityTooLarge: it is too large, when it is decompressed.
            BodyTooSlow: it did not arrive in time.
            Overloaded: there is no room for it.
            Unavailable: the server is shutting down.
        """
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._bodies.timeout_s) as self._patience:
                async for part in self._decoded(request):
                    self.take(len(part))
                    parts.append(part)
        except TimeoutError:
            raise self._reason or BodyTooSlow("the body did not arrive in time") from None
        finally:
            self._patience = None
        if sum(map(len, parts)) > LARGE_BYTES:  # copying takes tens of milliseconds
            return await asyncio.to_thread(b"".join, parts)
        return b"".join(parts)

    async def _decoded(self, request: Request[Any, Any, Any]) -> AsyncIterator[bytes]:
        """Yield the parts of a body as they come, decompressed; others run between large ones."""
        gunzip = gunzip_of(request.headers, self._bodies.max_bytes)
        async for part in request.stream():
            if gunzip is None:
                yield part
                continue
            for piece in gunzip.pieces(part):
                yield piece
                await asyncio.sleep(0)
        if gunzip is not None:
            gunzip.close()

    async def pieces(self, request: Request[Any, Any, Any], num_bytes: int) -> AsyncIterator[bytes]:
        """Yield a body as it comes, in pieces of some size; each has the time that a body has.

        A piece is held until the next one is asked for.

        Raises:
            BodyTooSlow: a piece did not arrive in time.
            Overloaded: there is no room for it.
            Unavailable: the server is shutting down.
            ClientGone: the client closed the connection first.
        """
        more = True
        while more:
            piece = bytearray()
            self._check_wanted()
            try:
                async with asyncio.timeout(self._bodies.timeout_s) as self._patience:
                    while more and len(piece) < num_bytes:
                        event = await request.receive()
                        if event["type"] != "http.request":
                            raise ClientGone
                        self.take(len(event["body"]))
                        piece += event["body"]
                        more = event["more_body"]
            except TimeoutError:
                raise self._reason or BodyTooSlow("the body did not arrive in time") from None
            finally:
                self._patience = None
            yield bytes(piece)
            self._bodies.room.give_back(self)

    def _check_wanted(self) -> None:
        """Raise the reason if the reading was ended while a piece before was used."""
        if self._reason is not None:
            raise self._reason

    def take(self, num_bytes: int) -> None:
        """Count bytes that came.

        Raises:
            Overloaded: there is no room for them.
        """
        if not self._bodies.room.take(self, num_bytes):
            raise self._bodies.room.refusal(self.caller, num_bytes)


class Bodies:
    """The bodies that are read, or held until their requests are checked.

    Args:
        room: for their bytes.
        timeout_s: in which each has to arrive.
        max_bytes: of one that is decompressed.
    """

    def __init__(self, room: Quota, timeout_s: float, max_bytes: int) -> None:
        self.room = room
        self.timeout_s = timeout_s
        self.max_bytes = max_bytes
        self._open: set[Body] = set()

    @contextmanager
    def opened(self, request: Request[Any, Any, Any]) -> Iterator[Body]:
        """Hold what a request sends, for as long as the context is open."""
        body = Body(self, caller_of(request).account)
        self._open.add(body)
        try:
            yield body
        finally:
            self._open.discard(body)
            self.room.give_back(body)

    def end(self, reason: Callable[[], Exception]) -> None:
        """End the reading of all that are on their way; each of them raises a reason."""
        for body in self._open:
            body.end(reason())
