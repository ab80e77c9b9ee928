"""The built-in observers: counters for the statistics, and a log of requests.

Neither keeps any text of prompts or answers.
"""

import json
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from vlmkit.errors import ConfigError, VlmkitError
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts, StepFacts
from vlmkit.settings.request_log import RequestLogSettings


class Counters(Observer):
    """Counts requests, their tokens and their seconds.

    Means are quotients of two counters. The mean time to the first token, for example, is the sum
    of ``queue_s`` and ``first_token_s`` over ``num_finished``.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seconds = dict.fromkeys(("prompt_s", "queue_s", "first_token_s", "decode_s"), 0.0)

    def accepted(self, request: RequestFacts, at_s: float) -> None:  # noqa: ARG002
        """Count an accepted request."""
        self._counts["num_accepted"] += 1

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:  # noqa: ARG002
        """Count a finished request, its tokens and its seconds."""
        self._counts["num_finished"] += 1
        for reason in end.reasons:
            self._counts[f"num_choices_{reason}"] += 1
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            self._counts[f"num_{name}"] += getattr(end.usage, name)
        self._counts["num_image_tokens"] += sum(end.usage.image_tokens)
        for name in self._seconds:
            self._seconds[name] += getattr(end.timings, name)

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:  # noqa: ARG002
        """Count a failed request, by the class of its error."""
        self._counts["num_failed"] += 1
        self._counts[f"num_failed_{type(error).__name__}"] += 1

    def stats(self) -> Mapping[str, float]:
        """Return all counters that are not zero, and all sums of seconds."""
        return {**self._counts.copy(), **self._seconds}


class RequestLog(Observer):
    """Writes one JSON object per line for each event of a request.

    The events are acceptance, first token and end; with the setting ``steps`` also each step. Lines
    go to the logger ``vlmkit.requests``, or to a file.

    Args:
        settings: the file, and whether steps are written; the defaults when None.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, settings: RequestLogSettings | None = None) -> None:
        settings = settings or RequestLogSettings()
        self._writes_steps = settings.steps
        self._handler: logging.Handler | None = None
        self._log = logging.getLogger("vlmkit.requests")
        if settings.file is not None:
            try:
                self._handler = logging.FileHandler(settings.file, encoding="utf-8")
            except OSError as error:
                raise ConfigError(
                    f"log file {settings.file!r} cannot be written: {error.strerror}",
                    hint="name another one in observers.log.file",
                ) from error

    def accepted(self, request: RequestFacts, at_s: float) -> None:
        """Write the size of an accepted request."""
        self._write(
            "accepted",
            request,
            at_s,
            tenant=request.tenant,
            prompt_tokens=request.prompt_tokens,
            image_tokens=request.image_tokens,
            choices=request.params.n,
        )

    def first_token(self, request: RequestFacts, at_s: float) -> None:
        """Write that the first token was chosen."""
        self._write("first_token", request, at_s)

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        """Write the usage and the timings of a finished request."""
        timings = {
            name: round(getattr(end.timings, name), 6)
            for name in ("prompt_s", "queue_s", "first_token_s", "decode_s")
        }
        self._write(
            "finished",
            request,
            at_s,
            reasons=end.reasons,
            completion_tokens=end.usage.completion_tokens,
            cached_tokens=end.usage.cached_tokens,
            **timings,
        )

    def failed(self, request: RequestFacts, error: VlmkitError, at_s: float) -> None:
        """Write the error of a failed request, in the words that the client gets."""
        self._write("failed", request, at_s, error=type(error).__name__, message=str(error))

    def step(self, step: StepFacts, at_s: float) -> None:
        """Write the numbers of a step, if the settings ask for steps."""
        if self._writes_steps:
            names = StepFacts.__dataclass_fields__
            self._line("step", at_s, {name: getattr(step, name) for name in names})

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._handler is not None:
            self._handler.close()

    def _write(self, event: str, request: RequestFacts, at_s: float, **facts: Any) -> None:
        self._line(event, at_s, {"request": request.id, "model": request.model, **facts})

    def _line(self, event: str, at_s: float, facts: dict[str, Any]) -> None:
        line = {"event": event, "at_s": round(at_s, 6), **facts}
        text = json.dumps(line)
        if self._handler is None:
            self._log.info("%s", text)
        else:
            self._handler.handle(logging.makeLogRecord({"msg": text}))
