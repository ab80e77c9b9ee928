"""Batches in the database: what was asked for, and how far each is.

Their lines and results are in :mod:`vlmkit_server.apis.batches.line_store`.
"""

import secrets
import sqlite3
import time
from collections.abc import Callable

import msgspec

from vlmkit.errors import RequestError
from vlmkit_server.apis.batches.line_store import LineStore
from vlmkit_server.apis.batches.records import Kind, OpenBatch
from vlmkit_server.apis.batches.rows import COLUMNS, change_batch, found, make_way, status_of, told
from vlmkit_server.apis.batches.wire import (
    MESSAGES,
    AnyEndpoint,
    BatchBody,
    BatchErrors,
    BatchRequest,
    Status,
)
from vlmkit_server.apis.files.disk_store import BATCH_LIVES_S, DiskFile, insert
from vlmkit_server.http.caller import Caller
from vlmkit_server.storage.data_folder import MIN_FILE_BYTES, Folder

KEPT_S = 30 * 86_400  # after its end
_JSONL = "application/jsonl"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_WINDOW_S = 30 * 86_400
_OVER: dict[Status, str] = {
    "completed": "completed_at",
    "expired": "expired_at",
    "cancelled": "cancelled_at",
}


_OPEN = "number, id, owner, tenant, account, key_id, status, ending, endpoint, input_id, expires_at"


class BatchStore:
    """Keeps batches. Is called in the event loop's thread.

    Args:
        folder: where.
        now: tells the time in seconds since 1970.

    Attributes:
        folder: where.
        lines: of all batches.
        now: tells the time.
    """

    def __init__(self, folder: Folder, now: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.now = now
        self.lines = LineStore(folder)
        self._run = folder.database.run

    # What clients ask for.

    async def create(
        self, asked: BatchRequest, caller: Caller, endpoint: AnyEndpoint | None = None
    ) -> BatchBody:
        """Keep a new batch, whose file is there and is for batches.

        Args:
            asked: what was asked for.
            caller: who asked.
            endpoint: what its lines are for, where that is not said by what was asked for.

        Raises:
            RequestError: its window is too long.
            NotStored: there is no such file.
            Overloaded: its owner has too many that have not ended.
            Unavailable: it cannot be kept.
        """
        now = int(self.now())
        kind: Kind = "msgbatch" if endpoint == MESSAGES else "batch"
        window_s = window(asked.completion_window)
        body = BatchBody(
            id=f"{kind}_{secrets.token_hex(24)}",
            endpoint=endpoint or asked.endpoint,
            input_file_id=asked.input_file_id,
            completion_window=asked.completion_window,
            created_at=now,
            expires_at=now + window_s,
            metadata=asked.metadata,
        )
        after = asked.output_expires_after
        values = {
            "id": body.id,
            "owner": caller.owner,
            "tenant": caller.tenant,
            "account": caller.account,
            "key_id": caller.key_id,
            "endpoint": body.endpoint,
            "status": body.status,
            "body": msgspec.json.encode(body),
            "input_id": asked.input_file_id,
            "output_id": f"file-{secrets.token_hex(24)}",
            "error_id": f"file-{secrets.token_hex(24)}",
            "output_lives_s": after.seconds if after else BATCH_LIVES_S,
            "expires_at": body.expires_at,
        }

        def add(on: sqlite3.Connection) -> None:
            make_way(on, caller.owner)
            names, places = ", ".join(values), ", ".join("?" * len(values))
            on.execute(
                f"INSERT INTO batches ({names}) VALUES ({places})",  # noqa: S608
                tuple(values.values()),
            )

        self.folder.reserve(caller.owner, 2 * MIN_FILE_BYTES)
        try:
            await self._run(add)
        except BaseException:
            self.folder.count(caller.owner, -2 * MIN_FILE_BYTES)
            raise
        return body

    async def find(self, batch_id: str, owner: bytes, kind: Kind = "batch") -> BatchBody:
        """Return a batch as it is now.

        Raises:
            NotStored: there is none, or not of this owner.
        """

        def read(on: sqlite3.Connection) -> BatchBody:
            return told(found(on, batch_id, owner, kind))

        return await self._run(read)

    async def page(
        self,
        owner: bytes,
        num: int,
        after: str | None = None,
        before: str | None = None,
        kind: Kind = "batch",
    ) -> list[BatchBody]:
        """Return some of an owner's batches, the newest first.

        Args:
            owner: whose.
            num: how many.
            after: the one that they come after.
            before: the one that they come before; the nearest ones are taken.
            kind: whose API's.

        Raises:
            RequestError: that one is not there.
        """
        beside = after if before is None else before

        def read(on: sqlite3.Connection) -> list[BatchBody]:
            number = 2**62
            if beside is not None:
                beside_row = on.execute(
                    "SELECT number FROM batches WHERE id = ? AND owner = ? AND id GLOB ?",
                    (beside, owner, f"{kind}_*"),
                ).fetchone()
                if beside_row is None:
                    field = "after" if before is None else "before"
                    field += "" if kind == "batch" else "_id"
                    raise RequestError(f"{field} names no batch that is stored here", param=field)
                (number,) = beside_row
            where = "number < ? ORDER BY number DESC"
            if before is not None:
                where = "number > ? ORDER BY number"
            rows = on.execute(
                f"SELECT {COLUMNS} FROM batches "  # noqa: S608
                f"WHERE owner = ? AND id GLOB ? AND {where} LIMIT ?",
                (owner, f"{kind}_*", number, num),
            )
            page = [told(row) for row in rows]
            return page if before is None else page[::-1]

        return await self._run(read)

    async def cancel(self, batch_id: str, owner: bytes, kind: Kind = "batch") -> BatchBody:
        """Let a batch end; one that is over, or ends anyway, stays as it is.

        Raises:
            NotStored: there is none, or not of this owner.
        """
        now = int(self.now())

        def change(on: sqlite3.Connection) -> BatchBody:
            row = found(on, batch_id, owner, kind)
            if row[1] in ("validating", "in_progress"):
                change_batch(on, batch_id, "cancelling", cancelling_at=now)
                on.execute("UPDATE batches SET ending = 'cancelled' WHERE id = ?", (batch_id,))
                row = found(on, batch_id, owner, kind)
            return told(row)

        return await self._run(change)

    # What is done with them.

    async def restore(self) -> list[OpenBatch]:
        """Return the batches that have not ended; nothing of them is being asked."""

        def read(on: sqlite3.Connection) -> list[OpenBatch]:
            on.execute("UPDATE lines SET is_asked = 0 WHERE is_asked = 1")
            rows = on.execute(
                f"SELECT {_OPEN} "  # noqa: S608
                "FROM batches WHERE ended_at IS NULL ORDER BY number"
            )
            return [OpenBatch._make(row) for row in rows]

        return await self._run(read)

    async def opened(self, batch_id: str) -> OpenBatch:
        """Return a batch that was made just now."""

        def read(on: sqlite3.Connection) -> OpenBatch:
            row = on.execute(
                f"SELECT {_OPEN} "  # noqa: S608
                "FROM batches WHERE id = ?",
                (batch_id,),
            ).fetchone()
            return OpenBatch._make(row)

        return await self._run(read)

    async def begin(self, batch_id: str, total: int, model: str | None) -> None:
        """Note that a batch was checked and may be asked, unless it was cancelled."""
        now = int(self.now())

        def change(on: sqlite3.Connection) -> None:
            on.execute("UPDATE batches SET total = ? WHERE id = ?", (total, batch_id))
            if status_of(on, batch_id) == "validating":
                change_batch(on, batch_id, "in_progress", in_progress_at=now, model=model)

        await self._run(change)

    async def fail(self, batch: OpenBatch, errors: BatchErrors) -> None:
        """Note that a batch cannot be asked, and why, unless it was cancelled."""
        now = int(self.now())

        def change(on: sqlite3.Connection) -> bool:
            if status_of(on, batch.id) != "validating":
                return False
            on.execute("DELETE FROM lines WHERE batch = ?", (batch.number,))
            change_batch(on, batch.id, "failed", failed_at=now, errors=errors)
            on.execute("UPDATE batches SET ended_at = ? WHERE id = ?", (now, batch.id))
            return True

        if await self._run(change):
            self.folder.count(batch.owner, -2 * MIN_FILE_BYTES)

    async def finalize(self, batch: OpenBatch, ending: Status) -> None:
        """Note that no line of a batch is asked any more."""
        now = int(self.now())

        def change(on: sqlite3.Connection) -> None:
            on.execute("UPDATE batches SET ending = ? WHERE id = ?", (ending, batch.id))
            if status_of(on, batch.id) == "in_progress":
                change_batch(on, batch.id, "finalizing", finalizing_at=now)

        await self._run(change)

    async def end(self, batch: OpenBatch, ending: Status) -> None:
        """End a batch whose lines all have; its owner then finds the files of them."""
        now = int(self.now())

        def change(on: sqlite3.Connection) -> int:
            row = on.execute(
                "SELECT output_id, output_bytes, error_id, error_bytes, output_lives_s "
                "FROM batches WHERE number = ?",
                (batch.number,),
            ).fetchone()
            ids: dict[str, str] = {}
            for kind, name, num_bytes in (("output", *row[:2]), ("error", *row[2:4])):
                if not num_bytes:
                    self.folder.remove(name)
                else:
                    self.folder.write(name, num_bytes, b"")  # and nothing behind it
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
        self.folder.count(batch.owner, -num_empty * MIN_FILE_BYTES)

    async def num_left_out(self, batch_id: str) -> int:
        """Return how many lines had no answer when their batch ended."""

        def read(on: sqlite3.Connection) -> int:
            row = on.execute("SELECT left_out FROM batches WHERE id = ?", (batch_id,)).fetchone()
            return int(row[0]) if row else 0

        return await self._run(read)

    async def delete(self, batch_id: str, owner: bytes) -> None:
        """Forget a batch that has ended; its files stay."""

        def forget(on: sqlite3.Connection) -> None:
            on.execute(
                "DELETE FROM batches WHERE id = ? AND owner = ? AND ended_at IS NOT NULL",
                (batch_id, owner),
            )

        await self._run(forget)

    async def forget_old(self) -> None:
        """Forget batches that ended long ago."""
        now = self.now()

        def forget(on: sqlite3.Connection) -> None:
            on.execute("DELETE FROM batches WHERE ended_at < ?", (now - KEPT_S,))

        await self._run(forget)


def window(said: str) -> int:
    """Return how many seconds a completion window has.

    Raises:
        RequestError: it is too long.
    """
    window_s = int(said[:-1]) * _SECONDS[said[-1]]
    if window_s > _MAX_WINDOW_S:
        raise RequestError("completion_window is over 30 days", param="completion_window")
    return window_s
