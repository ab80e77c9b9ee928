"""Server-sent events of one streamed answer, encoded so that a token costs microseconds.

Everything that is the same in each event of an answer is encoded once; an event is then three
byte strings joined. Events that are there at the same time leave as one piece.
"""

from collections.abc import Iterable, Sequence as Seq

import msgspec

from vlmkit.completion import Chunk, Usage
from vlmkit.protocols import Sample
from vlmkit.server.answer import AnswerHead, LogprobsOf, UsageBody
from vlmkit.server.errors import ErrorBody, Fault

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

_encode = msgspec.json.encode


class AnswerEvents:
    """Encodes one answer.

    Args:
        head: what every event says.
        num_choices: how many choices there are.
        has_usage: whether the client asked for usage, which then every event mentions.
        logprobs: puts samples into shape; None where the client asked for none.
    """

    def __init__(
        self, head: AnswerHead, num_choices: int, *, has_usage: bool, logprobs: LogprobsOf | None
    ) -> None:
        fields = msgspec.to_builtins(head) | {"object": "chat.completion.chunk"}
        self._head = b"data: " + _encode(fields)[:-1]
        self._tail = b',"usage":null}\n\n' if has_usage else b"}\n\n"
        self._starts = [
            self._head + b',"choices":[{"index":%d,"delta":' % index for index in range(num_choices)
        ]
        self._text_starts = [start + b'{"content":' for start in self._starts]
        self._text_end = b'},"logprobs":null,"finish_reason":null}]' + self._tail
        self._has_usage = has_usage
        self._logprobs = logprobs

    def opening(self) -> bytes:
        """Return the first event of every choice: who speaks."""
        delta = b'{"role":"assistant","content":"","refusal":null'
        return b"".join(start + delta + self._text_end for start in self._starts)

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return the events of some chunks; empty while their text is held back."""
        events = []
        for chunk in chunks:
            if self._logprobs is not None:
                events.append(self._with_logprobs(chunk, self._logprobs))
            elif chunk.text:
                events += (self._text_starts[chunk.index], _encode(chunk.text), self._text_end)
            if chunk.finish_reason is not None:
                events.append(self._finish(chunk.index, chunk.finish_reason))
        return b"".join(events)

    def closing(self, usage: Usage) -> bytes:
        """Return the last events: usage, if it was asked for, and the mark of a whole answer."""
        if not self._has_usage:
            return DONE
        body = _encode(UsageBody.of(usage))
        return self._head + b',"choices":[],"usage":' + body + b"}\n\n" + DONE

    def _with_logprobs(self, chunk: Chunk, logprobs: LogprobsOf) -> bytes:
        """Return the event of one chunk; it has one for every token, even without text."""
        content = self._content(chunk.samples, logprobs)
        if not chunk.text and not content:
            return b""
        return b"".join(
            (
                self._text_starts[chunk.index],
                _encode(chunk.text),
                b'},"logprobs":',
                content or b"null",
                b',"finish_reason":null}]',
                self._tail,
            )
        )

    def _content(self, samples: Seq[Sample], logprobs: LogprobsOf) -> bytes:
        found = logprobs(samples)
        return _encode(found) if found.content else b""

    def _finish(self, index: int, reason: str) -> bytes:
        end = b'{},"logprobs":null,"finish_reason":%b}]' % _encode(reason)
        return self._starts[index] + end + self._tail


def error_event(fault: Fault) -> bytes:
    """Return the event that ends an answer which failed; OpenAI's clients raise it."""
    return b"data: " + _encode(ErrorBody(fault)) + b"\n\n"
