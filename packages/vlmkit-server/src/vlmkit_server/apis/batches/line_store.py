"""Stores the lines of batches in the database: which are left, and the results of the others.

One transaction appends an answer to the output file, counts it, and deletes its line. So whenever
the process ends, a line has one answer or none. Bytes of an unfinished transaction lie beyond the
file's counted size, and are overwritten.
"""

import itertools
import sqlite3
from collections.abc import Iterable, Sequence

from vlmkit_server.apis.batches.input_lines import LineSpan
from vlmkit_server.apis.batches.output_lines import Used
from vlmkit_server.apis.batches.records import Done, TakenLine
from vlmkit_server.storage.data_folder import Folder, counted_bytes


class LineStore:
    """Stores lines. It is used in the event loop's thread.

    Args:
        folder: the data folder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._run = folder.database.run

    async def add_lines(self, batch: int, spans: Sequence[LineSpan], *, is_first: bool) -> bool:
        """Store lines' positions; tell whether the batch is still being validated."""

        def add(on: sqlite3.Connection) -> bool:
            if is_first:  # left by an earlier check that did not end
                on.execute("DELETE FROM lines WHERE batch = ?", (batch,))
            on.executemany(
                "INSERT INTO lines (batch, number, start, length) VALUES (?, ?, ?, ?)",
                [(batch, *span) for span in spans],
            )
            ((status,),) = on.execute("SELECT status FROM batches WHERE number = ?", (batch,))
            if status != "validating":
                on.execute("DELETE FROM lines WHERE batch = ?", (batch,))
            return bool(status == "validating")

        return await self._run(add)

    async def take(self, batch: int, num: int, *, number: int | None = None) -> list[TakenLine]:
        """Return the next lines, and mark them as running; fewer if there are no more.

        Args:
            batch: the batch's number.
            num: how many lines.
            number: the number of the only line wanted.
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

    async def release(self, batch: int, line: int, *, counts: bool) -> None:
        """Mark a line as waiting again, behind lines with fewer attempts.

        Args:
            batch: the batch's number.
            line: the line's number.
            counts: whether the attempt counts: the line may have caused the failure.
        """

        def change(on: sqlite3.Connection) -> None:
            on.execute(
                "UPDATE lines SET is_asked = 0, attempts = attempts - ?, postponed = postponed + 1 "
                "WHERE batch = ? AND number = ?",
                (0 if counts else 1, batch, line),
            )

        await self._run(change)

    async def release_all(self) -> None:
        """Mark all running lines as waiting; their attempts do not count."""

        def change(on: sqlite3.Connection) -> None:
            on.execute("UPDATE lines SET is_asked = 0, attempts = attempts - 1 WHERE is_asked = 1")

        await self._run(change)

    async def suspects(self) -> list[tuple[int, int]]:
        """Return the batch and number of lines that ran when a process was killed."""

        def read(on: sqlite3.Connection) -> list[tuple[int, int]]:
            return on.execute("SELECT batch, number FROM lines WHERE attempts > 0").fetchall()

        return await self._run(read)

    async def finish(self, done: Iterable[Done]) -> None:
        """Store the results of lines, all or none; a line that has ended is skipped.

        Raises:
            Unavailable: they cannot be stored now.
        """
        by_file = itertools.groupby(sorted(done, key=_file_of), key=_file_of)
        groups = [(file, list(each)) for file, each in by_file]

        def keep(on: sqlite3.Connection) -> list[tuple[bytes, int]]:
            return [_append(on, self._folder, *file, each) for file, each in groups]

        for owner, num_bytes in await self._run(keep):
            self._folder.count(owner, num_bytes)

    async def reset(self, batch: int) -> bool:
        """Mark all unanswered lines of a batch as waiting; tell whether there are any."""

        def change(on: sqlite3.Connection) -> bool:
            on.execute("UPDATE lines SET is_asked = 0 WHERE batch = ?", (batch,))
            left = on.execute("SELECT 1 FROM lines WHERE batch = ? LIMIT 1", (batch,))
            return left.fetchone() is not None

        return await self._run(change)

    async def left(self, batch: int, num: int) -> list[TakenLine]:
        """Return some of the unanswered lines."""

        def read(on: sqlite3.Connection) -> list[TakenLine]:
            rows = on.execute(
                "SELECT number, start, length, attempts FROM lines WHERE batch = ? LIMIT ?",
                (batch, num),
            )
            return [TakenLine(*row) for row in rows]

        return await self._run(read)


def _file_of(done: Done) -> tuple[int, bool]:
    return done.batch, done.is_error


def _append(
    on: sqlite3.Connection, folder: Folder, batch: int, is_error: bool, done: list[Done]
) -> tuple[bytes, int]:
    """Append results to a file; return its owner, and by how much its counted size grows."""
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
    totals = [sum(tokens) for tokens in zip(*(each.used for each in new), strict=True)] or Used()
    num_left_out = sum(each.is_left_out for each in new)
    more = ", ".join(f"{field} = {field} + ?" for field in Used._fields)
    on.execute(
        f"UPDATE batches SET {kind}_bytes = ?, {count} = {count} + ?, "  # noqa: S608
        f"left_out = left_out + ?, {more} WHERE number = ?",
        (num_bytes + len(content), len(new), num_left_out, *totals, batch),
    )
    return owner, counted_bytes(num_bytes + len(content)) - counted_bytes(num_bytes)
