"""The data folder of a server: its database, its files, and how many bytes each owner stores.

Only files with the server's naming scheme that the database lists are opened or unlinked. Other
files in the folder stay. No name comes from a client. Bytes are counted in the event loop's thread;
files are read and written in any thread.

:mod:`vlmkit_server.storage.disk_store` and :mod:`vlmkit_server.apis.batches.store` decide what
the files contain, and when one is unlinked.
"""

import asyncio
import errno
import os
import re
import sqlite3
import stat
import sys
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TypeVar

from vlmkit.config.paths import named_paths
from vlmkit.errors import ConfigError, RequestError
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.settings.server import DataSettings, ServerSettings
from vlmkit_server.storage.database import Database
from vlmkit_server.storage.disk_reserve import DiskReserve

T = TypeVar("T")

MIN_FILE_BYTES = 4096  # size that an empty file counts for
DATABASE = "vlmkit.sqlite3"
FILES = "files"
RESERVE = "reserve"
PART = ".part"  # suffix of an upload in progress
_NAME = re.compile(r"file-[0-9a-f]{48}(\.part)?")
_OF_THE_SYSTEM = frozenset({"lost+found", ".DS_Store"})  # present in a new volume or folder
_FLAGS = (
    getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # otherwise opening a pipe would block
)

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
CREATE TABLE IF NOT EXISTS pending_unlinks (name TEXT PRIMARY KEY) WITHOUT ROWID;
"""
"""``lines`` has the batch lines without an answer; an answered line is only in the output file.

``pending_unlinks`` has names of files that are being deleted or uploaded. At the next start, what a
killed process left of them is unlinked.
"""


class Folder:
    """Stores files, and limits their total size.

    Args:
        settings: the folder and its limits.
        own: other files of this server, which a new data folder may contain, too.

    Attributes:
        database: the database that lists the files.

    Raises:
        ConfigError: the folder is not a data folder or cannot be used, or another process uses it.
    """

    def __init__(self, settings: DataSettings, own: Collection[Path] = ()) -> None:
        self.settings = settings
        self._root = Path(settings.folder)
        self._files = self._root / FILES
        self._directory: int | None = None
        check_new = partial(_refuse_foreign, settings, own)
        try:
            check_folder(settings, own)
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.database = Database(self._root / DATABASE, SCHEMA, check_new)
            self._files.mkdir(mode=0o700, exist_ok=True)
            self._directory = _opened_directory(self._files)
        except OSError as error:
            raise ConfigError(
                f"server.data.folder {settings.folder!r} cannot be used: {error.strerror}",
                hint="name a folder that this user may write to, or one that is not there yet",
            ) from error
        self._reserve = DiskReserve(self._root / RESERVE)
        self._reserve.fill()
        self._num_bytes: Counter[bytes] = Counter()
        self.num_bytes = 0

    def path(self, name: str) -> Path:
        """Return the path of a stored file."""
        return self._files / name

    async def run_deletion(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction that records deletions; on a full disk it uses the reserve.

        Raises:
            Unavailable: the disk cannot be written.
        """
        try:
            return await self.database.run(work)
        except Unavailable:
            self._reserve.release()
            await self.database.empty_log()
            return await self.database.run(work)

    async def renew_reserve(self) -> None:
        """Take the room for deletions again, if it was used and there is room."""
        await asyncio.to_thread(self._reserve.fill)

    def reserve(self, owner: bytes, num_bytes: int) -> None:
        """Count bytes that are to be stored.

        Raises:
            RequestError: they exceed the owner's limit.
            Unavailable: they exceed the folder's limit.
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
        """Count stored bytes without a check; negative numbers free them."""
        self._num_bytes[owner] += num_bytes
        self.num_bytes += num_bytes
        if not self._num_bytes[owner]:
            del self._num_bytes[owner]

    def is_full_for(self, owner: bytes) -> bool:
        """Whether an owner may store nothing more."""
        return self._num_bytes[owner] >= self.settings.max_tenant_bytes

    @property
    def is_full(self) -> bool:
        """Whether the folder's limit is reached."""
        return self.num_bytes >= self.settings.max_bytes

    def read(self, name: str, start: int, num_bytes: int) -> bytes:
        """Return a piece of a file, which is open only meanwhile.

        Raises:
            FileNotFoundError: the file is missing, or is not a regular file.
            OSError: it cannot be read.
        """
        with os.fdopen(self._open(name, os.O_RDONLY), "rb") as file:
            file.seek(start)
            return file.read(num_bytes)

    def write(self, name: str, start: int, content: bytes, *, durably: bool = True) -> None:
        """Replace a file's content from an offset to its end; the file is created if it is missing.

        Raises:
            OSError: it cannot be written.
        """
        with os.fdopen(self._open(name, os.O_RDWR | os.O_CREAT), "r+b") as file:
            file.seek(start)
            file.write(content)
            file.truncate()
            if durably:
                file.flush()
                os.fsync(file.fileno())

    def rename(self, name: str, new: str) -> None:
        """Give a file its final name.

        Raises:
            OSError: it cannot be renamed.
        """
        folder = self._directory
        os.rename(self._entry(name), self._entry(new), src_dir_fd=folder, dst_dir_fd=folder)
        self.sync_names()

    def sync_names(self) -> None:
        """Flush the folder's entries, so that new files survive a loss of power."""
        if self._directory is not None:
            os.fsync(self._directory)

    def remove(self, name: str) -> None:
        """Unlink a file that the database lists; does nothing if it is missing.

        Raises:
            OSError: it cannot be unlinked.
        """
        try:
            os.unlink(self._entry(name), dir_fd=self._directory)
        except (FileNotFoundError, IsADirectoryError):
            return

    def num_unknown(self, names: Collection[str]) -> int:
        """Return how many files with the server's naming scheme are not among some names."""
        found = os.listdir(self._files if self._directory is None else self._directory)  # noqa: PTH208
        return sum(_NAME.fullmatch(name) is not None and name not in names for name in found)

    def _open(self, name: str, flags: int) -> int:
        """Open a regular file; refuse a link, pipe or folder with its name."""
        try:
            descriptor = os.open(self._entry(name), flags | _FLAGS, 0o600, dir_fd=self._directory)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise FileNotFoundError(errno.ENOENT, "not a regular file") from error
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise FileNotFoundError(errno.ENOENT, "not a regular file")
        return descriptor

    def _entry(self, name: str) -> str:
        """Return the name of a file relative to the open folder, or its path."""
        if _NAME.fullmatch(name) is None:
            raise FileNotFoundError(errno.ENOENT, "no name of a stored file")
        return str(self._files / name) if self._directory is None else name

    def close(self) -> None:
        """Close the database and the folder."""
        self.database.close()
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None


def files_of(settings: ServerSettings) -> list[Path]:
    """Return the files that the settings name, which may lie in a new data folder."""
    named = named_paths(settings, ServerSettings)
    return [Path(each.path) for each in named if each.use != "folder"]


def check_folder(settings: DataSettings, own: Collection[Path] = ()) -> None:
    """Refuse a folder that is not a data folder; changes nothing.

    Args:
        settings: the folder.
        own: other files of this server, which a new data folder may contain, too.

    Raises:
        ConfigError: it contains other files, or a link in place of a data file.
        OSError: it cannot be read.
    """
    root = Path(settings.folder)
    for path in (root / FILES, root / DATABASE):
        _refuse_link(path)
    if not (root / DATABASE).exists():
        _refuse_foreign(settings, own)


def _refuse_foreign(settings: DataSettings, own: Collection[Path]) -> None:
    """Raise ConfigError if a folder without a database contains other files."""
    root = Path(settings.folder)
    if not root.exists():
        return
    stored = [path.name for path in (root / FILES).iterdir()] if (root / FILES).is_dir() else []
    if num_ours := sum(_NAME.fullmatch(name) is not None for name in stored):
        raise ConfigError(
            f"server.data.folder {settings.folder!r} has stored files ({num_ours}) but no "
            f"database {DATABASE!r}",
            hint=f"restore {DATABASE!r} from a backup, or name an empty folder; "
            "nothing was deleted",
        )
    beside = [path.name for path in own if path.parent.resolve() == root.resolve()]
    others = sorted(path.name for path in root.iterdir() if not _is_ours(path.name, beside))
    if stored or others:
        raise ConfigError(
            f"server.data.folder {settings.folder!r} is not empty and is no data folder "
            f"of vlmkit: it contains {(others or [f'{FILES}/{min(stored)}'])[0]!r}",
            hint="name a folder that is empty or not there yet, such as 'vlmkit-data'; "
            "nothing was changed",
        )


def _is_ours(name: str, beside: Collection[str]) -> bool:
    own_names = (DATABASE, *beside)
    begins = tuple(f"{own}{end}" for own in own_names for end in "-.")
    return name in (FILES, RESERVE, *own_names, *_OF_THE_SYSTEM) or name.startswith(begins)


def counted_bytes(num_bytes: int) -> int:
    """Return how many bytes a file counts for."""
    return max(num_bytes, MIN_FILE_BYTES)


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ConfigError(
            f"{str(path)!r} is a symbolic link, and must be a folder or file of the data folder",
            hint="name the folder that it leads to in server.data.folder, or mount it there",
        )


def _opened_directory(path: Path) -> int | None:
    """Open a folder, so that no link can replace it; None where the system cannot."""
    directory = None
    if sys.platform != "win32":
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    return directory
