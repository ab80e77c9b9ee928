"""The reader of a model whose answers are messages in channels: thoughts, text, calls of tools.

Is generous: what has no head is text, a head may come where a message was not ended, and a call may
stand in any channel. What is no call in the end is text. Marks are tokens, and no text spells them.
"""

from collections.abc import Callable, Mapping, Sequence as Seq
from typing import Any, Literal

from vlmkit.interfaces.chat_format import ChannelFormat, Mark
from vlmkit.kit.plain_parser import TokenStream
from vlmkit.kit.tool_call_parser import new_id
from vlmkit.types.delta import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from vlmkit.types.tool_choice import tool_name

BETWEEN = "\n\n"  # two messages of one kind
MAX_HEAD_CHARS = 1024  # what is longer was none

Kind = Literal["thought", "text", "call"]


class HarmonyParser:
    """Tells what messages say; see :class:`vlmkit.interfaces.reader.AnswerReader`.

    Args:
        stream: returns a fresh incremental detokenizer.
        form: how messages are written; its marks are tokens.
        tools: the definitions of what may be called; without any, no message is a call.
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
        self._begun = ""  # text that may be of a head whose first mark has not come
        self._head: dict[Mark, str] = {}  # by the mark before it
        self._part = form.start  # of the head, which comes
        self._told: set[Kind] = set()
        self._is_new = False  # whether nothing of the message was told
        self._num_calls = 0
        self._num_pending = 0  # tokens of a head that may be a thought's
        self._num_thought = 0

    @property
    def num_reasoning_tokens(self) -> int:
        """How many tokens so far are of reasoning, heads and marks included."""
        return self._num_thought

    def push(self, token_id: int) -> tuple[Delta, ...]:
        """Return what this token adds to a message."""
        was_thought = self._is_thought()
        mark = self._marks.get(token_id)
        if mark is None:
            deltas = self._take(self._tokens.push(token_id))
        else:
            deltas = self._take(self._tokens.flush())  # before a mark no text is unfinished
            self._tokens = self._stream()
            deltas += self._pass(mark)
        self._count(is_thought=was_thought or self._is_thought())
        return deltas

    def finish(self) -> tuple[Delta, ...]:
        """Return what was held back; an answer may end anywhere."""
        deltas = self._take(self._tokens.flush())
        if self._phase == "body":
            return deltas + self._end()
        begun, self._begun = self._begun, ""
        if self._phase == "head" or not (begun.strip() or not self._told):
            return deltas
        if self._tools and begun.lstrip().startswith(self._form.recipient.strip()):
            return deltas  # the head of a call that was cut off
        return deltas + self._say(begun)

    def _is_thought(self) -> bool:
        return self._phase == "body" and self._kind == "thought"

    def _count(self, *, is_thought: bool) -> None:
        """Count a token: that of a head is of what its message turns out to be."""
        self._num_pending += 1
        if is_thought:
            self._num_thought += self._num_pending
        if is_thought or self._phase != "head":
            self._num_pending = 0

    def _take(self, text: str) -> tuple[Delta, ...]:
        """Take more of the answer's text."""
        if not text:
            return ()
        if self._phase == "body":
            return self._tell(text)
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
        return self._tell(text)

    def _pass(self, mark: Mark) -> tuple[Delta, ...]:
        """Go on behind a mark."""
        form = self._form
        if mark in self._ends:
            return self._end()
        if mark is form.start or (mark is form.channel and self._phase == "body"):
            deltas = self._end()
            self._phase, self._part = "head", mark
            return deltas
        if self._phase == "body":  # a mark that means nothing here
            return ()
        if self._phase == "between":
            self._phase, self._head = "head", {form.start: self._begun}
            self._begun = ""
        if mark is form.body:
            return self._begin()
        self._part = mark
        return ()

    def _begin(self) -> tuple[Delta, ...]:
        """Find out by its head what a message is."""
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
        """End a message, or what was begun of one."""
        deltas: tuple[Delta, ...] = ()
        if self._phase == "body" and self._kind == "call" and self._is_new:
            deltas = (ToolCallDelta(self._num_calls - 1, arguments="{}"),)
        elif self._begun.strip():
            deltas = self._say(self._begun)
        self._phase, self._begun, self._head = "between", "", {}
        return deltas

    def _say(self, text: str) -> tuple[Delta, ...]:
        """Return as text what turned out to be no head."""
        self._kind, self._is_new = "text", True
        return self._tell(text)

    def _tell(self, text: str) -> tuple[Delta, ...]:
        """Return more of a message."""
        if self._kind == "call":
            text = text.lstrip() if self._is_new else text
            if not text:
                return ()
            self._is_new = False
            return (ToolCallDelta(self._num_calls - 1, arguments=text),)
        if not text:
            return ()
        if self._is_new and self._kind in self._told:
            text = BETWEEN + text
        self._is_new = False
        self._told.add(self._kind)
        return (ReasoningDelta(text) if self._kind == "thought" else TextDelta(text),)
