"""How lines of the server's log look: as text, or as JSON objects, one a line.

Errors are shown without their texts, unless for debugging.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from vlmkit.kit.traces import TraceFormatter, trace_of


class TextFormat(TraceFormatter):
    """Lines for people."""


class JsonFormat(TraceFormatter):
    """Lines for programs."""

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
            told["trace"] = self.formatException(error) if self.tells_all else trace_of(error[1])
        return json.dumps(told)


def iso(seconds: float) -> str:
    """Return a moment as it is written down: in UTC, to the millisecond."""
    written = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return written.replace("+00:00", "Z")
