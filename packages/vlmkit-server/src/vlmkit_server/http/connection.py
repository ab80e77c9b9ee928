"""One TCP connection with the deadlines and bounds that uvicorn does not set.

A client that trickles its headers, sends endless ones, or takes nothing of its answer loses its
connection; the request it belonged to then ends like any whose client went away.
"""

import asyncio
import logging
import select
import sys
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from vlmkit_server.http.quota import Quota
from vlmkit_server.settings.server import ServerSettings

log = logging.getLogger(__name__)

MAX_HEADERS = 128
MAX_PIPELINED = 16  # requests of a connection without their answers; the next one ends it
HANGUP_S = 0.5  # between looks for a disconnect while nothing is read
LAST_BYTES_S = 5.0  # for a client to notice that its answer is there, and to stop sending


class Connection(HttpToolsProtocol):
    """HTTP/1.1 with bounded headers and patience; subclass it with ``settings`` set.

    Attributes:
        settings: bounds.
        room: where it is counted.
        caller: whose it is.
        handshake: what encrypts it, until that is done.
        is_made: whether that is done.
        is_refused: whether there is no room for it.
    """

    settings: ServerSettings
    room: Quota
    caller = ""
    handshake: "asyncio.Task[None] | None" = None
    is_made = is_refused = False
    _cycles: tuple[RequestResponseCycle, ...] = ()
    _num_header_bytes = 0
    _has_headers = False
    _is_ending = False  # after the answers under way; what else comes is read and dropped
    _header_deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None
    _last_deadline: asyncio.TimerHandle | None = None
    _hangup_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start to wait for the first request, or refuse it for want of room."""
        super().connection_made(transport)
        self.is_made, self.handshake = True, None
        self.access_log = False  # uvicorn's has paths and queries
        if not self.is_refused:
            self._await_headers()
            return
        self.transport.write(
            _refusal(503) + b"retry-after: %d\r\n\r\n" % self.room.turn_s(self.caller)
        )
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Take what came; what is no request keeps no connection open."""
        if self._is_ending:
            return
        super().data_received(data)
        if self.is_idle and (self._header_deadline is None or self._header_deadline.cancelled()):
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks, and tell every request of the connection.

        Uvicorn tells only the last one, which with pipelining is not the one that runs.
        """
        self.room.give_back(self)
        for timer in (
            *(self._header_deadline, self._write_deadline, self._last_deadline),
            self._hangup_timer,
        ):
            _cancel(timer)
        self.pipeline.clear()
        for cycle in self._cycles:
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    @property
    def can_leave(self) -> bool:
        """Whether nobody here takes an answer, or waits for one and has asked for it whole."""
        if self.is_made and self.flow.write_paused:
            return True
        return all(cycle.response_complete or cycle.more_body for cycle in self._cycles)

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return all(cycle.response_complete for cycle in self._cycles)

    def leave(self) -> None:
        """Close the connection: others want its place."""
        if self.is_made:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def on_message_begin(self) -> None:
        """Start to wait for a request's headers."""
        super().on_message_begin()
        self._num_header_bytes, self._has_headers = 0, False
        self._await_headers()

    def on_url(self, url: bytes) -> None:
        """Count the path."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count one header."""
        self._count(len(name) + len(value))
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")
        if not self._has_headers:  # what comes after a body in pieces speaks for nobody
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop to wait for headers, and note the request.

        Raises:
            ValueError: too many are pipelined; those before it are answered.
        """
        _cancel(self._header_deadline)
        under_way = [cycle for cycle in self._cycles if not cycle.response_complete]
        if len(under_way) >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
        self._has_headers = True
        super().on_headers_complete()
        self._cycles = (*under_way, self.cycle)
        if under_way:  # uvicorn pauses reading, so the event loop sees no disconnect
            self._await_hangup()

    def on_message_complete(self) -> None:
        """Note that the body is whole, be it that its answer was sent before."""
        _cancel(self._last_deadline)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or a little for the rest of a body that nobody reads."""
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._last_deadline = self.loop.call_later(LAST_BYTES_S, self.transport.abort)

    def pause_writing(self) -> None:
        """Give a reader that takes nothing its last chance."""
        super().pause_writing()
        self._write_deadline = self.loop.call_later(
            self.settings.send_timeout_s, self.transport.abort
        )

    def resume_writing(self) -> None:
        """Note that the reader takes something."""
        _cancel(self._write_deadline)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or has more headers than are taken.

        Requests before it are answered first: a refusal now would pass for the first one's answer.
        """
        if not self.is_idle and not self.cycle.more_body:
            self._end_after(self.cycle)
            return
        if self._num_header_bytes <= self.settings.max_header_bytes:
            super().send_400_response(msg)
            return
        self.transport.write(_refusal(431) + b"\r\n")
        self.transport.close()

    def _end_after(self, cycle: RequestResponseCycle) -> None:
        """Close the connection after the answer to the last request that was taken."""
        self._is_ending = True
        cycle.keep_alive = False
        cycle.transport = _LastAnswer(self.transport, self._close_gently)
        self.flow.resume_reading()

    def _close_gently(self) -> None:
        """Send the end, and drop what still comes: to close now would reset unread answers."""
        if not self.transport.can_write_eof():  # as under TLS
            self.transport.close()
            return
        self.transport.write_eof()
        _cancel(self._last_deadline)
        self._last_deadline = self.loop.call_later(LAST_BYTES_S, self.transport.abort)

    def _count(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > self.settings.max_header_bytes:
            raise ValueError("headers are too large")  # the parser reports it as its own error

    def _await_hangup(self) -> None:
        _cancel(self._hangup_timer)
        self._hangup_timer = self.loop.call_later(HANGUP_S, self._check_hangup)

    def _check_hangup(self) -> None:
        """Close the connection if the client has while requests were pipelined."""
        if not self.flow.read_paused:
            return
        if _has_hung_up(self.transport.get_extra_info("socket")):
            self.transport.abort()
        else:
            self._await_hangup()

    def _await_headers(self) -> None:
        _cancel(self._header_deadline)
        self._header_deadline = self.loop.call_later(
            self.settings.header_timeout_s, self.transport.abort
        )


class _LastAnswer(asyncio.Transport):
    """Writes the last answer of a connection.

    Args:
        transport: of the connection.
        close: ends the connection once the answer is written.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self.close = close  # type: ignore[method-assign]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write a part of it."""
        self._transport.write(data)


def _refusal(status: int) -> bytes:
    """Return the head of an answer without a body, but for its last line."""
    return STATUS_LINE[status] + b"connection: close\r\ncontent-length: 0\r\n"


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _has_hung_up(connection: Any) -> bool:
    """Tell whether the peer has closed a connection of which nothing is read, where that shows."""
    has_hung_up = False
    if sys.platform == "linux":
        poller = select.poll()
        poller.register(connection.fileno(), select.POLLRDHUP)
        has_hung_up = bool(poller.poll(0))
    return has_hung_up
