"""How many files the process may have open, and one that is kept for when there are no more.

A process without a file to spare cannot accept a connection, not even to refuse it.
"""

import logging
import os
import sys

log = logging.getLogger(__name__)

OTHER_FILES = 256  # that a process has open besides connections: weights, libraries, pipes
LEAST_CONNECTIONS = 8


def room_for_connections(wanted: int) -> int:
    """Return how many connections can be open; lets the process have as many files as that takes.

    At most half of what a small limit allows are connections, so that strangers cannot keep a model
    from being loaded.
    """
    most = wanted
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY:
            most = min(wanted, max(LEAST_CONNECTIONS, hard - OTHER_FILES, hard // 2))
        if most < wanted:
            log.warning("max_connections is %d: the system allows no more open files", most)
        needed = most + OTHER_FILES
        if soft != resource.RLIM_INFINITY and soft < needed:
            limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return most


class ReserveDescriptor:
    """One open file, to be closed when another one must be opened."""

    def __init__(self) -> None:
        self._file: int | None = None
        self.keep()

    def keep(self) -> bool:
        """Have one again; False if there is none to be had now."""
        if self._file is None:
            try:
                self._file = os.open(os.devnull, os.O_RDONLY)
            except OSError:
                return False
        return True

    def give(self) -> None:
        """Close it, so that another file can be opened."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
