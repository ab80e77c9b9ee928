"""What one end of a connection has not sent yet: written by many threads, and taken in pieces."""

import threading
from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from vlmkit.wire.frames import Buffer

Parts: TypeAlias = Iterable[Buffer]
"""The parts of a frame."""


class UnsentBytes:
    """A queue of parts of frames, in their order. Thread-safe.

    Attributes:
        num_bytes: the bytes that are left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: deque[memoryview] = deque()
        self.num_bytes = 0

    def add(self, parts: Parts) -> None:
        """Append parts."""
        views = [memoryview(part).cast("B") for part in parts]
        with self._lock:
            self._parts.extend(views)
            self.num_bytes += sum(view.nbytes for view in views)

    def take(self, max_bytes: int) -> bytes:
        """Remove and return the first bytes, at most so many; none if there are none."""
        piece = bytearray()
        with self._lock:
            while self._parts and (left := max_bytes - len(piece)):
                part = self._parts.popleft()
                piece += part[:left]
                if part.nbytes > left:
                    self._parts.appendleft(part[left:])
            self.num_bytes -= len(piece)
        return bytes(piece)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._parts.clear()
            self.num_bytes = 0
