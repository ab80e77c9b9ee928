"""Limits of open files: how many connections may be open, and one descriptor held in reserve.

A process without a free descriptor cannot accept a connection, not even to refuse it.
"""

import logging
import os
import sys

log = logging.getLogger(__name__)

OTHER_FILES = 256  # open files besides connections: weights, libraries, pipes
MIN_CONNECTIONS = 8


def raise_file_limit(wanted: int) -> int:
    """Raise the process's limit of open files, and return how many connections fit in it.

    With a small limit, connections get at most half of it, so that clients cannot prevent a model
    from being loaded.
    """
    most = wanted
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY:
            most = min(wanted, max(MIN_CONNECTIONS, hard - OTHER_FILES, hard // 2))
        if most < wanted:
            log.warning("max_connections reduced to %d: the open file limit is too low", most)
        needed = most + OTHER_FILES
        if soft != resource.RLIM_INFINITY and soft < needed:
            limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return most


class ReserveDescriptor:
    """One open file, closed when another one must be opened."""

    def __init__(self) -> None:
        self._file: int | None = None
        self.open()

    def open(self) -> bool:
        """Open the file again if it is closed; False if the system refuses."""
        if self._file is None:
            try:
                self._file = os.open(os.devnull, os.O_RDONLY)
            except OSError:
                return False
        return True

    def close(self) -> None:
        """Close it, so that another file can be opened."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
