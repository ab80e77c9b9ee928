"""Where large bodies are read and large answers written, while the event loop goes on.

One thread does it: the interpreter runs one at a time, so that more of them would bring nothing and
take turns from the loop. Whoever has much to do brings it in pieces, and others have theirs done in
between.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LARGE_BYTES = 2**20  # decoding more takes the interpreter for milliseconds


class Desk:
    """Does pieces of work in a thread, one after the other; close it at the end."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "vlmkit-desk")

    async def do(self, work: Callable[[], T]) -> T:
        """Do a piece of work, and return what comes of it; it must not wait for anything.

        Raises:
            Exception: what the work raised.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def read(self, work: Callable[[], T], num_bytes: int) -> T:
        """Make something of what was sent: here where that is long, or else in any thread.

        Raises:
            Exception: what the work raised.
        """
        if num_bytes > LARGE_BYTES:
            return await self.do(work)
        return await asyncio.to_thread(work)

    def leave(self, work: Callable[[], None]) -> None:
        """Have a piece of work done that nobody waits for and that raises nothing."""
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._thread.submit(work)

    async def close(self) -> None:
        """Let the thread end; what is brought later raises RuntimeError."""
        self._thread.shutdown(wait=False)
