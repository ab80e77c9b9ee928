"""A folder on disk: its files, and how many bytes of them each owner has.

No path comes from a client: a file's name is one that was made here and stands in the database.
Bytes are counted in the event loop's thread; files are read and written in any.
"""

import os
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from vlmkit.errors import ConfigError, RequestError
from vlmkit.server.http.errors import Unavailable
from vlmkit.server.kept.database import Database
from vlmkit.settings.server import DataSettings

LEAST_BYTES = 4096  # that a file takes, be it empty

SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner BLOB NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    media_type TEXT NOT NULL,
    num_bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
);
CREATE INDEX IF NOT EXISTS files_of_owner ON files (owner, number);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner BLOB NOT NULL,
    tenant TEXT NOT NULL,
    account TEXT NOT NULL,
    key_id TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    status TEXT NOT NULL,
    ending TEXT,
    body BLOB NOT NULL,
    input_id TEXT NOT NULL,
    output_id TEXT NOT NULL,
    error_id TEXT NOT NULL,
    output_bytes INTEGER NOT NULL DEFAULT 0,
    error_bytes INTEGER NOT NULL DEFAULT 0,
    output_lives_s INTEGER NOT NULL,
    total INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    left_out INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    expires_at INTEGER NOT NULL,
    ended_at INTEGER
);
CREATE INDEX IF NOT EXISTS batches_of_owner ON batches (owner, number);
CREATE TABLE IF NOT EXISTS lines (
    batch INTEGER NOT NULL,
    number INTEGER NOT NULL,
    start INTEGER NOT NULL,
    length INTEGER NOT NULL,
    is_asked INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    postponed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (batch, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS lines_in_order ON lines (batch, is_asked, postponed, number);
"""
"""Lines are those that have no answer yet: an answered one is gone, and stands in a file."""


class Folder:
    """Where files are kept, and how many bytes of them may be.

    Args:
        settings: where, and bounds.

    Attributes:
        database: what is known of the files.

    Raises:
        ConfigError: it cannot be used, or another process does.
    """

    def __init__(self, settings: DataSettings) -> None:
        self.settings = settings
        root = Path(settings.folder)
        self._files = root / "files"
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"server.data.folder {settings.folder!r} cannot be used: {error.strerror}"
            ) from error
        self.database = Database(root / "vlmkit.sqlite3", SCHEMA)
        self._num_bytes: Counter[bytes] = Counter()
        self.num_bytes = 0

    def path(self, name: str) -> Path:
        """Return where a file is that was named here."""
        return self._files / name

    def take(self, owner: bytes, num_bytes: int) -> None:
        """Count bytes that are to be kept.

        Raises:
            RequestError: they are more than their owner may keep.
            Unavailable: they are more than the folder has room for.
        """
        if self._num_bytes[owner] + num_bytes > self.settings.max_tenant_bytes:
            raise RequestError(
                f"over {self.settings.max_tenant_bytes} bytes would be kept for this key",
                code="storage_full",
                hint="delete files that are not needed",
            )
        if self.num_bytes + num_bytes > self.settings.max_bytes:
            raise Unavailable("there is no room to keep this", code="disk_full")
        self.count(owner, num_bytes)

    def count(self, owner: bytes, num_bytes: int) -> None:
        """Count bytes that are kept in any case, or, where they are fewer than 0, no more."""
        self._num_bytes[owner] += num_bytes
        self.num_bytes += num_bytes
        if not self._num_bytes[owner]:
            del self._num_bytes[owner]

    def is_full_for(self, owner: bytes) -> bool:
        """Whether an owner may keep nothing more."""
        return self._num_bytes[owner] >= self.settings.max_tenant_bytes

    @property
    def is_full(self) -> bool:
        """Whether nobody may keep anything more."""
        return self.num_bytes >= self.settings.max_bytes

    def read(self, name: str, start: int, num_bytes: int) -> bytes:
        """Return a piece of a file; it is not open between pieces.

        Raises:
            OSError: it is not there any more.
        """
        with self.path(name).open("rb") as file:
            file.seek(start)
            return file.read(num_bytes)

    def write(self, name: str, start: int, content: bytes, *, durably: bool = True) -> None:
        """Let a file end with some content, from a place on.

        Raises:
            OSError: it cannot be written.
        """
        descriptor = os.open(self.path(name), os.O_RDWR | os.O_CREAT | _BINARY, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            file.seek(start)
            file.write(content)
            file.truncate()
            if durably:
                file.flush()
                os.fsync(file.fileno())

    def sync_names(self) -> None:
        """Make sure that files which were made are found after a loss of power."""
        if sys.platform != "win32":
            descriptor = os.open(self._files, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        self.path(name).unlink(missing_ok=True)

    def remove_all_but(self, names: Collection[str]) -> None:
        """Remove what a process left that was killed."""
        for path in self._files.iterdir():
            if path.name not in names:
                path.unlink()

    def close(self) -> None:
        """Close the database."""
        self.database.close()


def room_of(num_bytes: int) -> int:
    """Return how many bytes a file counts for."""
    return max(num_bytes, LEAST_BYTES)


_BINARY = getattr(os, "O_BINARY", 0)  # Windows' word for no translation of line ends
