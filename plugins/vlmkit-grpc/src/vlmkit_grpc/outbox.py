"""What a worker has to send to one gateway: written by many, sent by one, and bounded."""

import asyncio
import threading
from typing import Any

from vlmkit.running.remote_runner.unsent import Parts, UnsentBytes
from vlmkit_grpc.channel_options import PIECE_BYTES
from vlmkit_grpc.protocol.worker_pb2 import Part, Prompt
from vlmkit_grpc.sent_prompts import RecentPrompts

MANY_BYTES = 2**20
"""The unsent bytes from which chunks of answers wait."""


class Outbox:
    """Sends parts of frames through a call, in their order, and prompts where there are none.

    Args:
        context: the call.
        stall_timeout_s: time for the gateway to read a message.
    """

    def __init__(self, context: Any, stall_timeout_s: float) -> None:
        self._context = context
        self._stall_timeout_s = stall_timeout_s
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._unsent = UnsentBytes()
        self._prompts = RecentPrompts()
        self._has_parts = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_closed = False

    def write(self, parts: Parts) -> None:
        """Send parts without waiting; may be called in any thread."""
        self._unsent.add(parts)
        if threading.get_ident() == self._thread:
            self._has_parts.set()
        else:
            self._loop.call_soon_threadsafe(self._has_parts.set)

    def show(self, prompt: Prompt) -> None:
        """Send a prompt of another gateway when there is time; called in the event loop."""
        self._prompts.add(prompt)
        self._has_parts.set()

    async def room(self) -> None:
        """Wait until the gateway has read most of what was written."""
        while self._unsent.num_bytes > MANY_BYTES:
            self._has_room.clear()
            await self._has_room.wait()

    def close(self) -> None:
        """Have :meth:`send` return after the last part."""
        self._is_closed = True
        self._has_parts.set()

    def drop(self) -> None:
        """Drop what is unsent: the gateway has disconnected, and nothing waits for it."""
        self._unsent.clear()
        self._has_room.set()

    async def send(self) -> None:
        """Send what is written until :meth:`close`.

        Raises:
            TimeoutError: the gateway does not read.
        """
        while True:
            await self._has_parts.wait()
            self._has_parts.clear()
            while (part := self._next()) is not None:
                async with asyncio.timeout(self._stall_timeout_s):
                    await self._context.write(part)
                if self._unsent.num_bytes <= MANY_BYTES:
                    self._has_room.set()
            if self._is_closed:
                return

    def _next(self) -> Part | None:
        """Return what is sent next; None if nothing waits."""
        if piece := self._unsent.take(PIECE_BYTES):
            return Part(content=piece)
        if (prompt := self._prompts.take()) is not None:
            return Part(prompt=prompt)
        return None
