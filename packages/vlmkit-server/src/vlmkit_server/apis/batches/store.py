"""Batches in the database, as clients create, read and cancel them.

:mod:`vlmkit_server.apis.batches.line_store` has their lines and results, and
:mod:`vlmkit_server.apis.batches.lifecycle` the changes of their status.
"""

import secrets
import sqlite3
import time
from collections.abc import Callable

import msgspec

from vlmkit.errors import RequestError
from vlmkit_server.apis.batches.lifecycle import BatchLifecycle
from vlmkit_server.apis.batches.line_store import LineStore
from vlmkit_server.apis.batches.records import Kind
from vlmkit_server.apis.batches.rows import COLUMNS, body_of, change_batch, evict_oldest, found
from vlmkit_server.apis.batches.wire import (
    MESSAGES,
    AnyEndpoint,
    BatchBody,
    BatchRequest,
)
from vlmkit_server.http.caller import Caller
from vlmkit_server.storage.data_folder import MIN_FILE_BYTES, Folder
from vlmkit_server.storage.disk_store import BATCH_LIVES_S

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_WINDOW_S = 30 * 86_400


class BatchStore:
    """Stores batches. It is used in the event loop's thread.

    Args:
        folder: the data folder.
        now: returns the time in seconds since 1970.

    Attributes:
        folder: the data folder.
        lines: the lines of all batches.
        lifecycle: changes the status of batches.
        now: returns the time.
    """

    def __init__(self, folder: Folder, now: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.now = now
        self.lines = LineStore(folder)
        self.lifecycle = BatchLifecycle(folder, now)
        self._run = folder.database.run

    async def create(
        self, request: BatchRequest, caller: Caller, endpoint: AnyEndpoint | None = None
    ) -> BatchBody:
        """Store a new batch, whose file exists and is for batches.

        Args:
            request: the client's request.
            caller: the client.
            endpoint: the endpoint of its lines, if it differs from the request's.

        Raises:
            RequestError: its window is too long.
            NotStored: there is no such file.
            Overloaded: its owner has too many unfinished batches.
            Unavailable: it cannot be stored.
        """
        now = int(self.now())
        kind: Kind = "msgbatch" if endpoint == MESSAGES else "batch"
        window_s = window(request.completion_window)
        body = BatchBody(
            id=f"{kind}_{secrets.token_hex(24)}",
            endpoint=endpoint or request.endpoint,
            input_file_id=request.input_file_id,
            completion_window=request.completion_window,
            created_at=now,
            expires_at=now + window_s,
            metadata=request.metadata,
        )
        after = request.output_expires_after
        values = {
            "id": body.id,
            "owner": caller.owner,
            "tenant": caller.tenant,
            "account": caller.account,
            "key_id": caller.key_id,
            "endpoint": body.endpoint,
            "status": body.status,
            "body": msgspec.json.encode(body),
            "input_id": request.input_file_id,
            "output_id": f"file-{secrets.token_hex(24)}",
            "error_id": f"file-{secrets.token_hex(24)}",
            "output_lives_s": after.seconds if after else BATCH_LIVES_S,
            "expires_at": body.expires_at,
        }

        def add(on: sqlite3.Connection) -> None:
            evict_oldest(on, caller.owner)
            names, parameters = ", ".join(values), ", ".join("?" * len(values))
            on.execute(
                f"INSERT INTO batches ({names}) VALUES ({parameters})",  # noqa: S608
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
        """Return the current state of a batch.

        Raises:
            NotStored: it does not exist, or has another owner.
        """

        def read(on: sqlite3.Connection) -> BatchBody:
            return body_of(found(on, batch_id, owner, kind))

        return await self._run(read)

    async def page(
        self,
        owner: bytes,
        num: int,
        after: str | None = None,
        before: str | None = None,
        kind: Kind = "batch",
    ) -> list[BatchBody]:
        """Return a page of an owner's batches, the newest first.

        Args:
            owner: the owner.
            num: how many.
            after: return batches after this one.
            before: return the nearest batches before this one.
            kind: the API's kind.

        Raises:
            RequestError: that batch does not exist.
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
            page = [body_of(row) for row in rows]
            return page if before is None else page[::-1]

        return await self._run(read)

    async def cancel(self, batch_id: str, owner: bytes, kind: Kind = "batch") -> BatchBody:
        """Cancel a batch; one that has ended, or is ending, stays as it is.

        Raises:
            NotStored: it does not exist, or has another owner.
        """
        now = int(self.now())

        def change(on: sqlite3.Connection) -> BatchBody:
            row = found(on, batch_id, owner, kind)
            if row[1] in ("validating", "in_progress"):
                change_batch(on, batch_id, "cancelling", cancelling_at=now)
                on.execute("UPDATE batches SET ending = 'cancelled' WHERE id = ?", (batch_id,))
                row = found(on, batch_id, owner, kind)
            return body_of(row)

        return await self._run(change)

    async def num_left_out(self, batch_id: str) -> int:
        """Return how many lines had no answer when their batch ended."""

        def read(on: sqlite3.Connection) -> int:
            row = on.execute("SELECT left_out FROM batches WHERE id = ?", (batch_id,)).fetchone()
            return int(row[0]) if row else 0

        return await self._run(read)

    async def delete(self, batch_id: str, owner: bytes) -> None:
        """Delete a batch that has ended; its files stay."""

        def forget(on: sqlite3.Connection) -> None:
            on.execute(
                "DELETE FROM batches WHERE id = ? AND owner = ? AND ended_at IS NOT NULL",
                (batch_id, owner),
            )

        await self.folder.run_deletion(forget)


def window(text: str) -> int:
    """Return the length of a completion window in seconds.

    Raises:
        RequestError: it is too long.
    """
    window_s = int(text[:-1]) * _SECONDS[text[-1]]
    if window_s > _MAX_WINDOW_S:
        raise RequestError("completion_window is over 30 days", param="completion_window")
    return window_s
