"""One line of a batch: it is asked as a request, and what comes of it is said for the files.

Which line is asked when is not decided here, and nothing is kept.
"""

import asyncio
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from vlmkit.types.request import BACKGROUND
from vlmkit_server.apis.batches.in_process_client import Answer, InProcessClient
from vlmkit_server.apis.batches.input_lines import Line, line_of
from vlmkit_server.apis.batches.output_lines import answered, new_id, unanswered, used
from vlmkit_server.apis.batches.records import Done, OpenBatch, TakenLine
from vlmkit_server.http.errors import CLIENT_GONE, RETRY_AFTER_S
from vlmkit_server.storage.data_folder import Folder

MAX_ATTEMPTS = 3  # of a line whose request failed, or ended with the process
MAX_PAUSE_S = 60.0
_LATER = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


class Retry(NamedTuple):
    """A line that has no answer yet, and is to be asked again.

    Attributes:
        pause_s: how long nothing of its owner's should be asked.
        counts: whether the line may be at fault.
    """

    pause_s: float
    counts: bool


class LineRequests:
    """Has lines answered.

    Args:
        folder: has their files.
        inside: answers a request.
    """

    def __init__(self, folder: Folder, inside: InProcessClient) -> None:
        self._folder = folder
        self._inside = inside

    async def ask(
        self, batch: OpenBatch, taken: TakenLine, gone: asyncio.Event
    ) -> Done | Retry | None:
        """Return what came of a line; None where its batch ended first.

        Args:
            batch: whose line it is.
            taken: the line.
            gone: is set when nobody wants its answer any more.
        """
        try:
            line = await asyncio.to_thread(self._line, batch, taken)
        except (OSError, msgspec.DecodeError):  # somebody else has changed the file
            why = "the line cannot be read any more"
            return _error(batch, taken, f"line-{taken.number}", "unreadable_line", why)
        if taken.attempts >= MAX_ATTEMPTS:
            why = f"the server ended or failed {taken.attempts} times while it was answered"
            return _error(batch, taken, line.custom_id, "server_error", why)
        if self._folder.is_full_for(batch.owner):
            why = "there is no room to keep the answer: delete files that are not needed"
            return _error(batch, taken, line.custom_id, "storage_full", why)
        request_id = new_id()
        answer = await self._inside.post(
            line.url, bytes(line.body), batch.caller(BACKGROUND), request_id, gone
        )
        if answer.status == CLIENT_GONE:
            return None
        return _later(answer, taken) or await asyncio.to_thread(
            _told, batch.number, taken.number, request_id, line.custom_id, answer
        )

    def left_out(self, batch: OpenBatch, line: TakenLine, code: str, why: str) -> Done:
        """Return what is written of a line whose batch ended before it was answered."""
        try:
            custom_id = self._line(batch, line).custom_id
        except (OSError, msgspec.DecodeError):  # somebody else has changed the file
            custom_id = f"line-{line.number}"
        return _error(batch, line, custom_id, code, why)._replace(is_left_out=True)

    def _line(self, batch: OpenBatch, taken: TakenLine) -> Line:
        return line_of(self._folder.read(batch.input_id, taken.start, taken.num_bytes))


def _later(answer: Answer, taken: TakenLine) -> Retry | None:
    """Return when to ask a line again, if that makes sense."""
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS and "retry-after" not in answer.headers:
        return None  # no waiting helps
    is_fault = answer.status >= 500 and answer.status not in _LATER
    if answer.status not in _LATER and not (is_fault and taken.attempts + 1 < MAX_ATTEMPTS):
        return None
    pause_s = float(answer.headers.get("retry-after", RETRY_AFTER_S))
    return Retry(min(pause_s, MAX_PAUSE_S), counts=is_fault)


def _error(batch: OpenBatch, taken: TakenLine, custom_id: str, code: str, why: str) -> Done:
    return Done(batch.number, taken.number, unanswered(custom_id, code, why), is_error=True)


def _told(batch: int, number: int, request_id: str, custom_id: str, answer: Answer) -> Done:
    """Return what is written of an answer; takes time where it is long."""
    is_error = answer.status != HTTPStatus.OK
    entry = answered(request_id, custom_id, answer)
    tokens = used(answer.body)
    return Done(batch, number, entry, is_error, tokens)
