"""The parser of answers that are plain text, without reasoning or tool calls."""

from typing import Protocol

from vlmkit.types.delta import Delta, TextDelta


class TokenStream(Protocol):
    """An incremental detokenizer, which never returns part of a character."""

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; may be empty."""
        ...

    def flush(self) -> str:
        """Return the text that was held back, at the end of the stream."""
        ...


class PlainParser:
    """Returns the detokenized text of an answer; see :class:`vlmkit.interfaces.reader`.

    Args:
        tokens: a fresh incremental detokenizer.
    """

    num_reasoning_tokens = 0
    marks: frozenset[int] = frozenset()

    def __init__(self, tokens: TokenStream) -> None:
        self.tokens = tokens

    def push(self, token_id: int) -> tuple[Delta, ...]:
        """Return the text that this token completes."""
        text = self.tokens.push(token_id)
        return (TextDelta(text),) if text else ()

    def take(self, text: str) -> tuple[Delta, ...]:
        """Return text that another parser has detokenized."""
        return (TextDelta(text),) if text else ()

    def finish(self) -> tuple[Delta, ...]:
        """Return the text that was held back."""
        text = self.tokens.flush()
        return (TextDelta(text),) if text else ()


def num_begun(text: str, mark: str) -> int:
    """Return the length of the longest suffix of a text that is a prefix of a delimiter."""
    lengths = range(min(len(text), len(mark) - 1), 0, -1)
    return next((num for num in lengths if text.endswith(mark[:num])), 0)
