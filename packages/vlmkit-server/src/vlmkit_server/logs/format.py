"""The formats of the server's log lines: text, or one JSON object a line.

Errors are written without their messages, except when debugging.
"""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from vlmkit.kit.traces import TraceFormatter, trace_of


class TextFormat(TraceFormatter):
    """Log lines for people."""


class JsonFormat(TraceFormatter):
    """Log lines for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one JSON object."""
        fields: dict[str, Any] = {
            "time": iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := getattr(record, "request_id", "")) != "":
            fields["request"] = request_id
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = type(record.exc_info[1]).__name__
            error = record.exc_info
            fields["trace"] = self.formatException(error) if self.tells_all else trace_of(error[1])
        return json.dumps(fields)


def iso(seconds: float) -> str:
    """Return a time in ISO 8601: in UTC, to the millisecond."""
    written = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return written.replace("+00:00", "Z")
