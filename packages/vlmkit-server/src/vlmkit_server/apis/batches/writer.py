"""Writes results of lines; results that arrive during a write are written together after it."""

import asyncio
import logging

from vlmkit_server.apis.batches.line_store import LineStore
from vlmkit_server.apis.batches.records import Done
from vlmkit_server.http.errors import Unavailable

log = logging.getLogger(__name__)

RETRY_S = 2.0


class Writer:
    """Stores results.

    While the disk is full, results stay in memory: at most as many as lines run at once.

    Args:
        lines: stores the results.
    """

    def __init__(self, lines: LineStore) -> None:
        self._lines = lines
        self._waiting: list[tuple[Done, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def store(self, done: Done) -> None:
        """Store a result; return when it is on disk."""
        stored = asyncio.get_running_loop().create_future()
        self._waiting.append((done, stored))
        if self._task is None:
            self._task = asyncio.ensure_future(self._write())
        await stored

    async def stop(self) -> None:
        """Stop after the current write."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _write(self) -> None:
        try:
            while self._waiting:
                current, self._waiting = self._waiting, []
                await self._finish([done for done, _ in current])
                for _, stored in current:
                    if not stored.done():
                        stored.set_result(None)
        finally:
            self._task = None

    async def _finish(self, done: list[Done]) -> None:
        is_logged = False
        while True:
            try:
                await self._lines.finish(done)
            except Unavailable as error:
                if not is_logged:
                    log.error("results of batches cannot be written, retrying: %s", error)  # noqa: TRY400
                    is_logged = True
                await asyncio.sleep(RETRY_S)
            else:
                return
