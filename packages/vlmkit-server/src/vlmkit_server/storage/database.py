"""One SQLite database, used by one thread: callers wait for a future.

Each piece of work is one transaction, and it is on disk when its future is done. Another process
cannot open the database meanwhile. The module does not know the tables' meaning. It never writes to
another program's database.
"""

import asyncio
import contextlib
import errno
import logging
import os
import re
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from vlmkit.errors import ConfigError
from vlmkit_server.http.errors import Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

VERSION = 1  # of the schema; another version's database is not written to
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Database:
    """Runs work in transactions, one after the other.

    Args:
        path: the file, which is created with access for its owner alone.
        schema: statements that create missing tables.
        check_new: called before the tables of a new database are created; may raise ConfigError.

    Raises:
        ConfigError: it cannot be opened, belongs to another program, or another process uses it.
    """

    def __init__(
        self, path: Path, schema: str, check_new: Callable[[], None] = lambda: None
    ) -> None:
        self._thread = ThreadPoolExecutor(1, "vlmkit-database")
        try:
            self._connection = self._thread.submit(_opened, path, schema, check_new).result()
        except (OSError, sqlite3.Error) as error:
            self._thread.shutdown()
            if "locked" in str(error):
                raise ConfigError(
                    f"the database {str(path)!r} is used by another process",
                    hint="give each server a folder of its own",
                ) from error
            if _is_read_only(error):
                raise ConfigError(
                    f"the database {str(path)!r} is not writable",
                    hint=f"the server's user needs read and write access to {str(path.parent)!r}",
                ) from error
            raise ConfigError(
                f"the database {str(path)!r} cannot be opened: {error}",
                hint="restore it from a backup, or name another folder; nothing was changed",
            ) from error
        except ConfigError:
            self._thread.shutdown()
            raise

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run some work in a transaction, which is rolled back if it raises.

        Raises:
            Unavailable: the disk is full or cannot be written.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._done, work)

    def run_now(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run some work synchronously, as at startup."""
        return self._thread.submit(self._done, work).result()

    def run_in_background(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Run some work without waiting; the next start repeats what this one cannot do."""
        with contextlib.suppress(RuntimeError):  # the database is closed
            self._thread.submit(self._done, work)

    async def empty_log(self) -> None:
        """Move the write-ahead log into the database, and free the room of the log.

        Raises:
            Unavailable: the disk is full or cannot be written.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, self._empty_log)

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

    def _empty_log(self) -> None:
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except (OSError, sqlite3.OperationalError) as error:
            raise not_written(error) from error


def not_written(error: OSError | sqlite3.Error) -> Unavailable:
    """Return the client's error for a failed write, and log the reason."""
    is_full = isinstance(error, OSError) and error.errno in _FULL
    is_full = is_full or "full" in str(error)
    what = "the disk is full" if is_full else "the disk cannot be written"
    log.error("%s: %s", what, _reason(error))
    return Unavailable(what, code="disk_full" if is_full else "disk_failed")


def _reason(error: OSError | sqlite3.Error) -> str:
    """Return the system's or SQLite's name of an error, without values or file names."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return getattr(error, "sqlite_errorname", None) or type(error).__name__


def _is_read_only(error: OSError | sqlite3.Error) -> bool:
    """Whether permissions or a read-only file system prevent a write."""
    if isinstance(error, OSError):
        return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    return "readonly" in str(error)


def _opened(path: Path, schema: str, check_new: Callable[[], None]) -> sqlite3.Connection:
    is_there = path.exists()
    if not is_there:
        check_new()
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o600))
    connection = sqlite3.connect(path, timeout=0.5, isolation_level=None)
    try:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        is_new = _is_new(connection)  # before anything is written, the journal mode included
        if is_new and is_there:
            check_new()
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        if is_new or _lacks(
            connection, schema
        ):  # otherwise nothing is written: the disk may be full
            connection.executescript(f"BEGIN; {schema} PRAGMA user_version = {VERSION}; COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_new(connection: sqlite3.Connection) -> bool:
    """Tell whether a database is empty.

    Raises:
        sqlite3.DatabaseError: it is another program's, or of another version.
    """
    ((version,),) = connection.execute("PRAGMA user_version")
    tables = _tables(connection)
    if version == 0 and tables:
        raise sqlite3.DatabaseError("it is a database of another program")
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError(f"its schema has version {version}, expected {VERSION}")
    return not version


def _lacks(connection: sqlite3.Connection, schema: str) -> bool:
    """Tell whether tables are missing, as in a database of an earlier release."""
    return bool(set(re.findall(r"TABLE IF NOT EXISTS (\w+)", schema)) - _tables(connection))


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
