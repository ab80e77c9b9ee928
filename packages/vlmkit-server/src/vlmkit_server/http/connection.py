"""One TCP connection, with deadlines and limits that uvicorn does not set.

A client that sends its headers slowly, sends endless headers, or does not read its response loses
the connection. Its request then ends like any other whose client disconnected.
"""

import asyncio
import logging
import select
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from vlmkit.errors import ConfigError
from vlmkit_server.http.quota import Quota
from vlmkit_server.settings.server import ServerSettings

log = logging.getLogger(__name__)

MAX_HEADERS = 128
MAX_PIPELINED = 16  # unanswered requests of a connection; one more closes it
HANGUP_S = 0.5  # between two checks for a disconnect while reading is paused
LAST_BYTES_S = 5.0  # for a client to read its response and stop sending
OVERRIDDEN = (
    *("connection_made", "data_received", "connection_lost", "pause_writing", "resume_writing"),
    *("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_message_complete"),
    *("on_response_complete", "send_400_response"),
)
"""Methods of uvicorn's protocol in which the limits are enforced."""


def check_uvicorn(protocol: type = HttpToolsProtocol) -> None:
    """Check that uvicorn has the methods in which limits are enforced.

    Uvicorn promises none of them. Without one, the server would run, and a limit would not.

    Raises:
        ConfigError: one is missing; names it and a version that has it.
    """
    missing = [name for name in OVERRIDDEN if not callable(getattr(protocol, name, None))]
    if missing:
        raise ConfigError(
            f"uvicorn {uvicorn.__version__} does not have {', '.join(missing)}, "
            "where the server enforces limits of connections",
            hint='pip install "uvicorn[standard]<0.55"',
        )


class Connection(HttpToolsProtocol):
    """HTTP/1.1 with limits on headers and on time; a subclass sets ``settings`` and ``quota``.

    Attributes:
        settings: the limits.
        quota: counts connections.
        caller: the client's network.
        handshake: the task of the TLS handshake, until it is done.
        is_made: whether the transport is ready.
        is_refused: whether the quota had no room for it.
    """

    settings: ServerSettings
    quota: Quota
    caller = ""
    handshake: "asyncio.Task[None] | None" = None
    is_made = is_refused = False
    _cycles: tuple[RequestResponseCycle, ...] = ()
    _num_header_bytes = 0
    _has_headers = False
    _is_ending = False  # after the current answers; further input is discarded
    _header_deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None
    _last_deadline: asyncio.TimerHandle | None = None
    _hangup_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the deadline of the first request, or refuse the connection."""
        super().connection_made(transport)
        self.is_made, self.handshake = True, None
        self.access_log = False  # uvicorn's contains paths and queries
        if not self.is_refused:
            self._await_headers()
            return
        self.transport.write(
            _refusal(503) + b"retry-after: %d\r\n\r\n" % self.quota.retry_after_s(self.caller)
        )
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; bytes outside a request keep no connection open."""
        if self._is_ending:
            return
        super().data_received(data)
        if self.is_idle and (self._header_deadline is None or self._header_deadline.cancelled()):
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers, and notify every request of the connection.

        Uvicorn notifies the last request alone; with pipelining, another one is running.
        """
        self.quota.release(self)
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
    def is_evictable(self) -> bool:
        """Whether the client reads no response, or has not finished sending its request."""
        if self.is_made and self.flow.write_paused:
            return True
        return all(cycle.response_complete or cycle.more_body for cycle in self._cycles)

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress."""
        return all(cycle.response_complete for cycle in self._cycles)

    def evict(self) -> None:
        """Close the connection, for another one takes its part of the quota."""
        if self.is_made:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def on_message_begin(self) -> None:
        """Start the deadline of a request's headers."""
        super().on_message_begin()
        self._num_header_bytes, self._has_headers = 0, False
        self._await_headers()

    def on_url(self, url: bytes) -> None:
        """Count the path's bytes."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header's bytes, and refuse too many headers."""
        self._count(len(name) + len(value))
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")
        if not self._has_headers:  # trailers of a chunked body are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop the headers' deadline, and record the request.

        Raises:
            ValueError: too many are pipelined; those before it are answered.
        """
        _cancel(self._header_deadline)
        unanswered = [cycle for cycle in self._cycles if not cycle.response_complete]
        if len(unanswered) >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
        self._has_headers = True
        super().on_headers_complete()
        self._send_no_chunks(self.cycle)
        self._cycles = (*unanswered, self.cycle)
        if unanswered:  # uvicorn pauses reading, so no disconnect is reported
            self._await_hangup()

    def on_message_complete(self) -> None:
        """Record that the body is complete, even if its response was sent before."""
        _cancel(self._last_deadline)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or briefly for the rest of an unread body."""
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._last_deadline = self.loop.call_later(LAST_BYTES_S, self.transport.abort)

    def pause_writing(self) -> None:
        """Start the deadline of a client that reads nothing."""
        super().pause_writing()
        self._write_deadline = self.loop.call_later(
            self.settings.send_timeout_s, self.transport.abort
        )

    def resume_writing(self) -> None:
        """Cancel that deadline: the client reads again."""
        _cancel(self._write_deadline)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or has too many headers.

        Earlier requests are answered first: the client would take a refusal for the first one's
        response.
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
        """Close the connection after the response to the last accepted request."""
        self._is_ending = True
        cycle.keep_alive = False
        cycle.transport = _LastAnswer(self.transport, self._close_gently)
        self.flow.resume_reading()

    def _send_no_chunks(self, cycle: RequestResponseCycle) -> None:
        """Let a client of HTTP/1.0 get a body of unknown length as it is; EOF ends it.

        Uvicorn sends it in chunks, which such a client takes for the body (RFC 9112, section 6.1).
        """
        if cycle.scope["http_version"] != "1.0":
            return
        send, has_length = cycle.send, True

        async def send_unframed(message: Any) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                if not (has_length := b"content-length" in names):
                    cycle.chunked_encoding = False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        cycle.send = send_unframed  # type: ignore[method-assign]

    def _close_gently(self) -> None:
        """Send EOF, and discard further input: closing now would reset unread responses."""
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
        """Close the connection if the client has, while reading is paused for pipelining."""
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
    """A transport that writes the last response of a connection.

    Args:
        transport: the connection's transport.
        close: closes the connection once the response is written.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self.close = close  # type: ignore[method-assign]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write a part of the response."""
        self._transport.write(data)

    def is_closing(self) -> bool:
        """Tell whether the connection is closed or about to be."""
        return self._transport.is_closing()


def _refusal(status: int) -> bytes:
    """Return the head of a response without a body, except the last line."""
    return STATUS_LINE[status] + b"connection: close\r\ncontent-length: 0\r\n"


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _has_hung_up(connection: Any) -> bool:
    """Tell whether the peer closed a connection while reading is paused; Linux only."""
    has_hung_up = False
    if sys.platform == "linux":
        poller = select.poll()
        poller.register(connection.fileno(), select.POLLRDHUP)
        has_hung_up = bool(poller.poll(0))
    return has_hung_up
