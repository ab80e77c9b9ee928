"""What was used of limits that outlive the process: a file of SQLite, written beside the requests.

A thread writes what has changed, once a second, and at the end. So a process that is killed forgets
a second of it at most; with the machine, what its disk had not written.
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
"""The id of a key, and what it used of one limit."""


class UsageFile:
    """Keeps what was used.

    Args:
        path: of the file, which is made if there is none, for its owner alone.
        current: returns what was used by all; called in the file's own thread.

    Attributes:
        found: what was there, by account.

    Raises:
        ConfigError: it cannot be read or written, or another server uses it.
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
        self._base = sqlite3.connect(
            self._path, timeout=1.0, isolation_level=None, check_same_thread=False
        )
        try:
            self._base.execute("pragma locking_mode = exclusive")
            self._refuse_foreign()
            self._base.execute("pragma journal_mode = wal")
            self._base.execute("pragma synchronous = normal")
            self._base.execute(_TABLE)
            self._base.execute("begin immediate")
            self._base.execute("commit")
            for account, *row in self._base.execute("select * from usage"):
                found = Sum(*row)
                self._written[account, found.unit, found.period] = found
                self.found.setdefault(account, []).append(found)
        except BaseException:
            self._base.close()
            raise

    def _refuse_foreign(self) -> None:
        """Raise sqlite3.DatabaseError before anything is written to another program's database."""
        tables = {name for (name,) in self._base.execute("select name from sqlite_master")}
        columns = self._base.execute("select name, lower(type) from pragma_table_info('usage')")
        found = ", ".join(" ".join(each) for each in columns)
        if tables and (tables != {"usage"} or found != _COLUMNS):
            raise sqlite3.DatabaseError("it is a database of another program")

    def start(self) -> None:
        """Begin to write."""
        self._thread = threading.Thread(target=self._run, name="vlmkit-usage", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left, and let the file go; harmless when done twice."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._base.close()

    def _run(self) -> None:
        has_failed = False
        while True:
            is_over = self._end.wait(EVERY_S)
            try:
                self._write()
                has_failed = False
            except sqlite3.Error as error:
                if not has_failed:  # it is tried again each second
                    log.error("what was used cannot be written: %s", _reason(error))  # noqa: TRY400
                has_failed = True
            if is_over:
                return

    def _write(self) -> None:
        used = {(account, each.unit, each.period): each for account, each in self._current()}
        changed = {name: each for name, each in used.items() if self._written.get(name) != each}
        if not changed:
            return
        try:
            self._base.execute("begin")
            self._base.executemany(_WRITE, [(name[0], *each) for name, each in changed.items()])
            self._base.execute("commit")
        except sqlite3.Error:
            if self._base.in_transaction:
                self._base.execute("rollback")
            raise
        self._written |= changed


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
