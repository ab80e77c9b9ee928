"""Rows of batches in the database: find them, convert them to bodies, and change them.

It is used within a transaction. :mod:`vlmkit_server.apis.batches.line_store` has the lines.
"""

import sqlite3
from typing import Any

import msgspec
from msgspec.structs import replace

from vlmkit_server.apis.batches.output_lines import Used
from vlmkit_server.apis.batches.records import Kind
from vlmkit_server.apis.batches.wire import (
    BatchBody,
    BatchUsage,
    InputDetails,
    OutputDetails,
    RequestCounts,
    Status,
)
from vlmkit_server.http.errors import NotStored, Overloaded

MAX_BATCHES = 1000  # of one owner
MAX_OPEN = 100  # of those, without an end
MAX_ALL_OPEN = 1000  # of all owners
COLUMNS = "body, status, total, completed, failed, {}".format(", ".join(Used._fields))
_BODY = msgspec.json.Decoder(BatchBody)


def found(on: sqlite3.Connection, batch_id: str, owner: bytes, kind: Kind) -> tuple[Any, ...]:
    """Return a batch's row.

    Raises:
        NotStored: it does not exist, or has another owner.
    """
    row: tuple[Any, ...] | None = on.execute(
        f"SELECT {COLUMNS} FROM batches WHERE id = ? AND owner = ? AND id GLOB ?",  # noqa: S608
        (batch_id, owner, f"{kind}_*"),
    ).fetchone()
    if row is None:
        raise NotStored(
            "no batch of this id is stored here", param="batch_id", code="batch_not_found"
        )
    return row


def body_of(row: tuple[Any, ...]) -> BatchBody:
    """Return a batch's body, for its owner."""
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


def status_of(on: sqlite3.Connection, batch_id: str) -> str:
    """Return the status of a batch."""
    ((status,),) = on.execute("SELECT status FROM batches WHERE id = ?", (batch_id,))
    return str(status)


def change_batch(on: sqlite3.Connection, batch_id: str, status: Status, **fields: Any) -> None:
    """Change the status of a batch."""
    ((body,),) = on.execute("SELECT body FROM batches WHERE id = ?", (batch_id,))
    changed = replace(_BODY.decode(body), status=status, **fields)
    on.execute(
        "UPDATE batches SET status = ?, body = ? WHERE id = ?",
        (status, msgspec.json.encode(changed), batch_id),
    )


def evict_oldest(on: sqlite3.Connection, owner: bytes) -> None:
    """Delete the batch of an owner that ended first, if the owner has too many."""
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
