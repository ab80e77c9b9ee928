"""Converts batches to Anthropic's shapes."""

import contextlib
import datetime as dt
from collections.abc import Iterator
from typing import Literal

import msgspec

from vlmkit.errors import RequestError
from vlmkit_server.apis.batches.message_batches_wire import MessageBatch, MessageCounts, OneMessage
from vlmkit_server.apis.batches.wire import BatchBody
from vlmkit_server.storage.data_folder import Folder

PIECE_BYTES = 2**20
_ENDINGS: dict[str, Literal["expired", "canceled"]] = {
    "batch_expired": "expired",
    "batch_cancelled": "canceled",
}


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str
    message: str


class _Entry(msgspec.Struct):
    """A line of an output or error file."""

    custom_id: str
    response: _Response | None
    error: _Error | None


class _Params(msgspec.Struct):
    stream: bool | None = None


_PARAMS = msgspec.json.Decoder(_Params)
_ENTRIES = msgspec.json.Decoder(_Entry)


def check(requests: list[OneMessage], max_lines: int) -> None:
    """Refuse what no batch can contain; requests are otherwise checked when they run.

    Raises:
        RequestError: names the request.
    """
    if len(requests) > max_lines:
        raise RequestError(f"there are over {max_lines} requests", param="requests")
    if len({each.custom_id for each in requests}) < len(requests):
        raise RequestError("two requests have the same custom_id", param="requests")
    for number, each in enumerate(requests):
        place = f"requests[{number}].params"
        if not bytes(each.params).lstrip().startswith(b"{"):
            raise RequestError(f"{place}: Expected `object`", param=place)
        with contextlib.suppress(msgspec.ValidationError):  # which the route reports better
            if _PARAMS.decode(each.params).stream:
                raise RequestError(
                    f"{place}.stream is not supported in a batch",
                    param=f"{place}.stream",
                    code="unsupported_parameter",
                )


def lines(requests: list[OneMessage]) -> Iterator[bytes]:
    """Yield requests as lines of a batch's input file, in chunks."""
    chunk = bytearray()
    for each in requests:
        line = {"custom_id": each.custom_id, "url": "/v1/messages", "body": each.params}
        # A client's body may contain line breaks, but only between tokens.
        chunk += msgspec.json.encode(line).replace(b"\n", b" ") + b"\n"
        if len(chunk) >= PIECE_BYTES:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk)


def message_batch(body: BatchBody, num_left_out: int) -> MessageBatch:
    """Return a batch in Anthropic's shape."""
    counts, is_over = body.request_counts, body.ended_at is not None
    if not is_over:
        shown = MessageCounts(processing=counts.total)
    else:
        left = "canceled" if body.status == "cancelled" else "expired"
        errored = counts.failed - num_left_out
        shown = MessageCounts(0, counts.completed, errored, **{left: num_left_out})
    is_canceling = body.cancelling_at is not None and not is_over
    return MessageBatch(
        body.id,
        "ended" if is_over else "canceling" if is_canceling else "in_progress",
        shown,
        _moment(body.created_at),
        _moment(body.expires_at),
        None if body.ended_at is None else _moment(body.ended_at),
        None if body.cancelling_at is None else _moment(body.cancelling_at),
        results_url=f"/v1/messages/batches/{body.id}/results" if is_over else None,
    )


def results(folder: Folder, name: str) -> Iterator[bytes]:
    """Yield the results of a file's lines, in chunks; slow.

    Raises:
        OSError: the file is missing.
    """
    start, rest = 0, b""
    while piece := folder.read(name, start, PIECE_BYTES):
        start += len(piece)
        *whole, rest = (rest + piece).split(b"\n")
        yield b"".join(_result(line) for line in whole)


def _result(line: bytes) -> bytes:
    entry = _ENTRIES.decode(line)
    result: dict[str, object]
    if entry.response is not None and entry.response.status_code == 200:
        result = {"type": "succeeded", "message": entry.response.body}
    elif entry.response is not None:
        result = {"type": "errored", "error": entry.response.body}
    elif entry.error is not None and entry.error.code in _ENDINGS:
        result = {"type": _ENDINGS[entry.error.code]}
    else:
        why = entry.error.message if entry.error else ""
        error = {"type": "api_error", "message": why}
        result = {"type": "errored", "error": {"type": "error", "error": error}}
    return msgspec.json.encode({"custom_id": entry.custom_id, "result": result}) + b"\n"


def _moment(time_s: int) -> str:
    return dt.datetime.fromtimestamp(time_s, dt.UTC).isoformat().replace("+00:00", "Z")
