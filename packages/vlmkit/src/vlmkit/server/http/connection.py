"""One TCP connection with the deadlines and bounds that uvicorn does not set.

A client that trickles its headers, sends endless ones, or takes nothing of its answer loses its
connection; the request it belonged to then ends like any whose client went away.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from vlmkit.settings.server import ServerSettings

MAX_HEADERS = 128


class Connection(HttpToolsProtocol):
    """HTTP/1.1 with bounded headers and patience; subclass it with ``settings`` set."""

    settings: ServerSettings
    _cycles: tuple[RequestResponseCycle, ...] = ()
    _num_header_bytes = 0
    _header_deadline: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start to wait for the first request."""
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks, and tell every request of the connection.

        Uvicorn tells only the last one, which with pipelining is not the one that runs.
        """
        _cancel(self._header_deadline)
        _cancel(self._write_deadline)
        self.pipeline.clear()
        for cycle in self._cycles:
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Start to wait for a request's headers."""
        super().on_message_begin()
        self._num_header_bytes = 0
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
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Stop to wait for headers, and note the request."""
        _cancel(self._header_deadline)
        super().on_headers_complete()
        under_way = [cycle for cycle in self._cycles if not cycle.response_complete]
        self._cycles = (*under_way, self.cycle)

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
        """Refuse what is not HTTP, or has more headers than are taken."""
        if self._num_header_bytes <= self.settings.max_header_bytes:
            super().send_400_response(msg)
            return
        self.transport.write(STATUS_LINE[431] + b"connection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()

    def _count(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > self.settings.max_header_bytes:
            raise ValueError("headers are too large")  # the parser reports it as its own error

    def _await_headers(self) -> None:
        _cancel(self._header_deadline)
        self._header_deadline = self.loop.call_later(
            self.settings.header_timeout_s, self.transport.abort
        )


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
