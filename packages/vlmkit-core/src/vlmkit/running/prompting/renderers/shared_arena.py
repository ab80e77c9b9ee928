"""The shared-memory arena of the server and one renderer, in which arrays travel.

On Linux it is a file without a name, so nothing is left behind whichever process dies first. On
other systems it is a temporary file that is deleted when it is closed. The arena is read and
written, and never mapped. So the other process may change its content at any time, and cannot harm
this one.
"""

import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vlmkit.wire.frames import Buffer


class SharedArena:
    """A shared-memory arena.

    Args:
        file: the file, opened for reading and writing without a buffer.
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    @classmethod
    def create(cls) -> "SharedArena":
        """Create a new arena."""
        file: Any
        if sys.platform == "linux":
            file = os.fdopen(os.memfd_create("vlmkit-arena"), "w+b", buffering=0)
        else:
            file = tempfile.NamedTemporaryFile(buffering=0)  # noqa: SIM115 - held as long as this
        return cls(file)

    @classmethod
    def open(cls, address: str) -> "SharedArena":
        """Open the arena that another process created for this one."""
        if sys.platform == "win32":
            descriptor = os.open(address, os.O_RDWR | os.O_BINARY | os.O_TEMPORARY)
        else:
            descriptor = int(address)
        return cls(os.fdopen(descriptor, "r+b", buffering=0))

    @property
    def address(self) -> str:
        """The address by which the other process opens it."""
        return str(self._file.name if sys.platform == "win32" else self._file.fileno())

    @property
    def inherited(self) -> tuple[int, ...]:
        """File descriptors that the other process must inherit."""
        return () if sys.platform == "win32" else (self._file.fileno(),)

    def write(self, buffers: Iterable[Buffer]) -> tuple[int, ...]:
        """Replace the content by buffers, one after the other; return their lengths in bytes."""
        self.clear()
        self._file.seek(0)
        sizes = []
        for buffer in buffers:
            left = memoryview(buffer)
            sizes.append(left.nbytes)
            while left:
                left = left[self._file.write(left) :]
        return tuple(sizes)

    def read(self, sizes: Sequence[int]) -> list[memoryview]:
        """Read buffers of so many bytes, one after the other, and clear the arena.

        Raises:
            EOFError: the arena holds fewer bytes.
        """
        if min(sizes, default=0) < 0 or sum(sizes) > os.fstat(self._file.fileno()).st_size:
            raise EOFError
        self._file.seek(0)
        made = []
        for size in sizes:
            buffer = np.empty(size, np.uint8).data  # not filled with zeros first
            left = buffer
            while left:
                num_bytes = self._file.readinto(left)
                if not num_bytes:
                    raise EOFError
                left = left[num_bytes:]
            made.append(buffer)
        self.clear()
        return made

    def clear(self) -> None:
        """Free the memory."""
        self._file.truncate(0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
