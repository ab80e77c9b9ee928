"""The text of one answer as it grows, cut at stop strings.

Text that could still become a stop string is held back, so no shown text is ever retracted. Stop
strings are not searched in reasoning.
"""

from vlmkit.interfaces.reader import AnswerReader
from vlmkit.types.delta import Delta, TextDelta


class AnswerText:
    """Feeds tokens to a reader and releases the text that is safe to show.

    Args:
        reader: a new one for this answer.
        stop: strings that end the answer.
        min_tokens: tokens before which stop strings are ignored.
        shows_stop: whether the stop string is part of the text.

    Attributes:
        num_reasoning_tokens: tokens of reasoning so far; may be read from any thread.
        stop_string: the stop string that ended the answer; None if none did.
    """

    def __init__(
        self,
        reader: AnswerReader,
        stop: tuple[str, ...] = (),
        min_tokens: int = 0,
        *,
        shows_stop: bool = False,
    ) -> None:
        self._reader = reader
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._min_tokens = min_tokens
        self._shows_stop = shows_stop
        self._num_tokens = 0
        self._held = ""
        self.num_reasoning_tokens = 0
        self.stop_string: str | None = None

    def push(self, token_id: int) -> tuple[Delta, ...]:
        """Take one token; return the deltas that are now safe to show."""
        deltas = self._reader.push(token_id)
        self.num_reasoning_tokens = self._reader.num_reasoning_tokens
        if not self._stop:
            return deltas
        self._num_tokens += 1
        return self._cut(deltas)

    def finish(self) -> tuple[Delta, ...]:
        """Return the text that was held back: no stop string can complete after the end."""
        if self.stop_string is not None:
            return ()
        deltas = self._reader.finish()
        self.num_reasoning_tokens = self._reader.num_reasoning_tokens
        if not self._stop:
            return deltas
        shown = self._cut(deltas)
        held, self._held = self._held, ""
        return (*shown, TextDelta(held)) if held else shown

    def _cut(self, deltas: tuple[Delta, ...]) -> tuple[Delta, ...]:
        """Return the deltas that are safe to show, up to a stop string."""
        shown: list[Delta] = []
        for delta in deltas:
            if not isinstance(delta, TextDelta):
                shown.append(delta)
            elif text := self._release(delta.text):
                shown.append(TextDelta(text))
            if self.stop_string is not None:
                break
        return tuple(shown)

    def _release(self, new: str) -> str:
        text = self._held + new
        if self._num_tokens >= self._min_tokens and (cut := self._find_stop(text)) is not None:
            self._held = ""
            return text[:cut]
        num_held = self._num_held(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def _find_stop(self, text: str) -> int | None:
        """Return where the first stop string ends a text, and note which it is."""
        found = [(start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        if not found:
            return None
        start, stop = min(found)
        self.stop_string = stop
        return start + len(stop) if self._shows_stop else start

    def _num_held(self, text: str) -> int:
        """Return the length of the longest suffix of ``text`` that begins a stop string."""
        for num in range(min(len(text), self._longest - 1), 0, -1):
            if any(stop.startswith(text[-num:]) for stop in self._stop):
                return num
        return 0
