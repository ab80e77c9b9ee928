"""The observer that writes a log: one JSON object a line for each thing that happens.

Holds no text of prompts or answers. Lines go to the logger ``vlmkit.requests``, or to a file.
"""

import json
import logging
from typing import Any

from vlmkit.errors import ConfigError, VlmkitError
from vlmkit.interfaces.observer import Observer, RequestEnd, RequestFacts, StepFacts
from vlmkit.settings.request_log import RequestLogSettings


class RequestLog(Observer):
    """Writes when requests are accepted, get their first token and end; steps where it is told to.

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
        """Write what is asked for."""
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
        """Write that the answer begins."""
        self._write("first_token", request, at_s)

    def finished(self, request: RequestFacts, end: RequestEnd, at_s: float) -> None:
        """Write what it took, and where its time went."""
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
        """Write why, as the client is told."""
        self._write("failed", request, at_s, error=type(error).__name__, message=str(error))

    def step(self, step: StepFacts, at_s: float) -> None:
        """Write the step's numbers, if that was asked for."""
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
