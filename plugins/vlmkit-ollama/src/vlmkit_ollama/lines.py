"""Encodes a streamed answer as lines of JSON."""

import time
from collections.abc import Callable, Iterable

import msgspec
from litestar.types import Scope
from msgspec import UNSET

from vlmkit.types.completion import Chunk, FinishReason, Timings, Usage
from vlmkit.types.delta import Delta, ToolCallDelta, reasoning_of, text_of, tool_calls_of
from vlmkit_ollama.answer import Content, LogprobsOf, MakeLine, Times
from vlmkit_server.http.errors import Fault, fault_of

MEDIA_TYPE = "application/x-ndjson"


class OllamaError(msgspec.Struct):
    """The body of an error, and the last line of a stream that fails."""

    error: str


def encoded_error(fault: Fault) -> bytes:
    """Encode an error in Ollama's shape; its text names the field, for which there is no member."""
    text, param = fault.message, fault.param
    return msgspec.json.encode(
        OllamaError(text if not param or param in text else f"{param}: {text}")
    )


class AnswerLines:
    """Encodes one answer; tool calls are sent whole, in a line before the last.

    Args:
        model: the name of the model.
        line: makes a line.
        times: when the request began, and how long it waited for its model.
        timings: returns the timings so far.
        logprobs: encodes log-probabilities; None leaves them out.
    """

    media_type = MEDIA_TYPE
    ping = b""  # clients of Ollama read each line as a piece of the answer
    repeats_answer = False

    def __init__(
        self,
        model: str,
        line: MakeLine,
        times: Times,
        timings: Callable[[], Timings],
        logprobs: LogprobsOf | None = None,
    ) -> None:
        self._model = model
        self._line = line
        self._times = times
        self._timings = timings
        self._logprobs = logprobs
        self._calls: list[Delta] = []
        self._finish_reason: FinishReason | None = None

    def opening(self) -> bytes:
        """Return nothing: the first piece of the answer is the first line."""
        return b""

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return a line for each chunk; empty while its text is held back."""
        return b"".join([self._lines(chunk) for chunk in chunks])

    def closing(self, usage: Usage) -> bytes:
        """Return the last line, with the counts and durations."""
        counts = self._times.counts(usage, self._timings(), time.monotonic())
        return self._encoded(Content(), done=True, done_reason=self._finish_reason, **counts)

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the line that ends a failed answer; Ollama's clients raise it."""
        return encoded_error(fault_of(error, scope)) + b"\n"

    def _lines(self, chunk: Chunk) -> bytes:
        self._calls += [each for each in chunk.deltas if isinstance(each, ToolCallDelta)]
        text, reasoning = text_of(chunk.deltas), reasoning_of(chunk.deltas)
        samples = chunk.samples if self._logprobs else ()
        lines = b""
        if text or reasoning or samples:
            lines = self._encoded(Content(text, reasoning, (), samples))
        if chunk.finish_reason is not None:
            self._finish_reason = chunk.finish_reason
            if self._calls:
                lines += self._encoded(Content(calls=tool_calls_of(self._calls)))
        return lines

    def _encoded(self, content: Content, *, done: bool = False, **fields: object) -> bytes:
        found = self._logprobs(content.samples) if self._logprobs else []
        line = self._line(content, model=self._model, done=done, logprobs=found or UNSET, **fields)
        return msgspec.json.encode(line) + b"\n"
