"""Server-sent events of one streamed answer, encoded so that a token costs microseconds.

The parts that repeat in every event of an answer are encoded once. An event is then three joined
byte strings. Events that are ready at the same time are sent together.
"""

from collections.abc import Callable, Iterable, Sequence as Seq
from typing import Any

import msgspec
from litestar.types import Scope

from vlmkit.types.completion import Chunk, Usage
from vlmkit.types.delta import Delta, ReasoningDelta, TextDelta, ToolCallDelta, reasoning_of
from vlmkit.types.sample import Sample
from vlmkit_server.apis.openai_chat.answer import LogprobsOf, UsageBody, finish_reason
from vlmkit_server.exchange.streaming import EVENT_STREAM
from vlmkit_server.http.errors import ErrorBody, fault_of
from vlmkit_server.interfaces.conversation import AnswerHead, Extras
from vlmkit_server.wire.image_transforms import image_transforms
from vlmkit_server.wire.sampling_fields import StreamOptions

DONE = b"data: [DONE]\n\n"

_OLDER_REASONING = b',"reasoning_content":'
"""An older name of ``reasoning`` in vLLM and SGLang, which clients still read."""

_encode = msgspec.json.encode


class UsageEvents:
    """Encodes the usage of a stream's events, and decides which events have it.

    Args:
        options: the stream options of the body, if it has any.
        usage: returns the tokens of the request so far.

    Attributes:
        is_wanted: whether the last event has usage; the other events then have ``null`` or usage.
        is_continuous: whether all events have usage.
    """

    def __init__(self, options: StreamOptions | None, usage: Callable[[], Usage]) -> None:
        self.is_wanted = bool(options and options.include_usage)
        self.is_continuous = bool(self.is_wanted and options and options.continuous_usage_stats)
        self._usage = usage

    @property
    def field(self) -> bytes:
        """The field of an event before the last one; empty if no usage is requested."""
        if not self.is_wanted:
            return b""
        return self.last(self._usage()) if self.is_continuous else b',"usage":null'

    def last(self, usage: Usage) -> bytes:
        """Return the field of the last event; empty if no usage is requested."""
        return b',"usage":' + _encode(UsageBody.of(usage)) if self.is_wanted else b""


class DataEvents:
    """The keep-alive comment and the error event that streams of OpenAI's APIs share."""

    media_type = EVENT_STREAM
    ping = b": ping\n\n"
    repeats_answer = False

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the event that ends a failed answer; OpenAI's clients raise it as an exception."""
        return b"data: " + _encode(ErrorBody(fault_of(error, scope))) + b"\n\n"


class AnswerEvents(DataEvents):
    """Encodes one answer.

    Args:
        head: the fields that every event repeats.
        num_choices: the number of choices.
        usage: encodes the usage of events.
        logprobs: encodes samples; None if the client requests no log-probabilities.
        extras: what events report besides text: with token ids, each event has those of its text;
            the end of a choice has its grounded regions, and the last event the transforms.
        prompt_token_ids: the tokens of the prompt, which the first event reports with token ids.
    """

    def __init__(
        self,
        head: AnswerHead,
        num_choices: int,
        *,
        usage: UsageEvents,
        logprobs: LogprobsOf | None,
        extras: Extras,
        prompt_token_ids: Seq[int],
    ) -> None:
        fields = msgspec.to_builtins(head) | {"object": "chat.completion.chunk"}
        self._head = b"data: " + _encode(fields)[:-1]
        self._usage = usage
        self._set_tail()
        self._starts = [
            self._head + b',"choices":[{"index":%d,"delta":' % index for index in range(num_choices)
        ]
        self._text_starts = [start + b'{"content":' for start in self._starts]
        self._reasoning_starts = [start + b'{"reasoning":' for start in self._starts]
        self._calling_choices: set[int] = set()  # the choices that call tools
        self._has_transforms = extras.image_transforms
        self._has_places = extras.places
        self._logprobs = logprobs
        self._has_token_ids = extras.token_ids
        self._prompt_token_ids = prompt_token_ids

    def _set_tail(self) -> None:
        """Encode the end of events, with the usage so far if the client requests it."""
        self._tail = self._usage.field + b"}\n\n"
        self._text_end = b'},"logprobs":null,"finish_reason":null}]' + self._tail

    def opening(self) -> bytes:
        """Return the first event of every choice: its role."""
        delta = b'{"role":"assistant","content":"","refusal":null'
        events = b"".join(start + delta + self._text_end for start in self._starts)
        if not self._has_token_ids:
            return events
        prompt_ids = b',"prompt_token_ids":' + _encode(self._prompt_token_ids)
        return self._head + prompt_ids + events.removeprefix(self._head)

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return the events of chunks; empty while their text is held back."""
        if self._usage.is_continuous:
            self._set_tail()
        events = []
        for chunk in chunks:
            if self._logprobs is not None or self._has_token_ids:
                events.append(self._token_event(chunk))
            else:
                for delta in chunk.deltas:
                    if isinstance(delta, TextDelta):
                        start = self._text_starts[chunk.index]
                        events += (start, _encode(delta.text), self._text_end)
                    elif isinstance(delta, ReasoningDelta):
                        start, text = self._reasoning_starts[chunk.index], _encode(delta.text)
                        events += (start, text, _OLDER_REASONING, text, self._text_end)
                    else:
                        events.append(self._call_event(chunk.index, delta))
            if chunk.finish_reason is not None:
                events.append(self._finish(chunk, chunk.finish_reason))
        return b"".join(events)

    def closing(self, usage: Usage) -> bytes:
        """Return the last events: usage, if requested, and the end marker.

        The transforms of images are beside the usage, since only then it is known which images
        were cached.
        """
        fields = self._usage.last(usage)
        if self._has_transforms:
            fields += b',"image_transforms":' + _encode(image_transforms(usage.images))
        return self._head + b',"choices":[]' + fields + b"}\n\n" + DONE if fields else DONE

    def _call_event(self, index: int, delta: ToolCallDelta) -> bytes:
        """Return the event of a piece of a tool call."""
        call = self._call_body(index, delta)
        return self._starts[index] + b'{"tool_calls":' + _encode([call]) + self._text_end

    def _call_body(self, index: int, delta: ToolCallDelta) -> dict[str, Any]:
        self._calling_choices.add(index)
        function: dict[str, Any] = {"arguments": delta.arguments}
        if not delta.name:
            return {"index": delta.index, "function": function}
        first = {"index": delta.index, "id": delta.id, "type": "function"}
        return first | {"function": {"name": delta.name} | function}

    def _call_bodies(self, index: int, deltas: Iterable[Delta]) -> list[dict[str, Any]]:
        return [self._call_body(index, d) for d in deltas if isinstance(d, ToolCallDelta)]

    def _token_event(self, chunk: Chunk) -> bytes:
        """Return the event of a chunk with token data, which is sent even without text."""
        content = self._logprobs_field(chunk.samples)
        token_ids = self._token_ids(chunk.samples)
        text, reasoning = chunk.text, reasoning_of(chunk.deltas)
        calls = self._call_bodies(chunk.index, chunk.deltas)
        delta: dict[str, Any] = {}
        if reasoning:
            delta = {"reasoning": reasoning, "reasoning_content": reasoning}
        if calls:
            delta["tool_calls"] = calls
        if text or not delta:
            delta["content"] = text
        if not (text or reasoning or calls or content or token_ids):
            return b""
        return b"".join(
            (
                self._starts[chunk.index],
                _encode(delta),
                b',"logprobs":',
                content or b"null",
                b',"finish_reason":null',
                token_ids,
                b"}]",
                self._tail,
            )
        )

    def _logprobs_field(self, samples: Seq[Sample]) -> bytes:
        logprobs = self._logprobs(samples) if self._logprobs is not None else None
        return _encode(logprobs) if logprobs is not None and logprobs.content else b""

    def _token_ids(self, samples: Seq[Sample]) -> bytes:
        if not self._has_token_ids or not samples:
            return b""
        return b',"token_ids":' + _encode([sample.token_id for sample in samples])

    def _finish(self, chunk: Chunk, reason: str) -> bytes:
        reported = finish_reason(reason, calls=chunk.index in self._calling_choices)
        delta = b'{"places":%b}' % _encode(chunk.places) if self._has_places else b"{}"
        end = b'%b,"logprobs":null,"finish_reason":%b}]' % (delta, _encode(reported))
        return self._starts[chunk.index] + end + self._tail
