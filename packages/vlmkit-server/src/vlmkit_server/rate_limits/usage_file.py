"""Persists the usage of daily and monthly limits in an SQLite file, outside the request path.

A thread writes changes once a second, and at the end. A killed process loses at most a second of
usage; a machine crash also loses what the disk had not written.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from vlmkit.errors import ConfigError
from vlmkit_server.rate_limits.tenant_usage import Sum

log = logging.getLogger(__name__)

EVERY_S = 1.0
_COLUMNS = "account text, unit text, period text, start_s integer, num_used integer"
_TABLE = (
    f"create table if not exists usage ({_COLUMNS}, primary key (account, unit, period)) "
    "without rowid"
)
_WRITE = "insert or replace into usage values (?, ?, ?, ?, ?)"


Used = tuple[str, Sum]
"""The id of a key, and its usage of one limit."""


class UsageFile:
    """Persists usage.

    Args:
        path: the file, which is created with access for its owner alone.
        current: returns the usage of all keys; called in the file's own thread.

    Attributes:
        found: the stored usage, by key id.

    Raises:
        ConfigError: the file cannot be read or written, or another server uses it.
    """

    def __init__(self, path: Path, current: Callable[[], Iterable[Used]]) -> None:
        self._path = path
        self._current = current
        self._written: dict[tuple[str, str, str], Sum] = {}
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self.found: dict[str, list[Sum]] = {}
        try:
            path.touch(0o600)
            self._open()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"usage file {str(path)!r} cannot be used: {_reason(error)}",
                hint="it must be a file of this server alone: see server.limits.usage_file",
            ) from error

    def _open(self) -> None:
        self._database = sqlite3.connect(
            self._path, timeout=1.0, isolation_level=None, check_same_thread=False
        )
        try:
            self._database.execute("pragma locking_mode = exclusive")
            self._refuse_foreign()
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = normal")
            self._database.execute(_TABLE)
            self._database.execute("begin immediate")
            self._database.execute("commit")
            for key_id, *row in self._database.execute("select * from usage"):
                found = Sum(*row)
                self._written[key_id, found.unit, found.period] = found
                self.found.setdefault(key_id, []).append(found)
        except BaseException:
            self._database.close()
            raise

    def _refuse_foreign(self) -> None:
        """Refuse another program's database before anything is written to it."""
        tables = {name for (name,) in self._database.execute("select name from sqlite_master")}
        columns = self._database.execute("select name, lower(type) from pragma_table_info('usage')")
        found = ", ".join(" ".join(each) for each in columns)
        if tables and (tables != {"usage"} or found != _COLUMNS):
            raise sqlite3.DatabaseError("it is a database of another program")

    def start(self) -> None:
        """Start to write."""
        self._thread = threading.Thread(target=self._run, name="vlmkit-usage", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left, and close the file; a second call does nothing."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._database.close()

    def _run(self) -> None:
        has_failed = False
        while True:
            is_over = self._end.wait(EVERY_S)
            try:
                self._write()
                has_failed = False
            except sqlite3.Error as error:
                if not has_failed:  # writing is retried each second
                    log.error("usage file cannot be written, retrying: %s", _reason(error))  # noqa: TRY400
                has_failed = True
            if is_over:
                return

    def _write(self) -> None:
        used = {(key_id, each.unit, each.period): each for key_id, each in self._current()}
        changed = {name: each for name, each in used.items() if self._written.get(name) != each}
        if not changed:
            return
        try:
            self._database.execute("begin")
            self._database.executemany(_WRITE, [(name[0], *each) for name, each in changed.items()])
            self._database.execute("commit")
        except sqlite3.Error:
            if self._database.in_transaction:
                self._database.execute("rollback")
            raise
        self._written |= changed


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
