"""Runs the decoding of large bodies and the encoding of large answers outside the event loop.

One thread does it: Python runs one thread at a time, so more threads would only take time from the
event loop. Callers split long work into pieces. A tenant's piece waits for at most one piece of
each other tenant. Prompts are prepared elsewhere, by the pipeline.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from vlmkit.running.scheduling.fair_executor import FairExecutor

T = TypeVar("T")

LARGE_BYTES = 2**20  # decoding more takes the interpreter for milliseconds


class OffloadExecutor:
    """Runs pieces of work in a thread, one after the other; close it at the end."""

    def __init__(self) -> None:
        self._executor = FairExecutor(1, "vlmkit-offload")

    async def run(self, work: Callable[[], T], account: str) -> T:
        """Run a piece of work, which must not wait for anything, and return its result.

        Args:
            work: the piece.
            account: the tenant or client network that it counts for.

        Raises:
            Exception: what the work raised.
        """
        return await asyncio.wrap_future(self._executor.submit(account, work))

    async def decode(self, work: Callable[[], T], num_bytes: int, account: str) -> T:
        """Decode what a client sent: here if it is large, otherwise in any thread.

        Raises:
            Exception: what the work raised.
        """
        if num_bytes > LARGE_BYTES:
            return await self.run(work, account)
        return await asyncio.to_thread(work)

    def discard(self, work: Callable[[], None], account: str) -> None:
        """Run a piece of work that raises nothing, and whose result is not needed."""
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._executor.submit(account, work)

    async def close(self) -> None:
        """Let the thread end; later work raises RuntimeError."""
        self._executor.shutdown()
