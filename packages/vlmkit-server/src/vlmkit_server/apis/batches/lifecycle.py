"""The life cycle of batches in the database: validation, running, and the end.

A batch starts as ``validating``; it then fails, or is ``in_progress`` until it is finalized and
ends. :mod:`vlmkit_server.apis.batches.line_store` has its lines.
"""

import sqlite3
from collections.abc import Callable

from vlmkit_server.apis.batches.records import OpenBatch
from vlmkit_server.apis.batches.rows import change_batch, status_of
from vlmkit_server.apis.batches.wire import BatchErrors, Status
from vlmkit_server.storage.data_folder import MIN_FILE_BYTES, Folder
from vlmkit_server.storage.disk_store import DiskFile, insert

KEPT_S = 30 * 86_400  # after its end
_JSONL = "application/jsonl"
_OVER: dict[Status, str] = {
    "completed": "completed_at",
    "expired": "expired_at",
    "cancelled": "cancelled_at",
}


_OPEN = "number, id, owner, tenant, account, key_id, status, ending, endpoint, input_id, expires_at"


class BatchLifecycle:
    """Changes the status of batches. It is used in the event loop's thread.

    Args:
        folder: the data folder.
        now: returns the time in seconds since 1970.
    """

    def __init__(self, folder: Folder, now: Callable[[], float]) -> None:
        self._folder = folder
        self._now = now
        self._run = folder.database.run

    async def restore(self) -> list[OpenBatch]:
        """Return the batches that have not ended, and mark their lines as waiting."""

        def read(on: sqlite3.Connection) -> list[OpenBatch]:
            on.execute("UPDATE lines SET is_asked = 0 WHERE is_asked = 1")
            rows = on.execute(
                f"SELECT {_OPEN} "  # noqa: S608
                "FROM batches WHERE ended_at IS NULL ORDER BY number"
            )
            return [OpenBatch._make(row) for row in rows]

        return await self._run(read)

    async def opened(self, batch_id: str) -> OpenBatch:
        """Return a batch that was created just now."""

        def read(on: sqlite3.Connection) -> OpenBatch:
            row = on.execute(
                f"SELECT {_OPEN} "  # noqa: S608
                "FROM batches WHERE id = ?",
                (batch_id,),
            ).fetchone()
            return OpenBatch._make(row)

        return await self._run(read)

    async def begin(self, batch_id: str, total: int, model: str | None) -> None:
        """Record that a batch is valid and may run, unless it was cancelled."""
        now = int(self._now())

        def change(on: sqlite3.Connection) -> None:
            on.execute("UPDATE batches SET total = ? WHERE id = ?", (total, batch_id))
            if status_of(on, batch_id) == "validating":
                change_batch(on, batch_id, "in_progress", in_progress_at=now, model=model)

        await self._run(change)

    async def fail(self, batch: OpenBatch, errors: BatchErrors) -> None:
        """Record that a batch is invalid, and why, unless it was cancelled."""
        now = int(self._now())

        def change(on: sqlite3.Connection) -> bool:
            if status_of(on, batch.id) != "validating":
                return False
            on.execute("DELETE FROM lines WHERE batch = ?", (batch.number,))
            change_batch(on, batch.id, "failed", failed_at=now, errors=errors)
            on.execute("UPDATE batches SET ended_at = ? WHERE id = ?", (now, batch.id))
            return True

        if await self._run(change):
            self._folder.count(batch.owner, -2 * MIN_FILE_BYTES)

    async def finalize(self, batch: OpenBatch, ending: Status) -> None:
        """Record that a batch runs no more lines."""
        now = int(self._now())

        def change(on: sqlite3.Connection) -> None:
            on.execute("UPDATE batches SET ending = ? WHERE id = ?", (ending, batch.id))
            if status_of(on, batch.id) == "in_progress":
                change_batch(on, batch.id, "finalizing", finalizing_at=now)

        await self._run(change)

    async def end(self, batch: OpenBatch, ending: Status) -> None:
        """End a batch whose lines have all ended; its owner can then read the files."""
        now = int(self._now())

        def change(on: sqlite3.Connection) -> int:
            row = on.execute(
                "SELECT output_id, output_bytes, error_id, error_bytes, output_lives_s "
                "FROM batches WHERE number = ?",
                (batch.number,),
            ).fetchone()
            ids: dict[str, str] = {}
            for kind, name, num_bytes in (("output", *row[:2]), ("error", *row[2:4])):
                if not num_bytes:
                    self._folder.remove(name)
                else:
                    self._folder.write(name, num_bytes, b"")  # truncates the file
                    ids[f"{kind}_file_id"] = name
                    label = f"{batch.id}_{kind}.jsonl"
                    file = DiskFile(
                        name, label, "batch_output", _JSONL, num_bytes, now, now + row[4]
                    )
                    insert(on, batch.owner, file)
            change_batch(on, batch.id, ending, **{_OVER[ending]: now}, **ids)
            on.execute(
                "UPDATE batches SET ended_at = ?, total = max(total, completed + failed) "
                "WHERE number = ?",
                (now, batch.number),
            )
            return 2 - len(ids)

        num_empty = await self._run(change)
        self._folder.count(batch.owner, -num_empty * MIN_FILE_BYTES)

    async def forget_old(self) -> None:
        """Delete batches that ended long ago."""
        now = self._now()

        def forget(on: sqlite3.Connection) -> None:
            on.execute("DELETE FROM batches WHERE ended_at < ?", (now - KEPT_S,))

        await self._folder.run_deletion(forget)
