"""Batches and their lines in the database: what is asked, what is answered, and how far each is.

An answer is written behind those before it and counted in one transaction, together with its line,
which is gone then: so that, whenever the process ends, every line has one answer or none yet. What
an unfinished transaction left in a file is behind the bytes that count, and is written over.
"""

import itertools
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from vlmkit.errors import RequestError
from vlmkit.server.batches.entries import Used
from vlmkit.server.batches.lines import Place
from vlmkit.server.batches.wire import (
    MESSAGES,
    AnyEndpoint,
    BatchBody,
    BatchErrors,
    BatchRequest,
    BatchUsage,
    InputDetails,
    OutputDetails,
    RequestCounts,
    Status,
)
from vlmkit.server.files.disk import BATCH_LIVES_S, DiskFile, insert
from vlmkit.server.http.caller import Caller
from vlmkit.server.http.errors import NotStored, Overloaded
from vlmkit.server.kept.folder import LEAST_BYTES, Folder, room_of

MAX_BATCHES = 1000  # of one owner
MAX_OPEN = 100  # of those, that have not ended
MAX_ALL_OPEN = 1000  # of everybody
KEPT_S = 30 * 86_400  # after its end
_JSONL = "application/jsonl"
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_WINDOW_S = 30 * 86_400
_BODY = msgspec.json.Decoder(BatchBody)
_OVER: dict[Status, str] = {
    "completed": "completed_at",
    "expired": "expired_at",
    "cancelled": "cancelled_at",
}
_COLUMNS = "body, status, total, completed, failed, {}".format(", ".join(Used._fields))


Kind = Literal["batch", "msgbatch"]
"""How ids of batches begin: of OpenAI's API, and of Anthropic's."""

_OPEN = "number, id, owner, tenant, account, key_id, status, ending, endpoint, input_id, expires_at"


class OpenBatch(NamedTuple):
    """A batch that has not ended.

    Attributes:
        number: of all batches that there ever were.
        id: how its owner calls it.
        owner: whose it is.
        tenant: whose caches it uses.
        account: on whose account is what it takes.
        key_id: what the key is called with which it was made, if any.
        status: how far it is.
        ending: what it will have been, once that is known.
        endpoint: what its lines are for.
        input_id: the file that has them.
        expires_at: when it ends, whatever is left.
    """

    number: int
    id: str
    owner: bytes
    tenant: str
    account: str
    key_id: str
    status: Status
    ending: Status | None
    endpoint: AnyEndpoint
    input_id: str
    expires_at: int

    def caller(self, priority: int) -> Caller:
        """Return who asks its lines."""
        return Caller(
            self.owner,
            self.tenant,
            self.account,
            is_operator=False,
            key_id=self.key_id,
            priority=priority,
        )


class TakenLine(NamedTuple):
    """A line that is to be asked.

    Attributes:
        number: counted from 1.
        start: its first byte in the file.
        num_bytes: how many it has.
        attempts: how often it was asked before, and nobody learnt what came of it.
    """

    number: int
    start: int
    num_bytes: int
    attempts: int


class Done(NamedTuple):
    """What came of a line.

    Attributes:
        batch: the number of its batch.
        line: its own.
        entry: what is written of it.
        is_error: in which file.
        used: the tokens that it took.
        is_left_out: whether its batch ended before it was answered.
    """

    batch: int
    line: int
    entry: bytes
    is_error: bool
    used: Used = Used()
    is_left_out: bool = False


class BatchStore:
    """Keeps batches. Is called in the event loop's thread.

    Args:
        folder: where.
        now: tells the time in seconds since 1970.
    """

    def __init__(self, folder: Folder, now: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.now = now
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
            _make_way(on, caller.owner)
            names, places = ", ".join(values), ", ".join("?" * len(values))
            on.execute(
                f"INSERT INTO batches ({names}) VALUES ({places})",  # noqa: S608
                tuple(values.values()),
            )

        self.folder.take(caller.owner, 2 * LEAST_BYTES)
        try:
            await self._run(add)
        except BaseException:
            self.folder.count(caller.owner, -2 * LEAST_BYTES)
            raise
        return body

    async def find(self, batch_id: str, owner: bytes, kind: Kind = "batch") -> BatchBody:
        """Return a batch as it is now.

        Raises:
            NotStored: there is none, or not of this owner.
        """

        def read(on: sqlite3.Connection) -> BatchBody:
            return _told(_found(on, batch_id, owner, kind))

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
                found = on.execute(
                    "SELECT number FROM batches WHERE id = ? AND owner = ? AND id GLOB ?",
                    (beside, owner, f"{kind}_*"),
                ).fetchone()
                if found is None:
                    field = "after" if before is None else "before"
                    raise RequestError(f"{field} names no batch that is stored here", param=field)
                (number,) = found
            where = "number < ? ORDER BY number DESC"
            if before is not None:
                where = "number > ? ORDER BY number"
            rows = on.execute(
                f"SELECT {_COLUMNS} FROM batches "  # noqa: S608
                f"WHERE owner = ? AND id GLOB ? AND {where} LIMIT ?",
                (owner, f"{kind}_*", number, num),
            )
            page = [_told(row) for row in rows]
            return page if before is None else page[::-1]

        return await self._run(read)

    async def cancel(self, batch_id: str, owner: bytes, kind: Kind = "batch") -> BatchBody:
        """Let a batch end; one that is over, or ends anyway, stays as it is.

        Raises:
            NotStored: there is none, or not of this owner.
        """
        now = int(self.now())

        def change(on: sqlite3.Connection) -> BatchBody:
            row = _found(on, batch_id, owner, kind)
            if row[1] in ("validating", "in_progress"):
                _change(on, batch_id, "cancelling", cancelling_at=now)
                on.execute("UPDATE batches SET ending = 'cancelled' WHERE id = ?", (batch_id,))
                row = _found(on, batch_id, owner, kind)
            return _told(row)

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

    async def add_lines(self, batch: int, places: Sequence[Place], *, is_first: bool) -> bool:
        """Note where lines are; tell whether the batch is still to be checked."""

        def add(on: sqlite3.Connection) -> bool:
            if is_first:  # what a check before this one found, which did not end
                on.execute("DELETE FROM lines WHERE batch = ?", (batch,))
            on.executemany(
                "INSERT INTO lines (batch, number, start, length) VALUES (?, ?, ?, ?)",
                [(batch, *place) for place in places],
            )
            ((status,),) = on.execute("SELECT status FROM batches WHERE number = ?", (batch,))
            if status != "validating":
                on.execute("DELETE FROM lines WHERE batch = ?", (batch,))
            return bool(status == "validating")

        return await self._run(add)

    async def begin(self, batch_id: str, total: int, model: str | None) -> None:
        """Note that a batch was checked and may be asked, unless it was cancelled."""
        now = int(self.now())

        def change(on: sqlite3.Connection) -> None:
            on.execute("UPDATE batches SET total = ? WHERE id = ?", (total, batch_id))
            if _status(on, batch_id) == "validating":
                _change(on, batch_id, "in_progress", in_progress_at=now, model=model)

        await self._run(change)

    async def fail(self, batch: OpenBatch, errors: BatchErrors) -> None:
        """Note that a batch cannot be asked, and why, unless it was cancelled."""
        now = int(self.now())

        def change(on: sqlite3.Connection) -> bool:
            if _status(on, batch.id) != "validating":
                return False
            on.execute("DELETE FROM lines WHERE batch = ?", (batch.number,))
            _change(on, batch.id, "failed", failed_at=now, errors=errors)
            on.execute("UPDATE batches SET ended_at = ? WHERE id = ?", (now, batch.id))
            return True

        if await self._run(change):
            self.folder.count(batch.owner, -2 * LEAST_BYTES)

    async def take(self, batch: int, num: int, *, number: int | None = None) -> list[TakenLine]:
        """Return the next lines, which are noted as asked; fewer where there are no more.

        Args:
            batch: whose.
            num: how many.
            number: of the only one that is wanted.
        """
        one = "" if number is None else f" AND number = {number:d}"

        def take(on: sqlite3.Connection) -> list[TakenLine]:
            rows = on.execute(
                "SELECT number, start, length, attempts FROM lines "  # noqa: S608
                f"WHERE batch = ? AND is_asked = 0{one} ORDER BY postponed, number LIMIT ?",
                (batch, num),
            ).fetchall()
            on.executemany(
                "UPDATE lines SET is_asked = 1, attempts = attempts + 1 "
                "WHERE batch = ? AND number = ?",
                [(batch, row[0]) for row in rows],
            )
            return [TakenLine(*row) for row in rows]

        return await self._run(take)

    async def give_back(self, batch: int, line: int, *, counts: bool) -> None:
        """Note that a line is to be asked again, after those that were asked less often.

        Args:
            batch: whose.
            line: which.
            counts: whether the line may be at fault.
        """

        def change(on: sqlite3.Connection) -> None:
            on.execute(
                "UPDATE lines SET is_asked = 0, attempts = attempts - ?, postponed = postponed + 1 "
                "WHERE batch = ? AND number = ?",
                (0 if counts else 1, batch, line),
            )

        await self._run(change)

    async def give_all_back(self) -> None:
        """Note that nothing is being asked, and that no line is at fault for that."""

        def change(on: sqlite3.Connection) -> None:
            on.execute("UPDATE lines SET is_asked = 0, attempts = attempts - 1 WHERE is_asked = 1")

        await self._run(change)

    async def suspects(self) -> list[tuple[int, int]]:
        """Return the batch and the number of lines that were asked when a process was killed."""

        def read(on: sqlite3.Connection) -> list[tuple[int, int]]:
            return on.execute("SELECT batch, number FROM lines WHERE attempts > 0").fetchall()

        return await self._run(read)

    async def finish(self, done: Iterable[Done]) -> None:
        """Keep what came of lines, all of it or nothing; of a line that has ended, nothing.

        Raises:
            Unavailable: it cannot be kept now.
        """
        by_file = itertools.groupby(sorted(done, key=_file_of), key=_file_of)
        groups = [(file, list(each)) for file, each in by_file]

        def keep(on: sqlite3.Connection) -> list[tuple[bytes, int]]:
            return [_append(on, self.folder, *file, each) for file, each in groups]

        for owner, num_bytes in await self._run(keep):
            self.folder.count(owner, num_bytes)

    async def finalize(self, batch: OpenBatch, ending: Status) -> None:
        """Note that no line of a batch is asked any more."""
        now = int(self.now())

        def change(on: sqlite3.Connection) -> None:
            on.execute("UPDATE batches SET ending = ? WHERE id = ?", (ending, batch.id))
            if _status(on, batch.id) == "in_progress":
                _change(on, batch.id, "finalizing", finalizing_at=now)

        await self._run(change)

    async def ask_again(self, batch: int) -> bool:
        """Let all lines of a batch wait that have no answer; tell whether there are any."""

        def change(on: sqlite3.Connection) -> bool:
            on.execute("UPDATE lines SET is_asked = 0 WHERE batch = ?", (batch,))
            left = on.execute("SELECT 1 FROM lines WHERE batch = ? LIMIT 1", (batch,))
            return left.fetchone() is not None

        return await self._run(change)

    async def left(self, batch: int, num: int) -> list[TakenLine]:
        """Return some of the lines that have no answer."""

        def read(on: sqlite3.Connection) -> list[TakenLine]:
            rows = on.execute(
                "SELECT number, start, length, attempts FROM lines WHERE batch = ? LIMIT ?",
                (batch, num),
            )
            return [TakenLine(*row) for row in rows]

        return await self._run(read)

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
            _change(on, batch.id, ending, **{_OVER[ending]: now}, **ids)
            on.execute(
                "UPDATE batches SET ended_at = ?, total = max(total, completed + failed) "
                "WHERE number = ?",
                (now, batch.number),
            )
            return 2 - len(ids)

        num_empty = await self._run(change)
        self.folder.count(batch.owner, -num_empty * LEAST_BYTES)

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


def _found(on: sqlite3.Connection, batch_id: str, owner: bytes, kind: Kind) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = on.execute(
        f"SELECT {_COLUMNS} FROM batches WHERE id = ? AND owner = ? AND id GLOB ?",  # noqa: S608
        (batch_id, owner, f"{kind}_*"),
    ).fetchone()
    if row is None:
        raise NotStored(
            "no batch of this id is stored here", param="batch_id", code="batch_not_found"
        )
    return row


def _told(row: tuple[Any, ...]) -> BatchBody:
    """Return a batch as its owner sees it."""
    body, _, total, completed, failed, *used = row
    tokens = Used(*used)
    usage = BatchUsage(
        tokens.input_tokens,
        InputDetails(tokens.cached_tokens),
        tokens.output_tokens,
        OutputDetails(tokens.reasoning_tokens),
        tokens.input_tokens + tokens.output_tokens,
    )
    counts = RequestCounts(total, completed, failed)
    return replace(_BODY.decode(body), request_counts=counts, usage=usage)


def _status(on: sqlite3.Connection, batch_id: str) -> str:
    ((status,),) = on.execute("SELECT status FROM batches WHERE id = ?", (batch_id,))
    return str(status)


def _change(on: sqlite3.Connection, batch_id: str, status: Status, **fields: Any) -> None:
    """Let a batch have another status."""
    ((body,),) = on.execute("SELECT body FROM batches WHERE id = ?", (batch_id,))
    changed = replace(_BODY.decode(body), status=status, **fields)
    on.execute(
        "UPDATE batches SET status = ?, body = ? WHERE id = ?",
        (status, msgspec.json.encode(changed), batch_id),
    )


def _make_way(on: sqlite3.Connection, owner: bytes) -> None:
    """Forget the batch of an owner that ended first, if there are as many as there may be."""
    (in_all,) = on.execute("SELECT count(*) FROM batches WHERE ended_at IS NULL").fetchone()
    (num, num_open) = on.execute(
        "SELECT count(*), count(*) - count(ended_at) FROM batches WHERE owner = ?", (owner,)
    ).fetchone()
    if num_open >= MAX_OPEN or in_all >= MAX_ALL_OPEN:
        most = MAX_OPEN if num_open >= MAX_OPEN else MAX_ALL_OPEN
        raise Overloaded(
            f"{most} batches have not ended yet", hint="wait until one has, or cancel it"
        )
    if num >= MAX_BATCHES:
        on.execute(
            "DELETE FROM batches WHERE number = (SELECT number FROM batches "
            "WHERE owner = ? AND ended_at IS NOT NULL ORDER BY ended_at LIMIT 1)",
            (owner,),
        )


def _file_of(done: Done) -> tuple[int, bool]:
    return done.batch, done.is_error


def _append(
    on: sqlite3.Connection, folder: Folder, batch: int, is_error: bool, done: list[Done]
) -> tuple[bytes, int]:
    """Write behind what a file has; return whose it is and how much more room it takes."""
    kind, count = ("error", "failed") if is_error else ("output", "completed")
    new = [
        each
        for each in done
        if on.execute(
            "DELETE FROM lines WHERE batch = ? AND number = ?", (batch, each.line)
        ).rowcount
    ]
    owner, name, num_bytes = on.execute(
        f"SELECT owner, {kind}_id, {kind}_bytes FROM batches WHERE number = ?",  # noqa: S608
        (batch,),
    ).fetchone()
    content = b"".join(each.entry for each in new)
    folder.write(name, num_bytes, content)
    if not num_bytes:
        folder.sync_names()
    used = [sum(tokens) for tokens in zip(*(each.used for each in new), strict=True)] or Used()
    num_left_out = sum(each.is_left_out for each in new)
    more = ", ".join(f"{field} = {field} + ?" for field in Used._fields)
    on.execute(
        f"UPDATE batches SET {kind}_bytes = ?, {count} = {count} + ?, "  # noqa: S608
        f"left_out = left_out + ?, {more} WHERE number = ?",
        (num_bytes + len(content), len(new), num_left_out, *used, batch),
    )
    return owner, room_of(num_bytes + len(content)) - room_of(num_bytes)
