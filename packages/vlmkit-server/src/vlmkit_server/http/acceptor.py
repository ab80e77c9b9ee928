"""Accepts connections: counts each one before it sends anything, and starts TLS with a deadline.

Asyncio's own servers do not count connections, allow a minute for each handshake, and continue
silently when no more files can be opened. The protocol on a connection is not this module's task.
"""

import asyncio
import contextlib
import errno
import logging
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence as Seq
from typing import Any

from vlmkit_server.http.caller import network_of
from vlmkit_server.http.connection import Connection
from vlmkit_server.http.open_files import ReserveDescriptor
from vlmkit_server.http.quota import Quota

log = logging.getLogger(__name__)

BURST = 64  # connections that are accepted before other tasks run
NO_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
PAUSE_S = 0.05  # between two attempts to open a file
LOG_PERIOD_S = 60.0  # between two log lines with the same message
EVICTED_FRACTION = 8  # without files, an eighth of the connections is evicted


class Acceptor:
    """Accepts connections until it is stopped. It is used in the event loop's thread alone.

    Args:
        make_connection: creates the protocol object of a connection.
        quota: counts connections; a connection over it sends the refusal itself.
        context: the TLS context; None for plain HTTP.
        handshake_s: the deadline of a TLS handshake.
        reserve: a file that was opened early, so that one can always be freed.
    """

    def __init__(
        self,
        make_connection: Callable[[], Connection],
        quota: Quota,
        context: ssl.SSLContext | None,
        handshake_s: float,
        reserve: ReserveDescriptor,
    ) -> None:
        self._make_connection = make_connection
        self._quota = quota
        self._context = context
        self._handshake_s = handshake_s
        self._reserve = reserve
        self._tasks: dict[asyncio.Task[None], socket.socket | None] = {}  # None: handed over
        self._listening: list[asyncio.Task[None]] = []
        self._logged_s: dict[str, float] = {}

    def start(self, listeners: Seq[socket.socket]) -> None:
        """Accept connections on some listening sockets."""
        for listener in listeners:
            listener.setblocking(False)
            self._listening.append(asyncio.ensure_future(self._listen(listener)))

    async def stop(self) -> None:
        """Stop accepting, and cancel handshakes that are still running."""
        tasks = [*self._listening, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reserve.close()

    async def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                self._accept(*await asyncio.get_running_loop().sock_accept(listener))
                for _ in range(BURST - 1):  # the backlog, without a turn of the loop for each
                    self._accept(*listener.accept())
            except (
                BlockingIOError,
                ConnectionError,
            ):  # the backlog is empty, or the client is gone
                pass
            except OSError as error:
                if error.errno not in NO_FILES:
                    log.exception("a connection could not be accepted")
                await self._free_files(listener)
            await asyncio.sleep(0)

    def _accept(self, accepted: socket.socket, address: Any) -> None:
        accepted.setblocking(False)
        connection = self._make_connection()
        connection.caller = network_of(address[0]) if isinstance(address, tuple) else ""
        if not self._quota.add(connection, 1):
            self._log("connection refused: %d are open", self._quota.num_held)
            if self._context is not None:  # a response would need a handshake first
                accepted.close()
                return
            connection.is_refused = True
        task = asyncio.ensure_future(self._connect(connection, accepted))
        connection.handshake = task
        self._tasks[task] = accepted
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        """Close the socket of a task that was cancelled before its first turn."""
        if (accepted := self._tasks.pop(task)) is not None:
            accepted.close()

    async def _connect(self, connection: Connection, accepted: socket.socket) -> None:
        """Give a connection its transport, after the TLS handshake if there is one."""
        if (task := asyncio.current_task()) is not None:
            self._tasks[task] = None
        timeout_s = None if self._context is None else self._handshake_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ssl.SSLError):  # clients can cause many of these
            log.debug("TLS handshake failed", exc_info=True)
        finally:
            if not connection.is_made:
                self._quota.release(connection)

    async def _free_files(self, listener: socket.socket) -> None:
        """Evict idle connections to free files; the reserve descriptor serves meanwhile."""
        if not _has_backlog(listener):  # Linux needs a file even if no client waits
            self._reserve.open()
            await asyncio.sleep(PAUSE_S)
            return
        self._log("too many open files: closing idle ones of %d connections", self._num)
        for _ in range(max(1, self._num // EVICTED_FRACTION)):
            if not self._quota.evict_idle():
                break
        self._reserve.close()
        with contextlib.suppress(OSError):  # another thread opened a file, or no client waits
            self._accept(*listener.accept())
        if not self._reserve.open():
            await asyncio.sleep(PAUSE_S)

    @property
    def _num(self) -> int:
        return self._quota.num_held

    def _log(self, message: str, number: int) -> None:
        """Log a warning that clients can cause, once a minute at most."""
        now_s = time.monotonic()
        if now_s - self._logged_s.get(message, -LOG_PERIOD_S) >= LOG_PERIOD_S:
            self._logged_s[message] = now_s
            log.warning(message, number)


def _has_backlog(listener: socket.socket) -> bool:
    """Tell whether a client waits to be accepted; True where the system cannot tell."""
    if sys.platform != "win32":
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        return bool(poll.poll(0))
    else:  # noqa: RET505 - otherwise type checkers find one branch unreachable
        return True
