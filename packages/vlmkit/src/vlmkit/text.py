"""The text of one answer as it grows: detokenised, and cut at stop strings.

Text that could still become a stop string is held back, so nothing shown is ever taken back.
"""

from vlmkit.protocols import TokenStream


class AnswerText:
    """Feeds tokens to a detokenizer and releases what is safe to show.

    Args:
        tokens: a fresh incremental detokenizer.
        stop: strings that end the answer and are not part of it.
        min_tokens: tokens before which a stop string does not count.
    """

    def __init__(
        self, tokens: TokenStream, stop: tuple[str, ...] = (), min_tokens: int = 0
    ) -> None:
        self._tokens = tokens
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._held = ""
        self.is_stopped = False

    def push(self, token_id: int) -> str:
        """Take one token; return the text that is now safe to show."""
        self._num_tokens += 1
        return self._release(self._tokens.push(token_id))

    def finish(self) -> str:
        """Return what was held back: the answer ended, so it cannot become a stop string."""
        if self.is_stopped:
            return ""
        text = self._release(self._tokens.flush()) + self._held
        self._held = ""
        return text

    def _release(self, new: str) -> str:
        if not self._stop:
            return new
        text = self._held + new
        if self._num_tokens >= self._min_tokens and (cut := self._find_stop(text)) is not None:
            self.is_stopped = True
            self._held = ""
            return text[:cut]
        num_held = self._num_held(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def _find_stop(self, text: str) -> int | None:
        found = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        return min(found, default=None)

    def _num_held(self, text: str) -> int:
        """Return the length of the longest end of ``text`` that begins a stop string."""
        for num in range(min(len(text), self._longest - 1), 0, -1):
            if any(stop.startswith(text[-num:]) for stop in self._stop):
                return num
        return 0
