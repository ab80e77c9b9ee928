"""The parser of answers with reasoning between delimiters before the text.

Reasoning is only at the beginning of an answer; later delimiters are text. White space around
delimiters is dropped. The result does not depend on how an answer is split into tokens.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from vlmkit.interfaces.chat_format import Mark
from vlmkit.kit.plain_parser import PlainParser, TokenStream, num_begun
from vlmkit.types.delta import Delta, ReasoningDelta


class Speech(Protocol):
    """Parses the part of an answer after the reasoning.

    Attributes:
        tokens: the detokenizer; the reasoning parser hands over its own.
        marks: tokens that end the search for reasoning even before any text.
    """

    tokens: TokenStream
    marks: frozenset[int]

    def push(self, token_id: int) -> tuple[Delta, ...]:
        """Return what this token adds."""
        ...

    def take(self, text: str) -> tuple[Delta, ...]:
        """Return what more text adds."""
        ...

    def finish(self) -> tuple[Delta, ...]:
        """Return the text that was held back."""
        ...


class ReasoningParser:
    """Separates reasoning from text; see :class:`vlmkit.interfaces.reader.AnswerReader`.

    Args:
        stream: returns a fresh incremental detokenizer.
        start: the delimiter that begins reasoning.
        end: the delimiter that ends reasoning.
        is_open: whether the prompt opened the reasoning already.
        said: parses the rest of the answer; plain text when None.
    """

    def __init__(
        self,
        stream: Callable[[], TokenStream],
        start: Mark,
        end: Mark,
        *,
        is_open: bool = False,
        said: Speech | None = None,
    ) -> None:
        self._stream = stream
        self._tokens = stream()
        self._said: Speech = PlainParser(self._tokens) if said is None else said
        self._start, self._end = start, end
        self._is_open = is_open
        self._phase: Literal["begin", "think", "pause", "say"] = "begin"
        self._held = ""
        self._num_tokens = 0

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of reasoning tokens so far, delimiters included."""
        return self._num_tokens if self._is_open else 0

    def push(self, token_id: int) -> tuple[Delta, ...]:
        """Return what this token adds to reasoning or text."""
        if self._phase == "say":
            return self._said.push(token_id)
        if token_id in self._said.marks and self._is_spoken():
            deltas = self._take(self._tokens.flush())
            return deltas + self._hand_over() + self._said.push(token_id)
        if self._phase != "pause":
            self._num_tokens += 1
        mark = next((mark for mark in self._marks() if mark.token_id == token_id), None)
        if mark is None:
            return self._take(self._tokens.push(token_id))
        deltas = self._take(self._tokens.flush())  # text is complete before a delimiter
        self._tokens = self._stream()
        return deltas + self._pass(mark)

    def finish(self) -> tuple[Delta, ...]:
        """Return the text that was held back; an answer may end inside its reasoning."""
        if self._phase == "say":
            return self._said.finish()
        deltas = self._take(self._tokens.flush())
        if self._is_spoken():
            return deltas + self._hand_over() + self._said.finish()
        held, self._held = self._held, ""
        return (*deltas, ReasoningDelta(held)) if held.strip() else deltas

    def _is_spoken(self) -> bool:
        """Return whether the next token is text, unless it begins reasoning."""
        return self._phase in ("pause", "say") or (self._phase == "begin" and not self._is_open)

    def _hand_over(self) -> tuple[Delta, ...]:
        """Switch to the parser of the rest; return its deltas for the held text."""
        held, self._held = self._held, ""
        self._phase = "say"
        self._said.tokens = self._tokens
        return self._said.take(held)

    def _marks(self) -> tuple[Mark, ...]:
        """Return the delimiters that are valid in the present phase."""
        if self._phase == "begin":
            return (self._start, self._end) if self._is_open else (self._start,)
        return (self._end,) if self._phase == "think" else ()

    def _take(self, text: str) -> tuple[Delta, ...]:
        """Parse more of the answer's text; return deltas as far as their kind is known."""
        self._held += text
        if not self._held:
            return ()
        if self._phase == "begin":
            return self._begin()
        if self._phase == "think":
            return self._think()
        return self._say(self._held.lstrip())

    def _pass(self, mark: Mark) -> tuple[Delta, ...]:
        """Continue after a delimiter; white space before it is dropped."""
        thought, self._held = self._held.rstrip(), ""
        if mark is self._start:
            self._is_open = True
            return ()
        self._phase = "pause"
        return (ReasoningDelta(thought),) if thought else ()

    def _begin(self) -> tuple[Delta, ...]:
        """Decide whether the answer begins with reasoning, once it has more than white space."""
        begun = self._held.lstrip()
        spelled = [mark for mark in self._marks() if mark.token_id is None]
        for mark in spelled:
            if begun.startswith(mark.text):
                self._held = ""
                return self._pass(mark) + self._take(begun.removeprefix(mark.text))
        if any(mark.text.startswith(begun) for mark in spelled) or not begun:
            return ()
        if not self._is_open:
            return self._say(self._held)
        self._phase, self._held = "think", begun
        return self._think()

    def _think(self) -> tuple[Delta, ...]:
        """Return the reasoning so far, without a suffix that may begin the end delimiter."""
        end = "" if self._end.token_id is not None else self._end.text
        thought, found, rest = self._held.partition(end) if end else (self._held, "", "")
        if found:
            self._held = thought
            return self._pass(self._end) + self._take(rest)
        num_held = num_begun(thought, end)
        shown = thought[: len(thought) - num_held].rstrip()
        self._held = thought[len(shown) :]
        return (ReasoningDelta(shown),) if shown else ()

    def _say(self, text: str) -> tuple[Delta, ...]:
        """Return text; after the first text there is no further reasoning."""
        self._held = text
        return self._hand_over() if text else ()
