"""What must read an answer: tokens in, deltas out. No implementation.

Its methods run in the loop's thread, once for each token: what they take, every answer waits for.
"""

from typing import Protocol

from vlmkit.types.delta import Delta


class AnswerReader(Protocol):
    """Tells what the tokens of one answer say, while they come.

    It sees ids, and so marks that are no text, such as those around what a model thinks. Nothing
    that it told is taken back, so it never shows half a character. Stop strings are not its
    business.
    """

    @property
    def num_reasoning_tokens(self) -> int:
        """How many tokens so far are of reasoning, marks included; read from any thread."""
        ...

    def push(self, token_id: int) -> tuple[Delta, ...]:
        """Return what this token adds: mostly one delta, none while something is held back."""
        ...

    def finish(self) -> tuple[Delta, ...]:
        """Return what was held back; the answer is over."""
        ...
