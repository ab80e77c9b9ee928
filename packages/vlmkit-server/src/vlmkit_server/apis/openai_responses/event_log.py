"""Events of a response in the background, for clients that come, go and come back.

Is used in the event loop's thread alone. How long a log is kept is the store's business.
"""

import asyncio

from vlmkit.errors import RequestError

NUM_AT_ONCE = 256
_END = b"\n\n"


class EventLog:
    """Events in a row, numbered from 0, of which the oldest are let go where they are too many.

    Args:
        max_bytes: of those that are kept.

    Attributes:
        num_bytes: of those that are kept.
        is_cancelled: whether a client had the answer stopped.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._events: list[bytes] = []
        self._first = 0  # the number of the oldest
        self._is_over = False
        self._changed = asyncio.Event()
        self.num_bytes = 0
        self.is_cancelled = False

    def add(self, events: bytes) -> None:
        """Keep more events."""
        added = [event + _END for event in events.split(_END) if event]
        self._events += added
        self.num_bytes += sum(map(len, added))
        if self.num_bytes > self._max_bytes:
            self._drop_oldest()
        self._notify()

    def close(self) -> None:
        """Note that no more will come."""
        self._is_over = True
        self._notify()

    def check(self, number: int) -> None:
        """Refuse to go on behind an event where the next one is not kept any more.

        Raises:
            RequestError: it is not.
        """
        if number + 1 < self._first:
            raise RequestError(
                f"events before number {self._first} are not kept any more", param="starting_after"
            )

    async def after(self, number: int) -> list[bytes]:
        """Wait for, and return, some of the events behind one; none when all is over.

        Raises:
            RequestError: the next one is not kept any more.
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
        """Keep less from now on, since there is no room."""
        self._max_bytes = self.num_bytes // 2
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Forget the older half, so that each event is moved but a few times."""
        num = 0
        while self.num_bytes > self._max_bytes // 2 and num < len(self._events):
            self.num_bytes -= len(self._events[num])
            num += 1
        del self._events[:num]
        self._first += num

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
