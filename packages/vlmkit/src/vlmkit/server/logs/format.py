"""How lines of the server's log look: as text, or as JSON objects, one a line.

What other libraries log of errors is shown without what the errors say, unless for debugging.
"""

import json
import logging
from copy import copy
from datetime import UTC, datetime
from typing import Any

from vlmkit.kit.traces import trace_of


class TextFormat(logging.Formatter):
    """Lines for people.

    Args:
        tells_all: whether errors are shown with what they say.
    """

    def __init__(self, *, tells_all: bool = False) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._tells_all = tells_all

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, and behind it where an error came from."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not self.tells_all_of(record):
            record = copy(record)  # of which other handlers may tell more
            record.exc_text = trace_of(error)
        return super().format(record)

    def tells_all_of(self, record: logging.LogRecord) -> bool:
        """Tell whether a record's error is shown with what it says: vlmkit minds that itself."""
        return self._tells_all or record.name.partition(".")[0].startswith("vlmkit")


class JsonFormat(TextFormat):
    """Lines for programs.

    Args:
        tells_all: whether errors are shown with what they say.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one JSON object."""
        told: dict[str, Any] = {
            "time": iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := getattr(record, "request_id", "")) != "":
            told["request"] = request_id
        if record.exc_info and record.exc_info[1] is not None:
            told["error"] = type(record.exc_info[1]).__name__
            error = record.exc_info
            tells_all = self.tells_all_of(record)
            told["trace"] = self.formatException(error) if tells_all else trace_of(error[1])
        return json.dumps(told)


def iso(seconds: float) -> str:
    """Return a moment as it is written down: in UTC, to the millisecond."""
    written = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return written.replace("+00:00", "Z")
