"""Separates tool calls from text in an answer.

An invalid call is text, unless it was truncated before its name. Deltas of a call are never
retracted. White space around calls is dropped. The result does not depend on how an answer is split
into tokens.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence as Seq
from string import ascii_letters, digits
from typing import Any, Literal

from vlmkit.formats.partial_tool_call import new_call
from vlmkit.interfaces.chat_format import CallFormat
from vlmkit.kit.plain_parser import TokenStream, num_begun
from vlmkit.types.delta import Delta, TextDelta, ToolCallDelta

ID_CHARS = 9  # templates of some families accept no other length


class ToolCallParser:
    """Parses text and tool calls; see :class:`vlmkit.interfaces.reader.AnswerReader`.

    Args:
        stream: returns a fresh incremental detokenizer.
        form: the format of calls.
        tools: definitions of the tools that may be called.
    """

    num_reasoning_tokens = 0

    def __init__(
        self,
        stream: Callable[[], TokenStream],
        form: CallFormat,
        tools: Seq[Mapping[str, Any]],
    ) -> None:
        self.tokens = stream()
        self._stream = stream
        self._form = form
        self._tools = tools
        marks = (form.open, form.close, *form.inner)
        self._marks = {mark.token_id: mark for mark in marks if mark.token_id is not None}
        self.marks = frozenset(self._marks)
        self._phase: Literal["begin", "say", "call", "after", "end"]
        self._phase = "say" if form.open.text else "begin"
        self._held = ""
        self._num_calls = 0
        self._is_in_list = False
        self._start()

    def push(self, token_id: int) -> tuple[Delta, ...]:
        """Return what this token adds to text or calls."""
        mark = self._marks.get(token_id)
        if mark is None:
            return self.take(self.tokens.push(token_id))
        deltas = self.take(self.tokens.flush())  # text is complete before a delimiter
        self.tokens = self._stream()
        if mark is self._form.open:
            return deltas + self._open()
        if self._phase == "call":
            return deltas + (self._close() if mark is self._form.close else self.take(mark.text))
        if self._phase == "after" and mark is self._form.close:
            return deltas
        return deltas + self.take(self.tokens.push(token_id))

    def take(self, text: str) -> tuple[Delta, ...]:
        """Return what more of the answer's text adds."""
        self._held += text
        deltas: list[Delta] = []
        while self._held:
            phase, num_held = self._phase, len(self._held)
            deltas += self._parse_held()
            if (phase, num_held) == (self._phase, len(self._held)):
                break
        return tuple(deltas)

    def finish(self) -> tuple[Delta, ...]:
        """Return the text that was held back; an answer may end inside a call.

        After a delimiter token, a call that is truncated before its name is dropped.
        """
        deltas = self.take(self.tokens.flush())
        if self._phase == "call":
            is_text = self._call.name is None and self._form.open.token_id is None
            return deltas + (self._held_as_text() if is_text else ())
        held, self._held = self._held, ""
        is_said = held.strip() if self._phase == "after" else held
        return (*deltas, TextDelta(held)) if is_said else deltas

    def _parse_held(self) -> tuple[Delta, ...]:
        """Parse the held text up to the next change of phase."""
        if self._phase == "begin":
            return self._begin()
        if self._phase == "call":
            return self._write()
        if self._phase == "after":
            return self._after_call()
        return self._say()

    def _begin(self) -> tuple[Delta, ...]:
        """Decide whether an answer is a call, for formats without an opening delimiter."""
        begun = self._held.lstrip()
        if begun.startswith("{"):
            self._held = begun
            self._start()
            self._phase = "call"
        elif begun:
            self._phase = "end"
        return ()

    def _say(self) -> tuple[Delta, ...]:
        """Return text, without a suffix that may belong to a call: white space, a delimiter."""
        mark = self._form.open.text if self._form.open.token_id is None else ""
        if self._phase == "end" or not mark:
            said, found, num_held = self._held, "", 0
        else:
            said, found, rest = self._held.partition(mark)
            num_held = 0 if found else num_begun(said, mark)
        shown = said[: len(said) - num_held]
        shown = shown if self._phase == "end" else shown.rstrip()
        self._held = self._held[len(shown) :]
        deltas = (TextDelta(shown),) if shown else ()
        if found:
            self._held = rest
            self._start()
            self._phase = "call"
        return deltas

    def _start(self) -> None:
        """Prepare to parse a call."""
        self._call = new_call(self._form, self._tools)
        self._written = ""
        self._is_named = self._has_arguments = False  # in the deltas returned so far

    def _open(self) -> tuple[Delta, ...]:
        """Begin a call at its opening delimiter."""
        is_cut = self._phase == "call" and self._call.name is None
        deltas = self._held_as_text() if is_cut else ()
        self._held = ""  # white space before the delimiter
        self._is_in_list = False
        self._start()
        self._phase = "call"
        return deltas

    def _close(self) -> tuple[Delta, ...]:
        """End a call at its closing delimiter."""
        deltas = self._call_deltas(self._call.close())
        if self._call.name is None:
            return (*self._held_as_text(), TextDelta(self._form.close.text))
        self._phase = "after"
        return deltas + self._completed()

    def _write(self) -> tuple[Delta, ...]:
        """Parse more of a call."""
        if self._form.is_list and not self._is_in_list and self._held.lstrip().startswith("["):
            self._is_in_list = True
            self._written += "["
            self._held = self._held.lstrip()[1:]
        text, self._held = self._held, ""
        self._written += text
        deltas = self._call_deltas(self._call.push(text))
        if self._call.is_broken and self._call.name is None:
            written, self._held = self._written, ""
            self._phase = "say" if self._form.open.text else "end"
            self._held = written
            return (TextDelta(self._form.open.text),) if self._form.open.text else ()
        if not (self._call.is_done or self._call.is_broken):
            return deltas
        self._phase, self._held = "after", self._call.rest
        return deltas + self._completed()

    def _after_call(self) -> tuple[Delta, ...]:
        """Determine what follows a call: its closing delimiter, another call, or text."""
        begun = self._held.lstrip()
        separators = "," * self._is_in_list + ";" * (not self._form.open.text)
        begun = begun.lstrip(separators + " \n\t\r") if separators else begun
        close, open_ = self._form.close, self._form.open
        spelled = [mark.text for mark in (close, open_) if mark.token_id is None and mark.text]
        self._held = begun
        if not begun:
            return ()
        if self._is_in_list and begun.startswith("]"):
            self._held, self._is_in_list = begun[1:], False
        elif begun.startswith("{") and (self._is_in_list or not open_.text):
            self._start()
            self._phase = "call"
        elif close.token_id is None and close.text and begun.startswith(close.text):
            self._held = begun.removeprefix(close.text)
        elif not any(text.startswith(begun) for text in spelled):
            self._phase = "say" if open_.text else "end"
        return ()

    def _call_deltas(self, more: str) -> tuple[Delta, ...]:
        """Return the delta for more arguments of a call; the first delta also names the tool."""
        name = self._call.name
        if name is None or (self._is_named and not more):
            return ()
        self._has_arguments |= bool(more)
        if self._is_named:
            return (ToolCallDelta(self._num_calls - 1, arguments=more),)
        self._is_named = True
        self._num_calls += 1
        return (ToolCallDelta(self._num_calls - 1, new_id(), name, more),)

    def _completed(self) -> tuple[Delta, ...]:
        """Return empty arguments for a call that was written without any."""
        return () if self._has_arguments else self._call_deltas("{}")

    def _held_as_text(self) -> tuple[Delta, ...]:
        """Return the text that was held for a call that turned out to be invalid."""
        text = self._form.open.text + self._written + self._held
        self._held = self._written = ""
        self._phase = "say" if self._form.open.text else "end"
        return (TextDelta(text),) if text else ()


def new_id() -> str:
    """Return a random id for a call."""
    return "".join(secrets.choice(ascii_letters + digits) for _ in range(ID_CHARS))
