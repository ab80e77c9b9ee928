"""Runs one line of a batch as a request, and returns the result for the output files.

It does not decide which line runs when, and stores nothing.
"""

import asyncio
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from vlmkit.types.request import BACKGROUND
from vlmkit_server.apis.batches.in_process_client import Answer, InProcessClient
from vlmkit_server.apis.batches.input_lines import Line, line_of
from vlmkit_server.apis.batches.output_lines import answered, new_id, unanswered, usage_of
from vlmkit_server.apis.batches.records import Done, OpenBatch, TakenLine
from vlmkit_server.http.errors import CLIENT_GONE, RETRY_AFTER_S
from vlmkit_server.storage.data_folder import Folder

MAX_ATTEMPTS = 3  # of a line whose request failed, or ended with the process
MAX_PAUSE_S = 60.0
_RETRIED = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


class Retry(NamedTuple):
    """A line without an answer yet, which is to be run again.

    Attributes:
        pause_s: how long to run no line of its owner.
        counts: whether the attempt counts: the line may have caused the failure.
    """

    pause_s: float
    counts: bool


class LineRequests:
    """Runs lines.

    Args:
        folder: has their files.
        client: sends the requests.
    """

    def __init__(self, folder: Folder, client: InProcessClient) -> None:
        self._folder = folder
        self._client = client

    async def run(
        self, batch: OpenBatch, line: TakenLine, gone: asyncio.Event
    ) -> Done | Retry | None:
        """Return the result of a line; None if its batch ended first.

        Args:
            batch: the line's batch.
            line: the line.
            gone: set when the batch ends.
        """
        try:
            parsed = await asyncio.to_thread(self._parsed, batch, line)
        except (OSError, msgspec.DecodeError):  # another program changed the file
            why = "the line cannot be read any more"
            return _error(batch, line, f"line-{line.number}", "unreadable_line", why)
        if line.attempts >= MAX_ATTEMPTS:
            why = f"the server ended or failed {line.attempts} times while it was answered"
            return _error(batch, line, parsed.custom_id, "server_error", why)
        if self._folder.is_full_for(batch.owner):
            why = "there is no room to keep the answer: delete files that are not needed"
            return _error(batch, line, parsed.custom_id, "storage_full", why)
        request_id = new_id()
        answer = await self._client.post(
            parsed.url, bytes(parsed.body), batch.caller(BACKGROUND), request_id, gone
        )
        if answer.status == CLIENT_GONE:
            return None
        return retry_of(answer, line.attempts) or await asyncio.to_thread(
            _done, batch.number, line.number, request_id, parsed.custom_id, answer
        )

    def left_out(self, batch: OpenBatch, line: TakenLine, code: str, why: str) -> Done:
        """Return the result of a line whose batch ended before it was answered."""
        try:
            custom_id = self._parsed(batch, line).custom_id
        except (OSError, msgspec.DecodeError):  # another program changed the file
            custom_id = f"line-{line.number}"
        return _error(batch, line, custom_id, code, why)._replace(is_left_out=True)

    def _parsed(self, batch: OpenBatch, line: TakenLine) -> Line:
        return line_of(self._folder.read(batch.input_id, line.start, line.num_bytes))


def retry_of(answer: Answer, attempts: int) -> Retry | None:
    """Return when to send a request again, if that makes sense.

    Args:
        answer: its response.
        attempts: earlier attempts that count.
    """
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS and "retry-after" not in answer.headers:
        return None  # waiting does not help
    is_fault = answer.status >= 500 and answer.status not in _RETRIED
    if answer.status not in _RETRIED and not (is_fault and attempts + 1 < MAX_ATTEMPTS):
        return None
    pause_s = float(answer.headers.get("retry-after", RETRY_AFTER_S))
    return Retry(min(pause_s, MAX_PAUSE_S), counts=is_fault)


def _error(batch: OpenBatch, line: TakenLine, custom_id: str, code: str, why: str) -> Done:
    return Done(batch.number, line.number, unanswered(custom_id, code, why), is_error=True)


def _done(batch: int, number: int, request_id: str, custom_id: str, answer: Answer) -> Done:
    """Return the result of an answered line; slow for a long answer."""
    is_error = answer.status != HTTPStatus.OK
    entry = answered(request_id, custom_id, answer)
    tokens = usage_of(answer.body)
    return Done(batch, number, entry, is_error, tokens)
