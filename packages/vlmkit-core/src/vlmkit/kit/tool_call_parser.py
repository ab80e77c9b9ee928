"""Tells calls of tools from text, in what a model says.

What turns out to be no call is text, unless it is a call that was cut off before its name. Deltas
of a call are not taken back. White space around calls is dropped. How the tokens of an answer spell
a call makes no difference.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence as Seq
from string import ascii_letters, digits
from typing import Any, Literal

from vlmkit.formats.partial_tool_call import new_call
from vlmkit.interfaces.chat_format import CallFormat
from vlmkit.kit.plain_parser import TokenStream, num_begun
from vlmkit.types.delta import Delta, TextDelta, ToolCallDelta

ID_CHARS = 9  # templates of some families take no other


class ToolCallParser:
    """Reads what is said; see :class:`vlmkit.interfaces.reader.AnswerReader`.

    Args:
        stream: returns a fresh incremental detokenizer.
        form: how calls are written.
        tools: the definitions of what may be called.
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
        deltas = self.take(self.tokens.flush())  # before a mark no text is unfinished
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
        told: list[Delta] = []
        while self._held:
            phase, num_held = self._phase, len(self._held)
            told += self._taken()
            if (phase, num_held) == (self._phase, len(self._held)):
                break
        return tuple(told)

    def finish(self) -> tuple[Delta, ...]:
        """Return what was held back; an answer may end inside a call.

        Behind a mark that is a token, what is cut off before the call's name is dropped.
        """
        deltas = self.take(self.tokens.flush())
        if self._phase == "call":
            is_text = self._call.name is None and self._form.open.token_id is None
            return deltas + (self._given_back() if is_text else ())
        held, self._held = self._held, ""
        is_said = held.strip() if self._phase == "after" else held
        return (*deltas, TextDelta(held)) if is_said else deltas

    def _taken(self) -> tuple[Delta, ...]:
        """Return what is known of the held text, as far as it is of one kind."""
        if self._phase == "begin":
            return self._begin()
        if self._phase == "call":
            return self._write()
        if self._phase == "after":
            return self._go_on()
        return self._say()

    def _begin(self) -> tuple[Delta, ...]:
        """Decide whether an answer is a call, where no mark tells."""
        begun = self._held.lstrip()
        if begun.startswith("{"):
            self._held = begun
            self._start()
            self._phase = "call"
        elif begun:
            self._phase = "end"
        return ()

    def _say(self) -> tuple[Delta, ...]:
        """Return text, but for what may belong to a call: white space, and half a mark."""
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
        """Expect a call."""
        self._call = new_call(self._form, self._tools)
        self._written = ""
        self._is_told = self._has_arguments = False

    def _open(self) -> tuple[Delta, ...]:
        """Begin a call at its mark."""
        is_cut = self._phase == "call" and self._call.name is None
        deltas = self._given_back() if is_cut else ()
        self._held = ""  # white space before the mark
        self._is_in_list = False
        self._start()
        self._phase = "call"
        return deltas

    def _close(self) -> tuple[Delta, ...]:
        """End a call at its mark."""
        deltas = self._told(self._call.close())
        if self._call.name is None:
            return (*self._given_back(), TextDelta(self._form.close.text))
        self._phase = "after"
        return deltas + self._completed()

    def _write(self) -> tuple[Delta, ...]:
        """Take more of a call."""
        if self._form.is_list and not self._is_in_list and self._held.lstrip().startswith("["):
            self._is_in_list = True
            self._written += "["
            self._held = self._held.lstrip()[1:]
        text, self._held = self._held, ""
        self._written += text
        deltas = self._told(self._call.push(text))
        if self._call.is_broken and self._call.name is None:
            written, self._held = self._written, ""
            self._phase = "say" if self._form.open.text else "end"
            self._held = written
            return (TextDelta(self._form.open.text),) if self._form.open.text else ()
        if not (self._call.is_done or self._call.is_broken):
            return deltas
        self._phase, self._held = "after", self._call.rest
        return deltas + self._completed()

    def _go_on(self) -> tuple[Delta, ...]:
        """Find out what follows a call: its closing mark, another call, or text."""
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

    def _told(self, more: str) -> tuple[Delta, ...]:
        """Return the delta of more of a call, of which the first names it."""
        name = self._call.name
        if name is None or (self._is_told and not more):
            return ()
        self._has_arguments |= bool(more)
        if self._is_told:
            return (ToolCallDelta(self._num_calls - 1, arguments=more),)
        self._is_told = True
        self._num_calls += 1
        return (ToolCallDelta(self._num_calls - 1, new_id(), name, more),)

    def _completed(self) -> tuple[Delta, ...]:
        """Return the arguments of a call that was written without any."""
        return () if self._has_arguments else self._told("{}")

    def _given_back(self) -> tuple[Delta, ...]:
        """Return what was held for a call, and is none, as text."""
        text = self._form.open.text + self._written + self._held
        self._held = self._written = ""
        self._phase = "say" if self._form.open.text else "end"
        return (TextDelta(text),) if text else ()


def new_id() -> str:
    """Return an id for a call."""
    return "".join(secrets.choice(ascii_letters + digits) for _ in range(ID_CHARS))
