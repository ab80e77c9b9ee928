"""Stores files in a folder, so that they survive a restart.

No file is evicted for another: what does not fit is refused. A file is found only with the
credentials that it was sent with. Its name is in the database before the file exists, so the server
knows what a killed process left, and unlinks nothing else. It is used in the event loop's thread.
"""

import asyncio
import contextlib
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from vlmkit.errors import RequestError
from vlmkit_server.http.errors import Overloaded, Unavailable
from vlmkit_server.storage.data_folder import PART, Folder, counted_bytes
from vlmkit_server.storage.database import not_written
from vlmkit_server.storage.memory_store import not_stored, too_large

log = logging.getLogger(__name__)

MAX_FILES = 10_000  # of one owner
BATCH_LIVES_S = 30 * 86_400  # OpenAI's default

_FORGET_UNLINK = "DELETE FROM pending_unlinks WHERE name = ?"
_COLUMNS = "id, filename, purpose, media_type, num_bytes, created_at, expires_at"


class DiskFile(NamedTuple):
    """The facts of a file; see :class:`~vlmkit_server.storage.memory_store.StoredFile`."""

    id: str
    filename: str
    purpose: str
    media_type: str
    num_bytes: int
    created_at: int
    expires_at: int | None


class FilesOnDisk:
    """Stores files.

    Args:
        folder: the data folder.
        now: returns the time in seconds since 1970.
    """

    def __init__(self, folder: Folder, now: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._now = now

    def restore(self) -> None:
        """Count stored files, and unlink what a killed upload or deletion left.

        Files that the database does not list stay, and are logged: they may belong to a lost
        database.
        """
        stored, pending = self.folder.database.run_now(_stored_and_pending)
        names = set()
        for owner, name, num_bytes in stored:
            self.folder.count(owner, counted_bytes(num_bytes))
            names.add(name)
        removed = [(name,) for (name,) in pending if self._is_gone(name, names)]
        self.folder.database.run_in_background(lambda on: on.executemany(_FORGET_UNLINK, removed))
        if num_unknown := self.folder.num_unknown(names):
            log.warning(
                "server.data.folder %r: %d files are not in the database; they are kept and not "
                "counted",
                self.folder.settings.folder,
                num_unknown,
            )

    def _is_gone(self, name: str, stored: Set[str]) -> bool:
        """Unlink what a killed process left of a file that is not stored; tell whether it could.

        An upload may have its final name already, although it was not recorded.
        """
        try:
            for each in {name, name.removesuffix(PART)} - stored:
                self.folder.remove(each)
        except OSError as error:
            log.error("a deleted file cannot be unlinked: %s", error.strerror)  # noqa: TRY400
            return False
        return True

    def note_unlinked(self, name: str) -> None:
        """Record in the background that a file is unlinked."""
        self.folder.database.run_in_background(lambda on: on.execute(_FORGET_UNLINK, (name,)))

    def incoming(self, owner: bytes) -> "IncomingFile":
        """Return a file that is about to be written."""
        return IncomingFile(self, owner)

    async def keep(
        self,
        incoming: "IncomingFile",
        *,
        filename: str,
        purpose: str,
        media_type: str,
        lives_s: int | None,
    ) -> DiskFile:
        """Store a file that was written.

        Args:
            incoming: the file.
            filename: the client's name for it.
            purpose: OpenAI's label.
            media_type: the client's media type.
            lives_s: time until it expires; the default of batch files, for those, when None.

        Raises:
            Overloaded: its owner has too many files.
            Unavailable: it cannot be stored.
        """
        if lives_s is None and purpose == "batch":
            lives_s = BATCH_LIVES_S
        created_at = int(self._now())
        expires_at = None if lives_s is None else created_at + lives_s
        owner = incoming.owner
        file = DiskFile(
            incoming.name,
            filename,
            purpose,
            media_type,
            incoming.num_bytes,
            created_at,
            expires_at,
        )

        def add(on: sqlite3.Connection) -> None:
            ((num,),) = on.execute("SELECT count(*) FROM files WHERE owner = ?", (owner,))
            if num >= MAX_FILES:
                raise Overloaded(f"{MAX_FILES} files are kept already", hint="delete some")
            insert(on, owner, file)
            on.execute(_FORGET_UNLINK, (incoming.name + PART,))
            self.folder.rename(incoming.name + PART, incoming.name)

        try:
            await self.folder.database.run(add)
        except Unavailable:
            with contextlib.suppress(OSError):  # it may have failed before it was renamed
                self.folder.rename(incoming.name, incoming.name + PART)
            raise
        return file

    async def find(self, file_id: str, owner: bytes) -> DiskFile:
        """Return the facts of a file.

        Raises:
            NotStored: it does not exist, or has another owner.
        """
        now = self._now()

        def read(on: sqlite3.Connection) -> DiskFile | None:
            found = on.execute(
                f"SELECT {_COLUMNS} FROM files WHERE id = ? AND owner = ? "  # noqa: S608
                "AND (expires_at IS NULL OR expires_at > ?)",
                (file_id, owner, now),
            ).fetchone()
            return DiskFile(*found) if found else None

        file = await self.folder.database.run(read)
        if file is None:
            raise not_stored()
        return file

    async def all_of(self, owner: bytes) -> Sequence[DiskFile]:
        """Return an owner's files, the oldest first."""
        now = self._now()

        def read(on: sqlite3.Connection) -> list[DiskFile]:
            found = on.execute(
                f"SELECT {_COLUMNS} FROM files WHERE owner = ? "  # noqa: S608
                "AND (expires_at IS NULL OR expires_at > ?) ORDER BY number",
                (owner, now),
            )
            return [DiskFile(*row) for row in found]

        return await self.folder.database.run(read)

    async def delete(self, file_id: str, owner: bytes) -> None:
        """Delete a file.

        Raises:
            NotStored: it does not exist, or has another owner.
            RequestError: a batch reads it.
        """
        file = await self.find(file_id, owner)

        def forget(on: sqlite3.Connection) -> bool:
            if _is_read(on, file_id):
                raise RequestError(
                    "a batch that has not ended reads this file",
                    param="file_id",
                    code="file_in_use",
                    hint="cancel the batch",
                )
            is_deleted = on.execute("DELETE FROM files WHERE id = ?", (file_id,)).rowcount > 0
            if is_deleted:
                _expect_unlink(on, file_id)
            return is_deleted

        if not await self.folder.run_deletion(forget):  # another request deleted it meanwhile
            raise not_stored()
        await self._remove(file.id, owner, file.num_bytes)

    async def piece(self, file_id: str, owner: bytes, start: int, num_bytes: int) -> bytes:
        """Return a part of a file's content.

        Raises:
            NotStored: it does not exist, or has another owner.
        """
        file = await self.find(file_id, owner)
        try:
            most = min(num_bytes, file.num_bytes - start)
            content = await asyncio.to_thread(self.folder.read, file.id, start, most)
        except FileNotFoundError:  # it was deleted meanwhile
            raise not_stored() from None
        if len(content) < most:  # another program truncated it
            raise not_stored()
        return content

    async def forget_expired(self) -> None:
        """Delete expired files that no batch reads."""
        now = self._now()

        def forget(on: sqlite3.Connection) -> list[tuple[str, bytes, int]]:
            late = on.execute(
                "DELETE FROM files WHERE expires_at <= ? AND id NOT IN "
                "(SELECT input_id FROM batches WHERE ended_at IS NULL) "
                "RETURNING id, owner, num_bytes",
                (now,),
            )
            found = late.fetchall()
            for name, _, _ in found:
                _expect_unlink(on, name)
            return found

        for name, owner, num_bytes in await self.folder.run_deletion(forget):
            await self._remove(name, owner, num_bytes)
        await self.folder.renew_reserve()

    async def _remove(self, name: str, owner: bytes, num_bytes: int) -> None:
        self.folder.count(owner, -counted_bytes(num_bytes))
        await asyncio.to_thread(self.folder.remove, name)
        await self.folder.renew_reserve()
        self.note_unlinked(name)


class IncomingFile:
    """A file that is being uploaded.

    Args:
        files: stores it.
        owner: its owner.
    """

    def __init__(self, files: FilesOnDisk, owner: bytes) -> None:
        self.name = f"file-{secrets.token_hex(24)}"
        self.owner = owner
        self.num_bytes = 0
        self._files = files
        self._folder = files.folder
        self._num_counted = 0
        self._is_recorded = False  # in the database

    def count(self, num_bytes: int) -> None:
        """Count bytes that are about to be written.

        Raises:
            RequestError: the file is too large, or its owner has no room for it.
            Unavailable: the folder has no room for it.
        """
        self.num_bytes += num_bytes
        most = self._folder.settings.max_file_bytes
        if self.num_bytes > most:
            raise too_large(most)
        more = counted_bytes(self.num_bytes) - self._num_counted
        if more > 0:
            self._folder.reserve(self.owner, more)
            self._num_counted += more

    async def write(self, content: bytes) -> None:
        """Append bytes, which are counted already.

        Raises:
            Unavailable: the disk is full or cannot be written.
        """
        await self._record()
        start = self.num_bytes - len(content)
        name = self.name + PART
        try:
            await asyncio.to_thread(self._folder.write, name, start, content, durably=False)
        except OSError as error:
            raise not_written(error) from error

    async def end(self) -> None:
        """Flush the file to disk.

        Raises:
            Unavailable: the disk is full or cannot be written.
        """

        def sync() -> None:
            self._folder.write(self.name + PART, self.num_bytes, b"")
            self._folder.sync_names()

        await self._record()

        try:
            await asyncio.to_thread(sync)
        except OSError as error:
            raise not_written(error) from error

    async def _record(self) -> None:
        """Write the name into the database before the file exists."""
        if not self._is_recorded:
            await self._folder.database.run(lambda on: _expect_unlink(on, self.name + PART))
            self._is_recorded = True

    def drop(self) -> None:
        """Unlink the file, which is not stored."""
        self._folder.remove(self.name + PART)
        self._files.note_unlinked(self.name + PART)
        self._folder.count(self.owner, -self._num_counted)


def _stored_and_pending(
    on: sqlite3.Connection,
) -> tuple[list[tuple[bytes, str, int]], list[tuple[str]]]:
    """Return owner, name and size of all stored files, and the names of pending unlinks."""
    found = on.execute("SELECT owner, id, num_bytes FROM files")
    unfinished = on.execute(
        "SELECT owner, output_id, output_bytes FROM batches WHERE ended_at IS NULL "
        "UNION ALL SELECT owner, error_id, error_bytes FROM batches WHERE ended_at IS NULL"
    )
    pending = on.execute("SELECT name FROM pending_unlinks")
    return [*found, *unfinished], pending.fetchall()


def _expect_unlink(on: sqlite3.Connection, name: str) -> None:
    """Record a name that the next start unlinks, if not done before."""
    on.execute("INSERT OR IGNORE INTO pending_unlinks VALUES (?)", (name,))


def insert(on: sqlite3.Connection, owner: bytes, file: DiskFile) -> None:
    """Record a file that is in the folder."""
    on.execute(
        f"INSERT INTO files (owner, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (owner, *file),
    )


def _is_read(on: sqlite3.Connection, file_id: str) -> bool:
    found = on.execute(
        "SELECT 1 FROM batches WHERE input_id = ? AND ended_at IS NULL LIMIT 1", (file_id,)
    )
    return found.fetchone() is not None
