"""The deadline of a request: the server's timeout, or a shorter one that the client sends."""

import re
from typing import Any

from vlmkit.errors import RequestError
from vlmkit_server.http.errors import Unavailable

HEADER = "x-request-timeout"
DEADLINE = "deadline_s"  # in the state of a request, by the event loop's clock
_SECONDS = re.compile(rb"\d{1,6}(\.\d{1,6})?")


class TooLate(Unavailable):
    """A request exceeded its deadline."""

    def __init__(self) -> None:
        super().__init__(
            "the request was not done in the time that it had", code="deadline_exceeded"
        )


def time_for(given: bytes | None, most_s: float) -> float:
    """Return the time that a request has, in seconds.

    Args:
        given: the header with the client's timeout, if there is one.
        most_s: the server's timeout.

    Raises:
        RequestError: the header is invalid.
    """
    if given is None:
        return most_s
    if not _SECONDS.fullmatch(given) or not float(given):
        raise RequestError(
            f"{HEADER} must be a number of seconds over 0, such as 2.5, and below a million",
            param=HEADER,
        )
    return min(float(given), most_s)


def deadline_of(scope: Any) -> float | None:
    """Return the deadline of a request; None if it has none."""
    when_s: float | None = scope["state"].get(DEADLINE)
    return when_s
