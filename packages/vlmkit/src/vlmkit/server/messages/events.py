"""Server-sent events of one answer of Anthropic's API; what is the same in many is encoded once."""

from collections.abc import Iterable
from typing import Any

import msgspec
from litestar.types import Scope

from vlmkit.ask.completion import Chunk, FinishReason, Usage
from vlmkit.ask.delta import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from vlmkit.server.chat.answer import AnswerHead
from vlmkit.server.http.errors import fault_of, status_of
from vlmkit.server.messages.answer import (
    Block,
    CalledBlock,
    MessageBody,
    MessageUsage,
    SaidBlock,
    ThoughtBlock,
    stop_reason,
)
from vlmkit.server.messages.errors import message_error

_encode = msgspec.json.encode
_BLOCKS: dict[type[Delta], Block] = {TextDelta: SaidBlock(""), ReasoningDelta: ThoughtBlock("")}
_STARTS = {
    TextDelta: b'{"type":"text_delta","text":',
    ReasoningDelta: b'{"type":"thinking_delta","thinking":',
    ToolCallDelta: b'{"type":"input_json_delta","partial_json":',
}


class MessageEvents:
    """Encodes one answer.

    Args:
        head: what it is called.
        num_prompt_tokens: what the prompt took.
    """

    def __init__(self, head: AnswerHead, num_prompt_tokens: int) -> None:
        usage = MessageUsage.of(Usage(num_prompt_tokens))
        self._message = MessageBody(head.id, head.model, [], usage)
        self._num_blocks = 0
        self._open: type[TextDelta | ReasoningDelta] | None = None
        self._delta_start = b""
        self._call_starts: dict[int, bytes] = {}  # what deltas of each call begin with
        self._finish_reason: FinishReason | None = None
        self._stop_string: str | None = None

    @property
    def ping(self) -> bytes:
        """An event that says nothing."""
        return _event("ping")

    def opening(self) -> bytes:
        """Return the first event: a message without content."""
        return _event("message_start", message=self._message)

    def chunks(self, chunks: Iterable[Chunk]) -> bytes:
        """Return the events of some chunks; empty while their text is held back."""
        events = []
        for chunk in chunks:
            for delta in chunk.deltas:
                if isinstance(delta, ToolCallDelta):
                    events.append(self._called(delta))
                    continue
                if type(delta) is not self._open:
                    events.append(self._begin(type(delta), _BLOCKS[type(delta)]))
                    self._open = type(delta)
                events += (self._delta_start, _encode(delta.text), b"}}\n\n")
            if chunk.finish_reason is not None:
                self._finish_reason, self._stop_string = chunk.finish_reason, chunk.stop_string
        return b"".join(events)

    def closing(self, usage: Usage) -> bytes:
        """Return the last events: why it ended, and what it took."""
        delta = {
            "stop_reason": stop_reason(
                self._finish_reason, self._stop_string, calls=bool(self._call_starts)
            ),
            "stop_sequence": self._stop_string,
        }
        told = _event("message_delta", delta=delta, usage=MessageUsage.of(usage))
        return self._end() + told + _event("message_stop")

    def failed(self, error: Exception, scope: Scope) -> bytes:
        """Return the event that ends an answer which failed; Anthropic's clients raise it."""
        fault = fault_of(error, scope)
        return b"event: error\ndata: " + message_error(fault, status_of(error), scope) + b"\n\n"

    def _called(self, delta: ToolCallDelta) -> bytes:
        """Return the events of more of a call, of which the first begins a block."""
        begun = b""
        if delta.index not in self._call_starts:
            begun = self._begin(ToolCallDelta, CalledBlock(delta.id, delta.name))
            self._open = None
            self._call_starts[delta.index] = self._delta_start
        if not delta.arguments:
            return begun
        return begun + self._call_starts[delta.index] + _encode(delta.arguments) + b"}}\n\n"

    def _begin(self, kind: type[Delta], block: Block) -> bytes:
        """Return what ends the block that is open, and begins another one."""
        ended, index = self._end(), self._num_blocks
        self._num_blocks += 1
        start = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
        self._delta_start = start % index + b'"delta":' + _STARTS[kind]
        return ended + _event("content_block_start", index=index, content_block=block)

    def _end(self) -> bytes:
        if not self._num_blocks:
            return b""
        return _event("content_block_stop", index=self._num_blocks - 1)


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind} | fields))
