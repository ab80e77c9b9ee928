"""Decides which answers and costs are breaches, with the reason."""

import json
from collections.abc import Sequence
from math import log2
from typing import Any, NamedTuple

from attack.declared import Field
from attack.mutations import MARKER
from attack.served import Answer, Cost

MAX_CPU_S, CPU_S_PER_MIB = 2.0, 2.0
MAX_BYTES, BYTES_PER_BYTE = 512 * 2**20, 64
"""What a request may take, and how much more for what was sent."""

MAX_SLOPE = 1.4
NOTED_CPU_S = 0.15
"""What costs less is not worth a slope: other work of the server is as large."""

OF_THE_BODY = frozenset(
    [
        "body_too_complex",
        "context_length_exceeded",
        "host_not_allowed",
        "image_too_large",
        "invalid_json",
        "model_not_found",
        "not_found",
        "request_too_large",
        "request_timeout",
        "response_not_found",
        "unsupported_media_type",
        "invalid_image",
    ]
)
"""Codes of what is wrong with more than one field."""


class Point(NamedTuple):
    """One request of a curve."""

    size: int
    status: int
    cost: Cost


def flaw(field: Field | None, answer: Answer) -> str | None:
    """Return the flaw of an answer; None if the answer conforms to the interface.

    Args:
        field: the wrong field; None for several.
        answer: of the server.
    """
    status = answer.status
    if status == 0:
        return "the connection ended without an answer"
    if status >= 500:
        is_busy = status == 503 and "retry-after" in answer.headers
        return None if is_busy else f"status {status}: {answer.content[:200]!r}"
    if status == 429:
        return None if "retry-after" in answer.headers else "429 without retry-after"
    if status < 400 or status == 431:  # headers are refused before there is a request
        return None
    is_label = field is not None and field.name == "x-request-id"
    if MARKER.encode() in answer.content and not is_label:
        return f"the error repeats what was sent: {answer.content[:200]!r}"
    return _flaw_of_error(field, answer)


def _flaw_of_error(field: Field | None, answer: Answer) -> str | None:
    try:
        error = json.loads(answer.content)["error"]
        if isinstance(error, str):  # Ollama's shape
            error = {"message": error}
        message = error["message"]
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status} without an error body: {answer.content[:200]!r}"
    if field is None or answer.status in (404, 405, 408, 413, 415, 431):
        return None
    text = f"{error.get('param')} {message}"
    of_all = message.startswith("the body ") or "maximum context length" in message
    if of_all or error.get("code") in OF_THE_BODY:
        return None
    is_named = any(name in text for name in field.names) or bool(error.get("param"))
    return None if is_named else f"status {answer.status} names no field: {message!r}"


def slope(points: Sequence[Point]) -> float:
    """Return the exponent of growth of CPU time with size, for costs large enough to measure."""
    dear = [p for p in points if p.cost.cpu_s >= NOTED_CPU_S]
    if len(dear) < 2 or dear[-1].size < 2 * dear[0].size:
        return 0.0
    cpu = log2(dear[-1].cost.cpu_s / dear[0].cost.cpu_s)
    return cpu / log2(dear[-1].size / dear[0].size)


def takes_too_long(cost: Cost) -> bool:
    """Whether a request takes more CPU time than one of its size may."""
    return cost.cpu_s > MAX_CPU_S + CPU_S_PER_MIB * cost.sent_bytes / 2**20


def flaw_of_curve(points: Sequence[Point]) -> str | None:
    """Return why a curve is a breach; None when it is bounded and about linear."""
    for _, _, cost in points:
        if takes_too_long(cost):
            return f"{cost.cpu_s:.1f} s of CPU time for {cost.sent_bytes} bytes"
        if cost.peak_bytes > MAX_BYTES + BYTES_PER_BYTE * cost.sent_bytes:
            return f"{cost.peak_bytes / 2**20:.0f} MiB for {cost.sent_bytes} bytes"
    if (found := slope(points)) > MAX_SLOPE:
        return f"CPU time grows with size to the power {found:.1f}"
    return None


def row(values: Sequence[Any]) -> str:
    """Return a line of a table."""
    return " | ".join(map(str, values))
