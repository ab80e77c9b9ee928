"""Liveness and readiness on a port of their own, in a thread of its own.

The port answers even if all connections of the server are taken, its event loop is blocked, or no
more files can be opened. It returns one word, or the metrics page, which the server creates.
Connections time out after 2 s; when too many are open, the oldest is closed.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus
from typing import NamedTuple

from vlmkit_server.http.errors import NotStored, Overloaded, Unavailable
from vlmkit_server.http.open_files import ReserveDescriptor
from vlmkit_server.interfaces.monitor import Page

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 8192
PAUSE_S = 0.1  # after a connection could not be accepted
LIVE, READY = frozenset({"/healthz", "/health", "/ping"}), frozenset({"/readyz"})
METRICS = "/metrics"


class ProbeResult(NamedTuple):
    """The result of a probe.

    Attributes:
        is_good: whether the response is 200.
        status: the status in the response.
    """

    is_good: bool
    status: str


class HealthListener:
    """Answers probes until it is stopped.

    Args:
        listener: the listening socket; it is closed at the end.
        live: returns the liveness.
        ready: returns the readiness.
        metrics: has the metrics page created, given an ``Accept`` header; None serves none.

    Attributes:
        listener: the listening socket.
    """

    def __init__(
        self,
        listener: socket.socket,
        live: Callable[[], ProbeResult],
        ready: Callable[[], ProbeResult],
        metrics: Callable[[str], "Future[Page]"] | None = None,
    ) -> None:
        self.listener = listener
        self._live = live
        self._ready = ready
        self._metrics = metrics
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._answers: dict[asyncio.Task[None], None] = {}
        self._reserve = ReserveDescriptor()
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vlmkit-health", daemon=True)

    def start(self) -> None:
        """Start to answer."""
        self._thread.start()
        self._has_begun.wait()

    def stop(self) -> None:
        """Stop answering."""
        if self._loop is not None and self._main is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._main.cancel)
            self._thread.join(TIMEOUT_S)
        self.listener.close()
        self._reserve.close()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        self.listener.setblocking(False)
        self._reserve.open()
        self._has_begun.set()
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self.listener)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._reserve.close()  # so that the next connection can be accepted
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._answers) >= MAX_CONNECTIONS:
                oldest = next(iter(self._answers))
                del self._answers[oldest]
                oldest.cancel()
            task = asyncio.ensure_future(self._answer(accepted))
            self._answers[task] = None
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)  # the task starts, so that it closes its socket

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._answers.pop(task, None)
        self._reserve.open()

    async def _answer(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with accepted, contextlib.suppress(OSError):
            accepted.setblocking(False)
            async with asyncio.timeout(TIMEOUT_S):
                head = b""
                while b"\r\n\r\n" not in head and len(head) < MAX_HEAD_BYTES:
                    part = await loop.sock_recv(accepted, 1024)
                    if not part:
                        return
                    head += part
                await loop.sock_sendall(accepted, await self._answer_to(head))

    async def _answer_to(self, head: bytes) -> bytes:
        """Return a complete HTTP response."""
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        metrics = self._metrics if path == METRICS else None
        if metrics is None and path not in LIVE | READY:
            return _response(HTTPStatus.NOT_FOUND, b"", method)
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"", method)
        if metrics is not None:
            return await _page(metrics(_accepted(head)), method)
        result = self._live() if path in LIVE else self._ready()
        status = HTTPStatus.OK if result.is_good else HTTPStatus.SERVICE_UNAVAILABLE
        return _response(status, b'{"status":"%b"}' % result.status.encode(), method)


async def _page(future: "Future[Page]", method: str) -> bytes:
    """Return the response with the metrics page, once it is created."""
    try:
        page = await asyncio.wrap_future(future)
    except NotStored:
        return _response(HTTPStatus.NOT_FOUND, b"", method)
    except (Overloaded, Unavailable, RuntimeError):  # RuntimeError: the server ended meanwhile
        return _response(HTTPStatus.SERVICE_UNAVAILABLE, b"", method)
    return _response(HTTPStatus.OK, page.content, method, page.media_type)


def _accepted(head: bytes) -> str:
    """Return a request's ``Accept`` header."""
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    found = (value for name, _, value in lines if name.strip().lower() == b"accept")
    return next(found, b"").strip().decode("latin-1")


def _response(
    status: HTTPStatus, body: bytes, method: str, media_type: str = "application/json"
) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {media_type}\r\n"
        f"cache-control: no-store\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()
    return head if method == "HEAD" else head + body
