"""Accepts connections: each is counted before it says anything, and encrypted in time if at all.

Asyncio's own servers count nothing, wait a minute for each handshake, and without a file to spare
go on without a word. What is said over a connection is its own business.
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

BURST = 64  # connections that are accepted before others have their turn
NO_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
PAUSE_S = 0.05  # between looks for a file
TOLD_S = 60.0  # between two lines of the log about the same
PART = 8  # of the connections that are idle, one part in so many leaves for want of files


class Acceptor:
    """Accepts until it is stopped. Is used in the event loop's thread alone.

    Args:
        make: makes a connection.
        room: counts them; who has no room is refused by the connection itself.
        context: encrypts them; None does not.
        handshake_s: how long that may take to begin.
        spare: a file that was opened before anybody could take the last.
    """

    def __init__(
        self,
        make: Callable[[], Connection],
        room: Quota,
        context: ssl.SSLContext | None,
        handshake_s: float,
        spare: ReserveDescriptor,
    ) -> None:
        self._make = make
        self._room = room
        self._context = context
        self._handshake_s = handshake_s
        self._spare = spare
        self._tasks: dict[asyncio.Task[None], socket.socket | None] = {}  # None has begun
        self._listening: list[asyncio.Task[None]] = []
        self._told_s: dict[str, float] = {}

    def start(self, listeners: Seq[socket.socket]) -> None:
        """Accept what comes."""
        for listener in listeners:
            listener.setblocking(False)
            self._listening.append(asyncio.ensure_future(self._listen(listener)))

    async def stop(self) -> None:
        """Accept no more, and end handshakes that go on."""
        tasks = [*self._listening, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._spare.give()

    async def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                self._take(*await asyncio.get_running_loop().sock_accept(listener))
                for _ in range(BURST - 1):  # those behind it need no turn of the loop each
                    self._take(*listener.accept())
            except (BlockingIOError, ConnectionError):  # nobody else waits; or he went away first
                pass
            except OSError as error:
                if error.errno not in NO_FILES:
                    log.exception("a connection could not be accepted")
                await self._find_files(listener)
            await asyncio.sleep(0)

    def _take(self, accepted: socket.socket, address: Any) -> None:
        accepted.setblocking(False)
        connection = self._make()
        connection.caller = network_of(address[0]) if isinstance(address, tuple) else ""
        if not self._room.take(connection, 1):
            self._tell("a connection was refused: %d are open", self._room.num_held)
            if self._context is not None:  # a goodbye would have to be encrypted
                accepted.close()
                return
            connection.is_refused = True
        task = asyncio.ensure_future(self._connect(connection, accepted))
        connection.handshake = task
        self._tasks[task] = accepted
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        """Close what was cancelled before it had its first turn: its task never saw it."""
        if (accepted := self._tasks.pop(task)) is not None:
            accepted.close()

    async def _connect(self, connection: Connection, accepted: socket.socket) -> None:
        """Hand a connection its transport, once it is encrypted where that is wanted."""
        if (task := asyncio.current_task()) is not None:
            self._tasks[task] = None
        timeout_s = None if self._context is None else self._handshake_s
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._context, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ssl.SSLError):  # strangers' business, of which they can make much
            log.debug("a handshake failed", exc_info=True)
        finally:
            if not connection.is_made:
                self._room.give_back(connection)

    async def _find_files(self, listener: socket.socket) -> None:
        """Let idle connections go, so that files can be opened; meanwhile the spare one serves."""
        if not _is_awaited(listener):  # Linux asks for a file before it looks who is there
            self._spare.keep()
            await asyncio.sleep(PAUSE_S)
            return
        self._tell("no more files can be opened: idle ones of %d connections close", self._num)
        for _ in range(max(1, self._num // PART)):
            if not self._room.make_way():
                break
        self._spare.give()
        with contextlib.suppress(OSError):  # somebody else had the file, or nobody waits
            self._take(*listener.accept())
        if not self._spare.keep():
            await asyncio.sleep(PAUSE_S)

    @property
    def _num(self) -> int:
        return self._room.num_held

    def _tell(self, message: str, number: int) -> None:
        """Write a line that strangers can cause, and not too often."""
        now_s = time.monotonic()
        if now_s - self._told_s.get(message, -TOLD_S) >= TOLD_S:
            self._told_s[message] = now_s
            log.warning(message, number)


def _is_awaited(listener: socket.socket) -> bool:
    """Tell whether somebody waits to be accepted; where that cannot be told, take it that way."""
    if sys.platform != "win32":
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        return bool(poll.poll(0))
    else:  # noqa: RET505 - or one of both would be unreachable to those who check types
        return True
