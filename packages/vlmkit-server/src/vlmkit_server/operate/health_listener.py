"""Liveness and readiness at a port of their own, in a thread of its own.

They are told whatever the server itself has to do: while all its connections are taken, its event
loop is busy or hangs, or there are no files to spare. Says no more than one word, and numbers where
that is wanted, which the server has to make; whoever knocks has two seconds, and of many the one
who came first makes way.
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

PATIENCE_S = 2.0
MOST = 64  # who are answered at a time
MAX_HEAD_BYTES = 8192
PAUSE_S = 0.1  # where nobody can be let in
LIVE, READY = frozenset({"/healthz", "/health", "/ping"}), frozenset({"/readyz"})
NUMBERS = "/metrics"


class Word(NamedTuple):
    """What is answered.

    Attributes:
        is_good: whether that is 200.
        status: the word.
    """

    is_good: bool
    status: str


class HealthListener:
    """Answers until it is stopped.

    Args:
        listener: where; it is closed in the end.
        live: says whether the process is of use.
        ready: says whether it takes work.
        numbers: has the page of numbers made, given what is accepted; None shows none.

    Attributes:
        listener: the same.
    """

    def __init__(
        self,
        listener: socket.socket,
        live: Callable[[], Word],
        ready: Callable[[], Word],
        numbers: Callable[[str], "Future[Page]"] | None = None,
    ) -> None:
        self.listener = listener
        self._live = live
        self._ready = ready
        self._numbers = numbers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._answers: dict[asyncio.Task[None], None] = {}
        self._reserve = ReserveDescriptor()
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vlmkit-health", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()
        self._has_begun.wait()

    def stop(self) -> None:
        """Answer nobody any more."""
        if self._loop is not None and self._main is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._main.cancel)
            self._thread.join(PATIENCE_S)
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
                    self._reserve.close()  # the next one is let in by it
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._answers) >= MOST:
                oldest = next(iter(self._answers))
                del self._answers[oldest]
                oldest.cancel()
            task = asyncio.ensure_future(self._answer(accepted))
            self._answers[task] = None
            task.add_done_callback(self._forget)
            await asyncio.sleep(0)  # it begins, so that it closes what it was given

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._answers.pop(task, None)
        self._reserve.open()

    async def _answer(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with accepted, contextlib.suppress(OSError):
            accepted.setblocking(False)
            async with asyncio.timeout(PATIENCE_S):
                head = b""
                while b"\r\n\r\n" not in head and len(head) < MAX_HEAD_BYTES:
                    part = await loop.sock_recv(accepted, 1024)
                    if not part:
                        return
                    head += part
                await loop.sock_sendall(accepted, await self._answer_to(head))

    async def _answer_to(self, head: bytes) -> bytes:
        """Return a whole answer of HTTP."""
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        numbers = self._numbers if path == NUMBERS else None
        if numbers is None and path not in LIVE | READY:
            return _response(HTTPStatus.NOT_FOUND, b"", method)
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"", method)
        if numbers is not None:
            return await _page(numbers(_accepted(head)), method)
        word = self._live() if path in LIVE else self._ready()
        status = HTTPStatus.OK if word.is_good else HTTPStatus.SERVICE_UNAVAILABLE
        return _response(status, b'{"status":"%b"}' % word.status.encode(), method)


async def _page(made: "Future[Page]", method: str) -> bytes:
    """Return the answer that has the numbers, as soon as they are made."""
    try:
        page = await asyncio.wrap_future(made)
    except NotStored:
        return _response(HTTPStatus.NOT_FOUND, b"", method)
    except (Overloaded, Unavailable, RuntimeError):  # or it has ended meanwhile
        return _response(HTTPStatus.SERVICE_UNAVAILABLE, b"", method)
    return _response(HTTPStatus.OK, page.content, method, page.media_type)


def _accepted(head: bytes) -> str:
    """Return what a request accepts."""
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
