"""Memory that the server and one renderer have open: arrays are written there and read from there.

It is a file without a name, or one that goes with who holds it, so that nothing stays of it
whoever is killed when. It is read and written, never mapped: the other side can change what is in
it, and can do no harm by that.
"""

import os
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class SharedArena:
    """One such file.

    Args:
        file: opened for reading and writing, without a buffer.
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    @classmethod
    def made(cls) -> "SharedArena":
        """Return a new one."""
        file: Any
        if sys.platform == "linux":
            file = os.fdopen(os.memfd_create("vlmkit-sheet"), "w+b", buffering=0)
        else:
            file = tempfile.NamedTemporaryFile(buffering=0)  # noqa: SIM115 - held as long as this
        return cls(file)

    @classmethod
    def at(cls, address: str) -> "SharedArena":
        """Return that which another process made for this one."""
        if sys.platform == "win32":
            descriptor = os.open(address, os.O_RDWR | os.O_BINARY | os.O_TEMPORARY)
        else:
            descriptor = int(address)
        return cls(os.fdopen(descriptor, "r+b", buffering=0))

    @property
    def address(self) -> str:
        """What the other process finds it by."""
        return str(self._file.name if sys.platform == "win32" else self._file.fileno())

    @property
    def inherited(self) -> tuple[int, ...]:
        """Descriptors that the other process must get."""
        return () if sys.platform == "win32" else (self._file.fileno(),)

    def write(self, arrays: Iterable[NDArray[Any]]) -> None:
        """Write arrays, one behind the other, in place of what was there."""
        self.clear()
        self._file.seek(0)
        for array in arrays:
            left = array.reshape(-1).view(np.uint8).data
            while left:
                left = left[self._file.write(left) :]

    def read(self, sizes: Iterable[int]) -> list[NDArray[np.uint8]]:
        """Return so many bytes each, one behind the other, and forget them.

        Raises:
            EOFError: there are fewer.
        """
        sizes = list(sizes)
        if sum(sizes) > os.fstat(self._file.fileno()).st_size:
            raise EOFError
        self._file.seek(0)
        made = []
        for size in sizes:
            array = np.empty(size, np.uint8)
            left = array.data
            while left:
                num_bytes = self._file.readinto(left)
                if not num_bytes:
                    raise EOFError
                left = left[num_bytes:]
            made.append(array)
        self.clear()
        return made

    def clear(self) -> None:
        """Give the memory back."""
        self._file.truncate(0)

    def close(self) -> None:
        """Let go of it."""
        self._file.close()
