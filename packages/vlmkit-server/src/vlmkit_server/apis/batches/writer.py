"""Writes what came of lines: what comes while something is written is written together after it."""

import asyncio
import logging

from vlmkit_server.apis.batches.line_store import LineStore
from vlmkit_server.apis.batches.records import Done
from vlmkit_server.http.errors import Unavailable

log = logging.getLogger(__name__)

RETRY_S = 2.0


class Writer:
    """Has answers kept.

    Where the disk is full they are held, as many as are asked at once, until it is not.

    Args:
        lines: keeps them.
    """

    def __init__(self, lines: LineStore) -> None:
        self._lines = lines
        self._waiting: list[tuple[Done, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def keep(self, done: Done) -> None:
        """Return when it is on the disk."""
        kept = asyncio.get_running_loop().create_future()
        self._waiting.append((done, kept))
        if self._task is None:
            self._task = asyncio.ensure_future(self._write())
        await kept

    async def stop(self) -> None:
        """Write no more than what is being written."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _write(self) -> None:
        try:
            while self._waiting:
                now, self._waiting = self._waiting, []
                await self._kept([done for done, _ in now])
                for _, kept in now:
                    if not kept.done():
                        kept.set_result(None)
        finally:
            self._task = None

    async def _kept(self, done: list[Done]) -> None:
        is_told = False
        while True:
            try:
                await self._lines.finish(done)
            except Unavailable as error:
                if not is_told:
                    log.error("answers of batches wait: %s", error)  # noqa: TRY400
                    is_told = True
                await asyncio.sleep(RETRY_S)
            else:
                return
