"""The ASGI response that streams one answer.

An error after the first byte cannot change the status any more: it becomes the last event. Each
way out, the client's going included, aborts the request.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from litestar.types import HTTPResponseBodyEvent, Receive, Scope, Send

from vlmkit.completion import Chunk
from vlmkit.server.errors import ClientGone, Unavailable, fault_of
from vlmkit.server.service import Service
from vlmkit.server.sse import PING, AnswerEvents, error_event
from vlmkit.stream import Stream

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """Sends a stream's chunks as events while they come.

    Args:
        stream: an answer that was accepted.
        events: encodes it.
        service: knows when the server gives up.
        headers: what to say besides, of plain letters.
    """

    def __init__(
        self, stream: Stream, events: AnswerEvents, service: Service, headers: Mapping[str, str]
    ) -> None:
        self._stream = stream
        self._events = events
        self._service = service
        own = ((name.encode(), value.encode()) for name, value in headers.items())
        self._headers = [*_HEADERS, *own]
        self._num_writes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the answer, to its end or the client's."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            last = await self._last_event(scope, receive, send)
        except ClientGone:
            return
        finally:
            self._stream.abort()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _last_event(self, scope: Scope, receive: Receive, send: Send) -> bytes:
        """Send everything but the last event, and return that."""
        try:
            await self._service.attend(self._write(send), receive)
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - the client must learn that this is no end
            return error_event(fault_of(error, scope))
        return self._events.closing(self._stream.usage)

    async def _write(self, send: Send) -> None:
        pinging = asyncio.ensure_future(self._ping(send))
        try:
            await self._send(send, self._events.opening())
            while chunks := await self._stream.next_chunks():
                if body := self._events.chunks(chunks):
                    await self._send(send, body)
                _check_whole(chunks)
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
                await self._send(send, PING)

    async def _send(self, send: Send, body: bytes) -> None:
        event: HTTPResponseBodyEvent = {
            "type": "http.response.body",
            "body": body,
            "more_body": True,
        }
        self._num_writes += 1
        await send(event)


def _check_whole(chunks: list[Chunk]) -> None:
    """Raise Unavailable if an answer was cut off: OpenAI's API has no word for that."""
    if any(chunk.finish_reason == "abort" for chunk in chunks):
        raise Unavailable("the answer was cut off", code="aborted")
