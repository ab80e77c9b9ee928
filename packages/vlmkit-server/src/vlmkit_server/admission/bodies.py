"""Reads request bodies, each with a deadline, all within one quota of bytes.

Received bytes count, not the announced length. When the quota is full, a body that is still being
read is dropped: one of the caller that sends most.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from litestar import Request

from vlmkit_server.http.content_encoding import gunzip_of
from vlmkit_server.http.cors import may_be_of_page
from vlmkit_server.http.errors import BodyTooSlow, ClientGone, WrongMediaType
from vlmkit_server.http.quota import Quota

JOINED_BYTES = 2**20  # joining more takes milliseconds


class Body:
    """The body of one request, while it is held.

    Args:
        bodies: the object that reads it.
        caller: the sender.
    """

    def __init__(self, bodies: "Bodies", caller: str) -> None:
        self.caller = caller
        self._bodies = bodies
        self._timeout: asyncio.Timeout | None = None
        self._reason: Exception | None = None

    @property
    def is_idle(self) -> bool:
        """Whether dropping it would lose nothing."""
        return False

    @property
    def is_evictable(self) -> bool:
        """Whether it is still being read."""
        return self._timeout is not None

    def evict(self) -> None:
        """Stop reading: the quota is full."""
        self.end(self._bodies.quota.refusal(self.caller))

    def end(self, reason: Exception) -> None:
        """Stop reading with an error, unless reading has ended."""
        if self._reason is not None or (self._timeout and self._timeout.expired()):
            return
        self._reason = reason
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def read_json(self, request: Request[Any, Any, Any], needs_type: bool) -> bytes:
        """Return the whole body, which must be JSON; see :meth:`read`.

        The media type is required as a protection: a page in a browser cannot send it to another
        origin without a preflight request.

        Args:
            request: the request.
            needs_type: whether it needs the media type even if no page can have sent it.

        Raises:
            WrongMediaType: the request has another media type.
        """
        is_json = request.content_type[0] == "application/json"
        if not is_json and (needs_type or may_be_of_page(request.headers)):
            raise WrongMediaType(
                "the body must be announced as application/json",
                hint="add the header content-type: application/json, with curl by "
                "-H 'content-type: application/json'",
            )
        return await self.read(request)

    async def read(self, request: Request[Any, Any, Any]) -> bytes:
        """Return the whole body, decompressed.

        Raises:
            EncodingRefused: its content encoding is not supported.
            RequestError: it is not valid in its content encoding.
            RequestEntityTooLarge: it is too large after decompression.
            BodyTooSlow: it did not arrive in time.
            Overloaded: the quota of bytes is used up.
            Unavailable: the server is shutting down.
        """
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._bodies.timeout_s) as self._timeout:
                async for part in self._decoded(request):
                    if part:
                        self.count(len(part))
                        parts.append(part)
        except TimeoutError:
            raise self._reason or BodyTooSlow("the body did not arrive in time") from None
        finally:
            self._timeout = None
        if sum(map(len, parts)) > JOINED_BYTES:
            return await asyncio.to_thread(b"".join, parts)
        return b"".join(parts)

    async def _decoded(self, request: Request[Any, Any, Any]) -> AsyncIterator[bytes]:
        """Yield the decompressed parts of a body; other tasks run between large parts."""
        is_encoded = "content-encoding" in request.headers
        gunzip = gunzip_of(request.headers, self._bodies.max_bytes) if is_encoded else None
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
        """Yield a body in pieces of some size; the deadline applies to each piece.

        A piece counts until the next one is requested.

        Raises:
            BodyTooSlow: a piece did not arrive in time.
            Overloaded: the quota of bytes is used up.
            Unavailable: the server is shutting down.
            ClientGone: the client disconnected.
        """
        more = True
        while more:
            piece = bytearray()
            self._check_not_ended()
            try:
                async with asyncio.timeout(self._bodies.timeout_s) as self._timeout:
                    while more and len(piece) < num_bytes:
                        event = await request.receive()
                        if event["type"] != "http.request":
                            raise ClientGone
                        self.count(len(event["body"]))
                        piece += event["body"]
                        more = event["more_body"]
            except TimeoutError:
                raise self._reason or BodyTooSlow("the body did not arrive in time") from None
            finally:
                self._timeout = None
            yield bytes(piece)
            self._bodies.quota.release(self)

    def _check_not_ended(self) -> None:
        """Raise the error if reading was ended while the previous piece was used."""
        if self._reason is not None:
            raise self._reason

    def count(self, num_bytes: int) -> None:
        """Count received bytes.

        Raises:
            Overloaded: the quota of bytes is used up.
        """
        if not self._bodies.quota.add(self, num_bytes):
            raise self._bodies.quota.refusal(self.caller, num_bytes)


class Bodies:
    """The bodies that are being read, or are held until their requests are checked.

    Args:
        quota: the quota of their bytes.
        timeout_s: the deadline of each.
        max_bytes: the largest decompressed size.
    """

    def __init__(self, quota: Quota, timeout_s: float, max_bytes: int) -> None:
        self.quota = quota
        self.timeout_s = timeout_s
        self.max_bytes = max_bytes
        self._open: set[Body] = set()

    @contextmanager
    def opened(self, account: str) -> Iterator[Body]:
        """Hold the body of a request of some account while the context is open."""
        body = Body(self, account)
        self._open.add(body)
        try:
            yield body
        finally:
            self._open.discard(body)
            self.quota.release(body)

    def end(self, reason: Callable[[], Exception]) -> None:
        """Stop reading all bodies; each raises the error that ``reason`` returns."""
        for body in self._open:
            body.end(reason())
