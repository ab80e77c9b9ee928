"""One SQLite database, used by one thread: whoever wants something of it waits for a future.

Each piece of work is one transaction, which is on the disk when its future is done. Another process
cannot open the database meanwhile. What stands in it is its users' business.
"""

import asyncio
import errno
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from vlmkit.errors import ConfigError
from vlmkit.server.http.errors import Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

VERSION = 1  # of the schema; another version's database is not touched
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Database:
    """Runs work in transactions, one after the other.

    Args:
        path: of its file, which is made if it is not there and can be read by its owner alone.
        schema: statements that make its tables where they are not there.

    Raises:
        ConfigError: it cannot be opened, or another process uses it.
    """

    def __init__(self, path: Path, schema: str) -> None:
        self._thread = ThreadPoolExecutor(1, "vlmkit-database")
        try:
            self._connection = self._thread.submit(_opened, path, schema).result()
        except (OSError, sqlite3.Error) as error:
            self._thread.shutdown()
            if "locked" in str(error):
                raise ConfigError(
                    f"the database {str(path)!r} is used by another process",
                    hint="give each server a folder of its own",
                ) from error
            raise ConfigError(f"the database {str(path)!r} cannot be opened: {error}") from error

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do some work in a transaction; it is undone where it raises.

        Raises:
            Unavailable: the disk is full or cannot be written.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._done, work)

    def run_now(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do the same where nobody else waits, as at the start."""
        return self._thread.submit(self._done, work).result()

    def close(self) -> None:
        """Wait for all work and close the database."""
        self._thread.submit(self._connection.close)
        self._thread.shutdown()

    def _done(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                return work(self._connection)
        except (OSError, sqlite3.OperationalError) as error:
            raise not_written(error) from error


def not_written(error: OSError | sqlite3.Error) -> Unavailable:
    """Return what clients learn where something cannot be kept; the log has the reason."""
    is_full = isinstance(error, OSError) and error.errno in _FULL
    is_full = is_full or "full" in str(error)
    what = "the disk is full" if is_full else "the disk cannot be written"
    log.error("%s: %s", what, error)
    return Unavailable(what, code="disk_full" if is_full else "disk_failed")


def _opened(path: Path, schema: str) -> sqlite3.Connection:
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=0.5, isolation_level=None)
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    ((version,),) = connection.execute("PRAGMA user_version")
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError(f"its version is {version}, and not {VERSION}")
    if not version:  # what is there is not written again: the disk may be full
        connection.executescript(f"BEGIN; {schema} PRAGMA user_version = {VERSION}; COMMIT;")
    return connection
