"""The data folder of a server: its database, its files, and how many bytes each owner stores.

Only files of our naming scheme are opened or unlinked, and only those that the database names: what
else lies in the folder is not ours and stays. No name comes from a client. Bytes are counted in the
event loop's thread; files are read and written in any.

:mod:`vlmkit_server.apis.files.disk_store` and :mod:`vlmkit_server.apis.batches.store` decide what
the files hold, and when one is unlinked.
"""

import errno
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path

from vlmkit.config.paths import named_paths
from vlmkit.errors import ConfigError, RequestError
from vlmkit_server.http.errors import Unavailable
from vlmkit_server.settings.server import DataSettings, ServerSettings
from vlmkit_server.storage.database import Database

LEAST_BYTES = 4096  # that a file takes, be it empty
DATABASE = "vlmkit.sqlite3"
FILES = "files"
PART = ".part"  # ends the name of an upload in progress
_NAME = re.compile(r"file-[0-9a-f]{48}(\.part)?")
_OF_THE_SYSTEM = frozenset({"lost+found", ".DS_Store"})  # what a new volume or folder holds
_FLAGS = (
    getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # or to open a pipe would wait for its other end
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
"""Lines are those that have no answer yet: an answered one is gone, and stands in a file.

Pending unlinks are names in the folder that are stored no more, or not yet: those of deletions and
uploads in progress. The next start unlinks what a process that was killed left of them.
"""


class Folder:
    """Stores files, and bounds how many bytes of them there are.

    Args:
        settings: where, and bounds.
        own: other files of this server, which may lie in a new data folder, too.

    Attributes:
        database: knows the files.

    Raises:
        ConfigError: the folder is not ours or cannot be used, or another process uses it.
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
        self._num_bytes: Counter[bytes] = Counter()
        self.num_bytes = 0

    def path(self, name: str) -> Path:
        """Return where a stored file is."""
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
            FileNotFoundError: it is gone, or something else has its name.
            OSError: it cannot be read.
        """
        with os.fdopen(self._open(name, os.O_RDONLY), "rb") as file:
            file.seek(start)
            return file.read(num_bytes)

    def write(self, name: str, start: int, content: bytes, *, durably: bool = True) -> None:
        """Let a file end with some content, from a place on; it is created where it is missing.

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
        where = self._directory
        os.rename(self._entry(name), self._entry(new), src_dir_fd=where, dst_dir_fd=where)
        self.sync_names()

    def sync_names(self) -> None:
        """Make sure that files which were made are found after a loss of power."""
        if self._directory is not None:
            os.fsync(self._directory)

    def remove(self, name: str) -> None:
        """Unlink a file that the database names; nothing happens if it is missing.

        Raises:
            OSError: it cannot be unlinked.
        """
        try:
            os.unlink(self._entry(name), dir_fd=self._directory)
        except (FileNotFoundError, IsADirectoryError):
            return

    def num_unknown(self, names: Collection[str]) -> int:
        """Return how many files of our naming scheme are here that are none of these."""
        found = os.listdir(self._files if self._directory is None else self._directory)  # noqa: PTH208
        return sum(_NAME.fullmatch(name) is not None and name not in names for name in found)

    def _open(self, name: str, flags: int) -> int:
        """Open a regular file of ours, and no link, pipe or folder that has its name."""
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
        """Return what the system finds a file by: its name in the open folder, where it can."""
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
    """Return the files that a server's settings name, which may lie in a new data folder."""
    named = named_paths(settings, ServerSettings)
    return [Path(each.path) for each in named if each.use != "folder"]


def check_folder(settings: DataSettings, own: Collection[Path] = ()) -> None:
    """Refuse a folder that is not ours; changes nothing.

    Args:
        settings: where it is.
        own: other files of this server, which may lie in a new data folder, too.

    Raises:
        ConfigError: it holds files of others, or a link in place of ours.
        OSError: it cannot be read.
    """
    root = Path(settings.folder)
    for path in (root / FILES, root / DATABASE):
        _refuse_link(path)
    if not (root / DATABASE).exists():
        _refuse_foreign(settings, own)


def _refuse_foreign(settings: DataSettings, own: Collection[Path]) -> None:
    """Raise ConfigError unless a folder without a database of ours holds nothing of others."""
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
    ours = (DATABASE, *beside)
    begins = tuple(f"{own}{end}" for own in ours for end in "-.")
    return name in (FILES, *ours, *_OF_THE_SYSTEM) or name.startswith(begins)


def room_of(num_bytes: int) -> int:
    """Return how many bytes a file counts for."""
    return max(num_bytes, LEAST_BYTES)


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ConfigError(
            f"{str(path)!r} is a symbolic link, and must be a folder or file of the data folder",
            hint="name the folder that it leads to in server.data.folder, or mount it there",
        )


def _opened_directory(path: Path) -> int | None:
    """Hold a folder open, so that no link takes its place; None where a system cannot."""
    directory = None
    if sys.platform != "win32":
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    return directory
