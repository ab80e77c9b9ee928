"""Room on a disk that is kept for deletions: a database needs some to record that a file is gone.

It does not limit what is stored.
"""

import contextlib
import os
from pathlib import Path

RESERVE_BYTES = 2**18  # many deletions of files that free nothing
PIECE_BYTES = 4096
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)


class DiskReserve:
    """A file that takes the room until a deletion needs it.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def fill(self) -> None:
        """Take the room, or as much of it as there is."""
        with (
            contextlib.suppress(OSError),
            os.fdopen(os.open(self._path, _FLAGS, 0o600), "ab", 0) as file,
        ):
            while file.tell() < RESERVE_BYTES:
                file.write(os.urandom(PIECE_BYTES))  # which a file system cannot compress

    def release(self) -> None:
        """Give the room back to the disk."""
        with contextlib.suppress(OSError):
            self._path.unlink()
