"""Formats tracebacks without error texts, because a library's text may repeat client input.

Only :class:`TraceFormatter` and :func:`log_of_worker` concern logging; the rest returns text.
"""

import logging
import traceback
from collections.abc import Iterator
from copy import copy

from vlmkit.errors import VlmkitError


class TraceFormatter(logging.Formatter):
    """Formats the error of a log record as types and locations, for all libraries.

    Args:
        tells_all: whether errors are formatted with their texts, for debugging.
    """

    def __init__(self, *, tells_all: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self.tells_all = tells_all

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, followed by the traceback of its error."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not self.tells_all:
            record = copy(record)  # other handlers may format the whole error
            record.exc_text = trace_of(error)
        return super().format(record)


def log_of_worker() -> None:
    """Set up a worker process to write vlmkit's warnings to standard error, without error texts.

    Records of other libraries are dropped, because their texts may repeat client input.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(TraceFormatter())
    logging.basicConfig(level=logging.CRITICAL, handlers=[handler])
    logging.getLogger("vlmkit").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def trace_of(error: BaseException) -> str:
    """Return types and locations of an error and its causes, with the texts of vlmkit's errors."""
    return "".join(_parts(error, set())).rstrip("\n")


def _parts(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _parts(before, seen)
        yield "which led to:\n"
    yield from traceback.format_tb(error.__traceback__)
    text = f": {error}" if isinstance(error, VlmkitError) else ""
    yield f"{type(error).__module__}.{type(error).__qualname__}{text}\n"
