"""The interface of answer parsers, which turn tokens into deltas; no implementation.

Methods run in the engine loop's thread, once for each token, so every answer waits for them.
"""

from typing import Protocol

from vlmkit.types.delta import Delta


class AnswerReader(Protocol):
    """Parses the tokens of one answer incrementally.

    It reads token ids, so it sees special tokens that add no text, such as those around reasoning.
    It never retracts a delta, so it never returns part of a character. It does not handle stop
    strings.
    """

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of reasoning tokens so far, delimiters included; read after each call."""
        ...

    def push(self, token_id: int) -> tuple[Delta, ...]:
        """Return what a token adds: usually one delta; none while text is held back."""
        ...

    def finish(self) -> tuple[Delta, ...]:
        """Return the text that was held back; called once, at the end of the answer."""
        ...
