"""The frames that a replica has to send for one call: written in any thread, read by one reader."""

import asyncio

from vlmkit.running.remote_runner.unsent import Parts, UnsentBytes

PIECE_BYTES = 2**20
MANY_BYTES = 2**20  # unsent bytes from which chunks of the answer wait


class Outbox:
    """Collects what is written until it is read, so that a slow reader gets fewer pieces."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._unsent = UnsentBytes()
        self._is_closed = False
        self._has_parts = asyncio.Event()
        self._has_room = asyncio.Event()

    def write(self, parts: Parts) -> None:
        """Send parts without waiting."""
        self._unsent.add(parts)
        self._loop.call_soon_threadsafe(self._has_parts.set)

    async def room(self) -> None:
        """Wait until most of what was written is read."""
        while self._unsent.num_bytes > MANY_BYTES and not self._is_closed:
            self._has_room.clear()
            await self._has_room.wait()

    def close(self) -> None:
        """Have :meth:`piece` return nothing after the last part."""
        self._is_closed = True
        self._has_parts.set()
        self._has_room.set()

    async def piece(self) -> bytes:
        """Wait for bytes and return them; nothing after the last ones."""
        while not (piece := self._unsent.take(PIECE_BYTES)) and not self._is_closed:
            self._has_parts.clear()
            if self._unsent.num_bytes == 0:
                await self._has_parts.wait()
        if self._unsent.num_bytes <= MANY_BYTES:
            self._has_room.set()
        return piece
