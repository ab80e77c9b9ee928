"""Server-sent events of one answer of the Responses API.

An item is a message, a piece of reasoning or a call. Its events end before the next item starts,
except those of calls that the server executes: they end with their results, in any order.

Each event has a sequence number, so events must be created in the order of sending. The parts that
repeat in the events of an item are encoded once, so that a token costs microseconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from litestar.types import Scope

from vlmkit.types.completion import Chunk, FinishReason, Usage
from vlmkit.types.delta import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from vlmkit.types.grounding import GroundedRegion
from vlmkit.types.sample import Sample
from vlmkit_server.apis.openai_chat.answer import LogprobsOf
from vlmkit_server.apis.openai_responses.answer import ResponseBodies, response_status
from vlmkit_server.apis.openai_responses.items import (
    CallItem,
    ExecutedCallItem,
    MessageItem,
    OutputItem,
    OutputTextContent,
    ReasoningItem,
    ReasoningTextContent,
    Status,
    in_json,
    new_id,
)
from vlmkit_server.apis.openai_responses.namespaces import QualifiedName
from vlmkit_server.conversation.executed_calls import ResultDelta
from vlmkit_server.exchange.streaming import EVENT_STREAM
from vlmkit_server.http.errors import fault_of

StoreResponse = Callable[[bytes, Sequence[OutputItem]], None]

_encode = msgspec.json.encode
_TEXT, _REASONING = -1, -2  # keys of items; the key of a call is its index


class _TextLogprobs:
    """Holds samples until their text is sent, and encodes their log-probabilities.

    Args:
        logprobs: puts samples into OpenAI's shape.
        num_reasoning_tokens: returns how many tokens of the answer are reasoning so far.
    """

    def __init__(self, logprobs: LogprobsOf, num_reasoning_tokens: Callable[[], int]) -> None:
        self._logprobs = logprobs
        self._num_reasoning_tokens = num_reasoning_tokens
        self._num_samples = 0
        self._held: list[Sample] = []  # their text is not sent yet
        self._sent: list[bytes] = []  # JSON of the open item's tokens, without brackets

    def add(self, samples: Sequence[Sample]) -> None:
        """Hold samples until their text is sent, except those of reasoning, which come first."""
        num_reasoning = self._num_reasoning_tokens() - self._num_samples
        self._num_samples += len(samples)
        self._held += samples[max(0, num_reasoning) :]

    def drop_held(self) -> None:
        """Drop samples whose text is not sent."""
        self._held.clear()

    def take_delta(self) -> bytes:
        """Return the JSON list for the text that is sent now."""
        tokens = _encode(self._logprobs(self._held).content)
        self._held.clear()
        if entries := tokens[1:-1]:
            self._sent.append(entries)
        return tokens

    def take_item(self) -> Any:
        """Return the JSON list for the whole text of the item that ends."""
        sent, self._sent = self._sent, []
        return in_json((b"[", b",".join(sent), b"]"))


class ResponseEvents:
    """Encodes one answer; implements :class:`vlmkit_server.exchange.streaming.Events`.

    Args:
        bodies: encodes the whole response.
        logprobs: encodes samples; None if the client requests no log-probabilities.
        num_reasoning_tokens: returns how many tokens of the answer are reasoning so far.
        store: called with the last body and its items.
        names: the parts of functions' qualified names.

    Attributes:
        ping: a comment, which keeps the connection open.
        repeats_answer: whether the last event contains the whole answer.
        body: the JSON of the whole response, once it has ended.
    """

    ping = b": ping\n\n"
    media_type = EVENT_STREAM
    repeats_answer = True

    def __init__(
        self,
        bodies: ResponseBodies,
        *,
        logprobs: LogprobsOf | None,
        num_reasoning_tokens: Callable[[], int],
        store: StoreResponse,
        names: Mapping[str, QualifiedName] = MappingProxyType({}),
    ) -> None:
        self._bodies = bodies
        self._logprobs = None if logprobs is None else _TextLogprobs(logprobs, num_reasoning_tokens)
        self._store = store
        self._names = names
        self.body = b""
        self._num_events = 0
        self._output: list[OutputItem] = []
        self._open_key: int | None = None  # of the open item
        self._pieces: list[str] = []  # of the open item
        self._delta_start = self._delta_end = b""
        self._finish_reason: FinishReason | None = None
        self._grounding: Sequence[GroundedRegion] = ()

    def opening(self) -> bytes:
        """Return the first events: a response without output."""
        body = self._bodies.initial()
        created = self._response_event("response.created", body)
        return created + self._response_event("response.in_progress", body)

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return the events of chunks; empty while their text is held back."""
        events: list[bytes] = []
        for chunk in chunks:
            if self._logprobs is not None:
                self._logprobs.add(chunk.samples)
            events += [self._delta(delta) for delta in chunk.deltas]
            if chunk.finish_reason is not None:
                self._finish_reason, self._grounding = chunk.finish_reason, chunk.places
        return b"".join(events)

    def closing(self, usage: Usage) -> bytes:
        """Return the last events: the end of the last item, and the whole response."""
        status = response_status(self._finish_reason)
        # An empty answer has an empty message.
        start_events = b"" if self._output else self._begin_item(_TEXT, TextDelta(""))
        end_events = start_events + self._end_all(status)
        self.body = self._bodies.final(self._finish_reason, self._output, usage, self._grounding)
        self._store(self.body, self._output)
        return end_events + self._response_event(f"response.{status}", self.body)

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the events that end a failed answer."""
        end_events = self._end_all("incomplete")
        self.body = self._bodies.failed(fault_of(error, scope).message, self._output)
        return end_events + self._response_event("response.failed", self.body)

    def cancelled(self) -> bytes:
        """Return the events that end an answer that its client cancelled.

        The response has no output then, like the response to the request that cancelled it.
        """
        end_events = self._end_all("incomplete")
        self.body = self._bodies.cancelled()
        return end_events + self._response_event("response.incomplete", self.body)

    def _delta(self, delta: Delta) -> bytes:
        """Return the event of a piece of an item; starts the item if necessary."""
        if isinstance(delta, ToolCallDelta):
            key, piece = delta.index, delta.arguments
        else:
            key, piece = (_TEXT if isinstance(delta, TextDelta) else _REASONING), delta.text
        start_events = b""
        if key != self._open_key:
            start_events = self._end_item("completed") + self._begin_item(key, delta)
        if not piece:
            return start_events
        self._pieces.append(piece)
        logprobs = self._logprobs_field() if key == _TEXT else b""
        delta_event = (
            self._delta_start,
            _encode(piece),
            logprobs,
            self._delta_end,
            self._next_number(),
        )
        return b"".join((start_events, *delta_event))

    def _begin_item(self, key: int, delta: Delta) -> bytes:
        """Return the events that start an item."""
        self._open_key = key
        item: OutputItem
        if isinstance(delta, ToolCallDelta):
            if self._logprobs is not None:
                self._logprobs.drop_held()
            item, kind = self._call_item(delta)
        elif isinstance(delta, ReasoningDelta):
            item, kind = ReasoningItem(new_id("rs")), "response.reasoning_text.delta"
        else:
            item, kind = MessageItem(new_id("msg")), "response.output_text.delta"
        self._output.append(item)
        start_events = self._event(
            "response.output_item.added", output_index=self._index, item=item
        )
        if isinstance(delta, ToolCallDelta):
            position = self._item_position()
        else:
            position = self._item_position(content_index=0)
            part = OutputTextContent() if isinstance(item, MessageItem) else ReasoningTextContent()
            start_events += self._event("response.content_part.added", **position, part=part)
        start = _encode({"type": kind} | position)[:-1] + b',"delta":'
        self._delta_start = b"event: %b\ndata: %b" % (kind.encode(), start)
        has_none = key == _TEXT and self._logprobs is None
        self._delta_end = (b',"logprobs":[]' if has_none else b"") + b',"sequence_number":'
        return start_events

    def _end_item(self, status: Status) -> bytes:
        """Return the events that end the open item, if one is open."""
        if self._open_key is None:
            return b""
        self._open_key = None
        item, text = self._output[-1], "".join(self._pieces)
        item.status = status
        self._pieces = []
        if isinstance(item, CallItem | ExecutedCallItem):
            return self._end_call(item, text)
        return self._end_content(item, text) + self._item_done(self._index)

    def _end_all(self, status: Status) -> bytes:
        """Return the events that end all open items at the end of the answer."""
        return self._end_item(status)

    def _call_item(self, delta: ToolCallDelta) -> tuple[OutputItem, str]:
        """Return the item of a new call, and the type of events with pieces of its arguments."""
        item = CallItem.started(delta.id, delta.name, self._names)
        return item, "response.function_call_arguments.delta"

    def _end_call(self, item: CallItem | ExecutedCallItem, arguments: str) -> bytes:
        """Return the events that end the open call."""
        item.arguments = arguments
        values = {"name": item.name, "arguments": arguments}
        kind = "response.function_call_arguments.done"
        return self._event(kind, **self._item_position(), **values) + self._item_done(self._index)

    def _item_done(self, index: int) -> bytes:
        """Return the event that has the whole item."""
        item = self._output[index]
        return self._event("response.output_item.done", output_index=index, item=item)

    def _end_content(self, item: MessageItem | ReasoningItem, text: str) -> bytes:
        position = self._item_position(content_index=0)
        part: OutputTextContent | ReasoningTextContent
        if isinstance(item, MessageItem):
            logprobs = in_json((b"[]",)) if self._logprobs is None else self._logprobs.take_item()
            part = OutputTextContent(text, logprobs=logprobs)
            item.content = (part,)
            values = {"text": text, "logprobs": part.logprobs}
            done = self._event("response.output_text.done", **position, **values)
        else:
            part = ReasoningTextContent(text)
            item.content = (part,)
            done = self._event("response.reasoning_text.done", **position, text=text)
        return done + self._event("response.content_part.done", **position, part=part)

    def _logprobs_field(self) -> bytes:
        """Return the field with the log-probabilities of text that is sent now, if requested."""
        return b"" if self._logprobs is None else b',"logprobs":' + self._logprobs.take_delta()

    @property
    def _index(self) -> int:
        """The index of the newest item."""
        return len(self._output) - 1

    def _item_position(self, **more: int) -> dict[str, Any]:
        return {"item_id": self._output[-1].id, "output_index": self._index} | more

    def _response_event(self, kind: str, body: bytes) -> bytes:
        """Return an event that has the whole response."""
        return self._event(kind, response=msgspec.Raw(body))

    def _event(self, kind: str, **fields: Any) -> bytes:
        start = _encode({"type": kind} | fields)[:-1] + b',"sequence_number":'
        return b"event: %b\ndata: %b%b" % (kind.encode(), start, self._next_number())

    def _next_number(self) -> bytes:
        """Count an event; return its number, with the end of the event."""
        self._num_events += 1
        return b"%d}\n\n" % (self._num_events - 1)


class ExecutedCallEvents(ResponseEvents):
    """Encodes one answer whose calls the server executes; their items have the results.

    The calls that a model makes before it reads results run concurrently. Their items start one
    after the other, and each ends when its result comes.

    Args:
        *args: the arguments of :class:`ResponseEvents`.
        **options: its keyword arguments.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # By the call's index: the item's index, and the item.
        self._running: dict[int, tuple[int, ExecutedCallItem]] = {}

    def _delta(self, delta: Delta) -> bytes:
        if not isinstance(delta, ResultDelta):
            return super()._delta(delta)
        end_events = self._end_item("completed")
        index, item = self._running.pop(delta.index)
        item.finish(delta.text, is_error=delta.is_error)
        kind = f"response.mcp_call.{item.status}"
        return (
            end_events
            + self._event(kind, item_id=item.id, output_index=index)
            + self._item_done(index)
        )

    def _call_item(self, delta: ToolCallDelta) -> tuple[OutputItem, str]:
        item = ExecutedCallItem.started(delta.id, delta.name)
        self._running[delta.index] = len(self._output), item
        return item, "response.mcp_call_arguments.delta"

    def _begin_item(self, key: int, delta: Delta) -> bytes:
        start_events = super()._begin_item(key, delta)
        if isinstance(delta, ToolCallDelta):
            start_events += self._event("response.mcp_call.in_progress", **self._item_position())
        return start_events

    def _end_call(self, item: CallItem | ExecutedCallItem, arguments: str) -> bytes:
        item.arguments, item.status = arguments, "in_progress"  # until its result is known
        kind = "response.mcp_call_arguments.done"
        return self._event(kind, **self._item_position(), arguments=arguments)

    def _end_all(self, status: Status) -> bytes:
        """Return the events that end all open items, including calls without a result."""
        end_events = super()._end_all(status)
        for index, item in self._running.values():
            item.status = "incomplete"
            end_events += self._item_done(index)
        self._running.clear()
        return end_events
