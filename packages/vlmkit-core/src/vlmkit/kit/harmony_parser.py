"""The parser of answers that consist of messages in channels: reasoning, text and tool calls.

It is lenient. Text without a header is text, a header may follow a message that was not ended, and
a call may be in any channel. An invalid call is text. Delimiters are tokens; text never spells
them.
"""

from collections.abc import Callable, Mapping, Sequence as Seq
from typing import Any, Literal

from vlmkit.interfaces.chat_format import ChannelFormat, Mark
from vlmkit.kit.plain_parser import TokenStream
from vlmkit.kit.tool_call_parser import new_id
from vlmkit.types.delta import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from vlmkit.types.tool_choice import tool_name

BETWEEN = "\n\n"  # separates two messages of one kind
MAX_HEAD_CHARS = 1024  # a longer text is not a header

Kind = Literal["thought", "text", "call"]


class HarmonyParser:
    """Parses messages in channels; see :class:`vlmkit.interfaces.reader.AnswerReader`.

    Args:
        stream: returns a fresh incremental detokenizer.
        form: the format of messages; its delimiters are tokens.
        tools: definitions of the tools; if empty, no message is a call.
    """

    def __init__(
        self,
        stream: Callable[[], TokenStream],
        form: ChannelFormat,
        tools: Seq[Mapping[str, Any]] = (),
    ) -> None:
        self._stream = stream
        self._tokens = stream()
        self._form = form
        self._tools = frozenset(map(tool_name, tools))
        marks = (form.start, form.channel, form.kind, form.body, form.end, form.last, form.call)
        self._marks = {mark.token_id: mark for mark in marks}
        self._ends = (form.end, form.last, form.call)
        self._phase: Literal["between", "head", "body"] = "body" if form.opens else "between"
        self._kind: Kind = "thought" if form.opens == form.reasoning else "text"
        self._begun = ""  # text that may belong to a header whose first delimiter is missing
        self._head: dict[Mark, str] = {}  # parts of the header by the delimiter before them
        self._part = form.start  # the current part of the header
        self._emitted: set[Kind] = set()
        self._is_new = False  # whether no delta of the message was returned
        self._num_calls = 0
        self._num_pending = 0  # tokens of a header that may be of reasoning
        self._num_thought = 0

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of reasoning tokens so far, headers and delimiters included."""
        return self._num_thought

    def push(self, token_id: int) -> tuple[Delta, ...]:
        """Return what this token adds to a message."""
        was_thought = self._is_thought()
        mark = self._marks.get(token_id)
        if mark is None:
            deltas = self._take(self._tokens.push(token_id))
        else:
            deltas = self._take(self._tokens.flush())  # text is complete before a delimiter
            self._tokens = self._stream()
            deltas += self._pass(mark)
        self._count(is_thought=was_thought or self._is_thought())
        return deltas

    def finish(self) -> tuple[Delta, ...]:
        """Return the text that was held back; an answer may end anywhere."""
        deltas = self._take(self._tokens.flush())
        if self._phase == "body":
            return deltas + self._end()
        begun, self._begun = self._begun, ""
        if self._phase == "head" or not (begun.strip() or not self._emitted):
            return deltas
        if self._tools and begun.lstrip().startswith(self._form.recipient.strip()):
            return deltas  # the header of a truncated call
        return deltas + self._say(begun)

    def _is_thought(self) -> bool:
        return self._phase == "body" and self._kind == "thought"

    def _count(self, *, is_thought: bool) -> None:
        """Count a token; tokens of a header count as the kind of their message."""
        self._num_pending += 1
        if is_thought:
            self._num_thought += self._num_pending
        if is_thought or self._phase != "head":
            self._num_pending = 0

    def _take(self, text: str) -> tuple[Delta, ...]:
        """Parse more of the answer's text."""
        if not text:
            return ()
        if self._phase == "body":
            return self._emit(text)
        if self._phase == "head":
            self._head[self._part] = (self._head.get(self._part, "") + text)[:MAX_HEAD_CHARS]
            return ()
        self._begun += text
        begun, recipient = self._begun.lstrip(), self._form.recipient.strip()
        may_begin = recipient.startswith(begun[: len(recipient)])
        if may_begin and len(self._begun) <= MAX_HEAD_CHARS:
            return ()
        self._phase, self._kind, self._is_new = "body", "text", True
        text, self._begun = self._begun, ""
        return self._emit(text)

    def _pass(self, mark: Mark) -> tuple[Delta, ...]:
        """Continue after a delimiter."""
        form = self._form
        if mark in self._ends:
            return self._end()
        if mark is form.start or (mark is form.channel and self._phase == "body"):
            deltas = self._end()
            self._phase, self._part = "head", mark
            return deltas
        if self._phase == "body":  # a delimiter without meaning here
            return ()
        if self._phase == "between":
            self._phase, self._head = "head", {form.start: self._begun}
            self._begun = ""
        if mark is form.body:
            return self._begin()
        self._part = mark
        return ()

    def _begin(self) -> tuple[Delta, ...]:
        """Begin the body of a message; determine its kind by its header."""
        form, head = self._form, self._head
        self._head = {}
        self._phase, self._is_new = "body", True
        words = [*head.get(form.start, "").split(), *head.get(form.channel, "").split()]
        recipient = form.recipient.strip()
        called = next((w.removeprefix(recipient) for w in words if w.startswith(recipient)), "")
        name = called.removeprefix(form.namespace)
        if self._tools and name and (name != called or name in self._tools):
            self._kind = "call"
            self._num_calls += 1
            return (ToolCallDelta(self._num_calls - 1, new_id(), name),)
        is_thought = form.reasoning in head.get(form.channel, "").split()
        self._kind = "thought" if is_thought else "text"
        return ()

    def _end(self) -> tuple[Delta, ...]:
        """End a message, or an incomplete header."""
        deltas: tuple[Delta, ...] = ()
        if self._phase == "body" and self._kind == "call" and self._is_new:
            deltas = (ToolCallDelta(self._num_calls - 1, arguments="{}"),)
        elif self._begun.strip():
            deltas = self._say(self._begun)
        self._phase, self._begun, self._head = "between", "", {}
        return deltas

    def _say(self, text: str) -> tuple[Delta, ...]:
        """Return text that turned out not to be a header."""
        self._kind, self._is_new = "text", True
        return self._emit(text)

    def _emit(self, text: str) -> tuple[Delta, ...]:
        """Return the delta of more text of a message."""
        if self._kind == "call":
            text = text.lstrip() if self._is_new else text
            if not text:
                return ()
            self._is_new = False
            return (ToolCallDelta(self._num_calls - 1, arguments=text),)
        if not text:
            return ()
        if self._is_new and self._kind in self._emitted:
            text = BETWEEN + text
        self._is_new = False
        self._emitted.add(self._kind)
        return (ReasoningDelta(text) if self._kind == "thought" else TextDelta(text),)
