"""The event log of a background response, for clients that disconnect and reconnect.

A log is used only in the event loop's thread. The response store decides how long it is kept.
"""

import asyncio

from vlmkit.errors import RequestError

NUM_AT_ONCE = 256
_END = b"\n\n"


class EventLog:
    """Events numbered from 0; the oldest are dropped if they take too many bytes.

    Args:
        max_bytes: the largest size of the events in the log.

    Attributes:
        num_bytes: the size of the events in the log.
        is_cancelled: whether a client cancelled the answer.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._events: list[bytes] = []
        self._first = 0  # the number of the oldest event
        self._is_over = False
        self._changed = asyncio.Event()
        self.num_bytes = 0
        self.is_cancelled = False

    def add(self, events: bytes) -> None:
        """Append events, and drop the oldest if there are too many bytes."""
        added = [event + _END for event in events.split(_END) if event]
        self._events += added
        self.num_bytes += sum(map(len, added))
        if self.num_bytes > self._max_bytes:
            self._drop_oldest()
        self._notify()

    def close(self) -> None:
        """Mark the log as complete."""
        self._is_over = True
        self._notify()

    def check(self, number: int) -> None:
        """Refuse to continue after an event if the next one was dropped.

        Raises:
            RequestError: it was dropped.
        """
        if number + 1 < self._first:
            raise RequestError(
                f"events before number {self._first} are not kept any more", param="starting_after"
            )

    async def after(self, number: int) -> list[bytes]:
        """Wait for events after a number and return some of them; empty at the end of the log.

        Raises:
            RequestError: the next event was dropped.
        """
        while True:
            self.check(number)
            begin = number + 1 - self._first
            if events := self._events[begin : begin + NUM_AT_ONCE]:
                return events
            if self._is_over:
                return []
            await self._changed.wait()

    def shorten(self) -> None:
        """Set the limit to half of the present size, since the store has no room."""
        self._max_bytes = self.num_bytes // 2
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop the older half at once, so that each event is moved only a few times."""
        num = 0
        while self.num_bytes > self._max_bytes // 2 and num < len(self._events):
            self.num_bytes -= len(self._events[num])
            num += 1
        del self._events[:num]
        self._first += num

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
