"""Server-sent events of one answer of Anthropic's API; repeated parts are encoded once."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from litestar.types import Scope

from vlmkit.types.completion import Chunk, FinishReason, Usage
from vlmkit.types.delta import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from vlmkit.types.grounding import GroundedRegion
from vlmkit_server.apis.anthropic_messages.answer import (
    SERVER_TOOL_ID_PREFIX,
    AnswerTextBlock,
    AnswerThinkingBlock,
    AnswerToolUseBlock,
    Block,
    MessageBody,
    MessageUsage,
    ServerToolUseBody,
    server_tool_result,
    stop_reason,
)
from vlmkit_server.conversation.executed_calls import ResultDelta
from vlmkit_server.exchange.streaming import EVENT_STREAM
from vlmkit_server.http.errors import fault_of, status_of
from vlmkit_server.http.message_errors import message_error
from vlmkit_server.interfaces.conversation import NO_EXTRAS, AnswerHead, Extras
from vlmkit_server.wire.image_transforms import image_transforms

_encode = msgspec.json.encode
_BLOCKS: dict[type[Delta], Block] = {
    TextDelta: AnswerTextBlock(""),
    ReasoningDelta: AnswerThinkingBlock(""),
}
_STARTS = {
    TextDelta: b'{"type":"text_delta","text":',
    ReasoningDelta: b'{"type":"thinking_delta","thinking":',
    ToolCallDelta: b'{"type":"input_json_delta","partial_json":',
}


class MessageEvents:
    """Encodes one answer.

    Args:
        head: the fields that every object of the answer repeats.
        num_prompt_tokens: the number of tokens of the prompt.
        extras: what the last events report besides the usage.
        runs_calls: whether the server executes the calls.
    """

    def __init__(
        self,
        head: AnswerHead,
        num_prompt_tokens: int,
        extras: Extras = NO_EXTRAS,
        *,
        runs_calls: bool = False,
    ) -> None:
        usage = MessageUsage.of(Usage(num_prompt_tokens))
        self._message = MessageBody(head.id, head.model, [], usage)
        self._num_blocks = 0
        self._open: type[TextDelta | ReasoningDelta] | None = None
        self._delta_start = b""
        self._call_starts: dict[int, bytes] = {}  # the start of each call's deltas
        self._call_ids: dict[int, str] = {}  # of calls that the server executes
        self._runs_calls = runs_calls
        self._has_transforms = extras.image_transforms
        self._has_places = extras.places
        self._places: Sequence[GroundedRegion] = ()
        self._finish_reason: FinishReason | None = None
        self._stop_string: str | None = None

    media_type = EVENT_STREAM
    repeats_answer = False

    @property
    def ping(self) -> bytes:
        """A keep-alive event."""
        return _event("ping")

    def opening(self) -> bytes:
        """Return the first event: a message without content."""
        return _event("message_start", message=self._message)

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return the events of chunks; empty while their text is held back."""
        events = []
        for chunk in chunks:
            for delta in chunk.deltas:
                if isinstance(delta, ToolCallDelta):
                    events.append(self._call_events(delta))
                    continue
                if type(delta) is not self._open:
                    events.append(self._begin_block(type(delta), _BLOCKS[type(delta)]))
                    self._open = type(delta)
                events += (self._delta_start, _encode(delta.text), b"}}\n\n")
            if chunk.finish_reason is not None:
                self._finish_reason, self._stop_string = chunk.finish_reason, chunk.stop_string
                self._places = chunk.places
        return b"".join(events)

    def closing(self, usage: Usage) -> bytes:
        """Return the last events: the stop reason and the usage."""
        calls = bool(self._call_starts) and not self._runs_calls
        delta: dict[str, Any] = {
            "stop_reason": stop_reason(self._finish_reason, self._stop_string, calls=calls),
            "stop_sequence": self._stop_string,
        }
        if self._has_places:
            delta["places"] = self._places
        extensions = (
            {"image_transforms": image_transforms(usage.images)} if self._has_transforms else {}
        )
        message_delta = _event(
            "message_delta", delta=delta, usage=MessageUsage.of(usage), **extensions
        )
        return self._end_block() + message_delta + _event("message_stop")

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the event of a failed answer, which Anthropic's clients raise as an exception."""
        fault = fault_of(error, scope)
        return b"event: error\ndata: " + message_error(fault, status_of(error), scope) + b"\n\n"

    def _call_events(self, delta: ToolCallDelta) -> bytes:
        """Return the events of a piece of a call; the first piece starts a block."""
        if isinstance(delta, ResultDelta):
            return self._result_events(delta)
        started = b""
        if delta.index not in self._call_starts:
            block: Block = AnswerToolUseBlock(delta.id, delta.name)
            if self._runs_calls:
                block = ServerToolUseBody(SERVER_TOOL_ID_PREFIX + delta.id, delta.name)
                self._call_ids[delta.index] = block.id
            started = self._begin_block(ToolCallDelta, block)
            self._open = None
            self._call_starts[delta.index] = self._delta_start
        if not delta.arguments:
            return started
        return started + self._call_starts[delta.index] + _encode(delta.arguments) + b"}}\n\n"

    def _result_events(self, delta: ResultDelta) -> bytes:
        """Return the events of the result of a call, which is sent as one block."""
        use_id = self._call_ids[delta.index]
        self._open = None
        return self._begin_block(
            ToolCallDelta, server_tool_result(use_id, delta.text, is_error=delta.is_error)
        )

    def _begin_block(self, kind: type[Delta], block: Block) -> bytes:
        """Return the events that end the open block and start another one."""
        finished, index = self._end_block(), self._num_blocks
        self._num_blocks += 1
        start = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
        self._delta_start = start % index + b'"delta":' + _STARTS[kind]
        return finished + _event("content_block_start", index=index, content_block=block)

    def _end_block(self) -> bytes:
        """Return the events that end the open block; clients expect a signature after thinking."""
        if not self._num_blocks:
            return b""
        index = self._num_blocks - 1
        finished = _event("content_block_stop", index=index)
        if self._open is not ReasoningDelta:
            return finished
        signature = {"type": "signature_delta", "signature": ""}
        return _event("content_block_delta", index=index, delta=signature) + finished


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind} | fields))
