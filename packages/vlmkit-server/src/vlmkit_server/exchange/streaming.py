"""ASGI responses that come in pieces: one answer, as it comes.

An error after the first byte cannot change the status any more: it becomes the last event. Each
way out, the client's going included, aborts the request.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Protocol

from litestar.types import HTTPResponseBodyEvent, Receive, Scope, Send

from vlmkit.types.completion import Chunk, Timings, Usage
from vlmkit_server.exchange.server_timing import server_timing, timing_before
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.caller import account_of
from vlmkit_server.http.errors import ClientGone, Unavailable

TIMING_HEADER = b"x-vlmkit-timing"  # of a request whose stream is to say where its time went
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


MANY_CHUNKS = 64  # a few milliseconds, where each tells of likeliest tokens


class Chunks(Protocol):
    """An answer, as far as it is streamed."""

    @property
    def usage(self) -> Usage:
        """What it took so far."""
        ...

    @property
    def timings(self) -> Timings:
        """Where its time went so far."""
        ...

    async def next_chunks(self) -> list[Chunk]:
        """Wait for, and return, everything that has come; empty when the answer is over."""
        ...

    def abort(self) -> None:
        """Stop; harmless when it is over already."""
        ...


class Events(Protocol):
    """Encodes an answer's chunks."""

    @property
    def ping(self) -> bytes:
        """An event that says nothing, for long silences."""
        ...

    @property
    def tells_all(self) -> bool:
        """Whether the last events tell all of the answer again."""
        ...

    def opening(self) -> bytes:
        """Return the events before the first chunk."""
        ...

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return the events of some chunks; may be empty."""
        ...

    def closing(self, usage: Usage) -> bytes:
        """Return the events after the last chunk."""
        ...

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the event that ends an answer which failed."""
        ...


class ByteStream(ABC):
    """Sends pieces of a body while they come, and something harmless in long silences.

    Args:
        service: knows when the server gives up.
        headers: what to say besides, of plain letters.

    Attributes:
        ping: an event that says nothing.
        tells_all: whether the last piece holds all that was told, so that it may take long.
    """

    ping: bytes
    tells_all = False

    def __init__(self, service: Service, headers: Mapping[str, str]) -> None:
        self._service = service
        own = ((name.encode(), value.encode()) for name, value in headers.items())
        self._headers = [*_HEADERS, *own]
        self._num_writes = 0

    @abstractmethod
    async def tell(self, send: Send) -> None:
        """Send everything but the last piece."""

    @abstractmethod
    def closing(self) -> bytes:
        """Return the last piece of what is whole."""

    @abstractmethod
    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the last piece of what failed."""

    @abstractmethod
    def abort(self) -> None:
        """Stop; is called on each way out."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the answer, to its end or the client's."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            last = await self._last_event(scope, receive, send)
        except ClientGone:
            return
        finally:
            self.abort()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _last_event(self, scope: Scope, receive: Receive, send: Send) -> bytes:
        """Send everything but the last event, and return that."""
        try:
            await self._service.attend(self._write(send), receive, scope)
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - the client must learn that this is no end
            return self.failed(error, scope)
        if self.tells_all:
            return await self._service.offload.run(self.closing, account_of(scope))
        return self.closing()

    async def _write(self, send: Send) -> None:
        pinging = asyncio.ensure_future(self._ping(send))
        try:
            await self.tell(send)
        finally:
            pinging.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pinging

    async def _ping(self, send: Send) -> None:
        """Say something harmless whenever nothing was said for a while."""
        while True:
            seen = self._num_writes
            await asyncio.sleep(self._service.settings.keepalive_s)
            if self._num_writes == seen:
                await self.send(send, self.ping)

    async def send(self, send: Send, body: bytes) -> None:
        """Send a piece."""
        event: HTTPResponseBodyEvent = {
            "type": "http.response.body",
            "body": body,
            "more_body": True,
        }
        self._num_writes += 1
        await send(event)


class EventStream(ByteStream):
    """Sends a stream's chunks as events while they come.

    Args:
        stream: an answer that was accepted.
        events: encodes it.
        service: knows when the server gives up.
        headers: what to say besides, of plain letters.
        images_s: how long fetching and checking the images took.
    """

    def __init__(
        self,
        stream: Chunks,
        events: Events,
        service: Service,
        headers: Mapping[str, str],
        images_s: float = 0.0,
    ) -> None:
        timing = timing_before(images_s, stream.timings)
        super().__init__(service, {"server-timing": timing, **headers})
        self._images_s = images_s
        self._tells_timing = False
        self._stream = stream
        self._events = events
        self.ping = events.ping
        self.tells_all = events.tells_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the answer, to its end or the client's."""
        self._tells_timing = (TIMING_HEADER, b"1") in scope["headers"]
        await super().__call__(scope, receive, send)

    async def tell(self, send: Send) -> None:
        """Send what comes."""
        await self.send(send, self._events.opening())
        while chunks := await self._stream.next_chunks():
            for start in range(0, len(chunks), MANY_CHUNKS):  # more than that are seldom there
                if start:
                    await asyncio.sleep(0)
                if body := self._events.chunks(chunks[start : start + MANY_CHUNKS]):
                    await self.send(send, body)
            check_whole(chunks)

    def closing(self) -> bytes:
        """Return the events after the last chunk; before them, where the time went if asked."""
        events = self._events.closing(self._stream.usage)
        if not self._tells_timing:
            return events
        timing = server_timing(self._images_s, self._stream.timings)
        return b": server-timing: %b\n\n" % timing.encode() + events

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the event that ends an answer which failed."""
        return self._events.failed(error, scope)

    def abort(self) -> None:
        """Stop the answer."""
        self._stream.abort()


def check_whole(chunks: list[Chunk]) -> None:
    """Raise Unavailable if an answer was cut off: OpenAI's API has no word for that."""
    for chunk in chunks:
        if chunk.finish_reason == "abort":
            raise Unavailable("the answer was cut off", code="aborted")
