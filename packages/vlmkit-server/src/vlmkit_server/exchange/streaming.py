"""ASGI responses that stream an answer as it is generated.

After the first byte the status can no longer change, so an error becomes the last event. Every way
out, a disconnect included, aborts the request.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Protocol

from litestar.types import HTTPResponseBodyEvent, Receive, Scope, Send

from vlmkit.types.completion import Chunk, Timings, Usage
from vlmkit_server.admission.admission import admission_of
from vlmkit_server.exchange.server_timing import server_timing, timing_before
from vlmkit_server.exchange.service import Service
from vlmkit_server.http.caller import tenant_or_network
from vlmkit_server.http.errors import ClientGone, Unavailable

TIMING_HEADER = b"x-vlmkit-timing"  # requests timings in the stream
EVENT_STREAM = "text/event-stream; charset=utf-8"
_HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


MAX_CHUNKS = 64  # a few milliseconds, where each has top log-probabilities


class Chunks(Protocol):
    """An answer that is streamed."""

    @property
    def usage(self) -> Usage:
        """The usage so far."""
        ...

    @property
    def timings(self) -> Timings:
        """The timings so far."""
        ...

    async def next_chunks(self) -> list[Chunk]:
        """Wait for new chunks and return them; empty at the end of the answer."""
        ...

    def abort(self) -> None:
        """Abort the answer; does nothing if it has ended."""
        ...


class Events(Protocol):
    """Encodes an answer's chunks as events."""

    @property
    def media_type(self) -> str:
        """The media type of the stream: server-sent events, or lines of JSON."""
        ...

    @property
    def ping(self) -> bytes:
        """An event without content, to keep the connection open; empty if the type has none."""
        ...

    @property
    def repeats_answer(self) -> bool:
        """Whether the last events contain the whole answer again."""
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
        """Return the event that ends a failed answer."""
        ...


class ByteStream(ABC):
    """Sends the pieces of a body as they come, and a ping when nothing was sent for a while.

    Args:
        service: cancels the work when the server gives up.
        headers: further response headers, in ASCII.
        media_type: the media type of the stream.

    Attributes:
        ping: an event without content.
        repeats_answer: whether the last piece contains the whole answer, so that encoding it may
            take long.
    """

    ping: bytes
    repeats_answer = False

    def __init__(
        self, service: Service, headers: Mapping[str, str], media_type: str = EVENT_STREAM
    ) -> None:
        self._service = service
        encoded = ((name.encode(), value.encode()) for name, value in headers.items())
        self._headers = [(b"content-type", media_type.encode()), *_HEADERS, *encoded]
        self._num_writes = 0

    @abstractmethod
    async def write(self, send: Send) -> None:
        """Send everything but the last piece."""

    @abstractmethod
    def closing(self) -> bytes:
        """Return the last piece of a complete answer."""

    @abstractmethod
    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the last piece of a failed answer."""

    @abstractmethod
    def abort(self) -> None:
        """Stop the answer; called on every way out."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the answer, to its end or the client's disconnect."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            last = await self._last_event(scope, receive, send)
        except ClientGone:
            return
        finally:
            self.abort()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _last_event(self, scope: Scope, receive: Receive, send: Send) -> bytes:
        """Send everything but the last event, and return the last event."""
        try:
            await admission_of(scope).attend(self._write_with_pings(send), receive)
            if self.repeats_answer:
                return await self._service.offload.run(self.closing, tenant_or_network(scope))
            return self.closing()
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - the client must learn that the answer is incomplete
            return self.failed(error, scope)

    async def _write_with_pings(self, send: Send) -> None:
        pinging = asyncio.ensure_future(self._ping(send))
        try:
            await self.write(send)
        finally:
            pinging.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pinging

    async def _ping(self, send: Send) -> None:
        """Send a ping whenever nothing was sent for a while."""
        while True:
            seen = self._num_writes
            await asyncio.sleep(self._service.settings.keepalive_s)
            if self._num_writes == seen and self.ping:
                await self.send(send, self.ping)

    async def send(self, send: Send, body: bytes) -> None:
        """Send one piece."""
        event: HTTPResponseBodyEvent = {
            "type": "http.response.body",
            "body": body,
            "more_body": True,
        }
        self._num_writes += 1
        await send(event)


class EventStream(ByteStream):
    """Sends an answer's chunks as server-sent events.

    Args:
        stream: an accepted request's answer.
        events: encodes the chunks.
        service: cancels the work when the server gives up.
        headers: further response headers, in ASCII.
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
        super().__init__(service, {"server-timing": timing, **headers}, events.media_type)
        self._images_s = images_s
        self._has_timing = False
        self._stream = stream
        self._events = events
        self.ping = events.ping
        self.repeats_answer = events.repeats_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the answer, to its end or the client's disconnect."""
        has_comments = self._events.media_type == EVENT_STREAM
        self._has_timing = has_comments and (TIMING_HEADER, b"1") in scope["headers"]
        await super().__call__(scope, receive, send)

    async def write(self, send: Send) -> None:
        """Send the chunks as they come."""
        await self.send(send, self._events.opening())
        while chunks := await self._stream.next_chunks():
            for start in range(0, len(chunks), MAX_CHUNKS):  # more are rarely ready
                if start:
                    await asyncio.sleep(0)
                if body := self._events.chunks(chunks[start : start + MAX_CHUNKS]):
                    await self.send(send, body)
            check_not_aborted(chunks)

    def closing(self) -> bytes:
        """Return the events after the last chunk, after the timings if requested."""
        events = self._events.closing(self._stream.usage)
        if not self._has_timing:
            return events
        timing = server_timing(self._images_s, self._stream.timings)
        return b": server-timing: %b\n\n" % timing.encode() + events

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the event that ends a failed answer."""
        return self._events.failed(error, scope)

    def abort(self) -> None:
        """Stop the answer."""
        self._stream.abort()


def check_not_aborted(chunks: list[Chunk]) -> None:
    """Raise Unavailable if an answer was aborted: OpenAI's API has no word for that."""
    for chunk in chunks:
        if chunk.finish_reason == "abort":
            raise Unavailable("the answer was cut off", code="aborted")
