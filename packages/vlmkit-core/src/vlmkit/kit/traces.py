"""Where an error came from, without its text: a library's text may repeat what a client sent.

Nothing here is logged: callers log what is returned.
"""

import logging
import traceback
from collections.abc import Iterator
from copy import copy

from vlmkit.errors import VlmkitError


class TraceFormatter(logging.Formatter):
    """Formats an error of a record as types and places, whichever library logs it.

    Args:
        tells_all: whether errors are formatted with their texts, for debugging.
    """

    def __init__(self, *, tells_all: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self.tells_all = tells_all

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, and behind it where an error came from."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not self.tells_all:
            record = copy(record)  # other handlers may format the whole error
            record.exc_text = trace_of(error)
        return super().format(record)


def log_of_worker() -> None:
    """Have a worker process write vlmkit's warnings to standard error, without errors' texts.

    Nothing of other libraries is written: their texts may repeat what a client sent.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(TraceFormatter())
    logging.basicConfig(level=logging.CRITICAL, handlers=[handler])
    logging.getLogger("vlmkit").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def trace_of(error: BaseException) -> str:
    """Return the types and places of an error and of its causes; of ours, their texts, too."""
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
