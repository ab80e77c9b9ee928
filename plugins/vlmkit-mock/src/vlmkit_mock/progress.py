"""The progress of an answer: along its script, and in the text after it has left the script."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from vlmkit_mock import vocabulary as v
from vlmkit_mock.answer import Answer
from vlmkit_mock.kinds import BACKSLASH, CLOSERS, KINDS, QUOTE, SEPARATOR, WORD_KINDS

PATIENCE = 64
"""The number of tokens for which an answer that must not end repeats its script."""


@dataclass(slots=True)
class Progress:
    """The state of an answer after some tokens.

    Attributes:
        num_tokens: the number of tokens of the answer so far.
        num_skipped: the number of the script's tokens that were skipped.
        num_own: the number of tokens since it left the script.
        is_on_script: whether all tokens so far are the script's.
        is_in_string: whether it is inside a JSON string.
        is_escaped: whether the last token there was a backslash.
        closers: the closing brackets of open ones outside strings, the innermost last.
        closers_in_string: the same inside the string.
        last: the last token; -1 before the first; a backslash after an escaped one.
        run: the number of last tokens that are letters and digits, or that are not.
        uses: the number of uses of each separator and of the end of reasoning. Repetitions in a
            row count once; inside brackets, the count starts at the last quote.
    """

    num_tokens: int = 0
    num_skipped: int = 0
    num_own: int = 0
    is_on_script: bool = True
    is_in_string: bool = False
    is_escaped: bool = False
    closers: tuple[int, ...] = ()
    closers_in_string: tuple[int, ...] = ()
    last: int = -1
    run: int = 0
    uses: dict[int, int] = field(default_factory=dict)

    @property
    def kind(self) -> int | None:
        """The kind of the last token; None before the first."""
        return KINDS[self.last] if self.last >= 0 else None

    @property
    def is_json(self) -> bool:
        """Whether it is inside an object or an array."""
        return bool(self.closers) and self.closers[-1] in b"]}"

    @property
    def closer(self) -> int | None:
        """The closing bracket of the innermost open one, of the string if it is inside one."""
        closers = self.closers_in_string if self.is_in_string else self.closers
        return closers[-1] if closers else None

    def advanced(self, answer: Answer, token_ids: Seq[int]) -> "Progress":
        """Return the progress after some more tokens; this one is unchanged."""
        progress = replace(self, uses=dict(self.uses))
        progress.advance(answer, token_ids)
        return progress

    def advance(self, answer: Answer, token_ids: Seq[int]) -> None:
        """Advance by some tokens."""
        for token_id in token_ids:
            self._advance_script(answer, token_id)
            self._advance_text(token_id)
            self.num_tokens += 1

    def _advance_script(self, answer: Answer, token_id: int) -> None:
        index = self.num_tokens + self.num_skipped
        if (resumed := answer.resumed(token_id, index)) > index:
            index, self.is_on_script = resumed, True
            self.num_skipped = index - self.num_tokens
        if self.is_on_script:
            is_scripted = token_id in (answer.token(index), answer.repeated(index))
            self.is_on_script = is_scripted and index < answer.num_tokens + PATIENCE
        self.num_own = 0 if self.is_on_script else self.num_own + 1

    def _advance_text(self, token_id: int) -> None:
        seen = token_id
        if self.is_escaped:
            self.is_escaped, seen = False, BACKSLASH
        else:
            self._advance_quotes(token_id)
            is_counted = KINDS[token_id] == SEPARATOR or token_id == v.REASONING_END
            if is_counted and token_id != self.last:
                self.uses[token_id] = self.uses.get(token_id, 0) + 1
        is_word = KINDS[seen] in WORD_KINDS
        self.run = self.run + 1 if is_word == (self.kind in WORD_KINDS) else 1
        self.last = seen

    def _advance_quotes(self, token_id: int) -> None:
        if token_id == QUOTE:
            self.is_in_string, self.closers_in_string = not self.is_in_string, ()
            if self.closers:
                self.uses.clear()
        elif self.is_in_string:
            self.is_escaped = token_id == BACKSLASH
            self.closers_in_string = _closers_after(self.closers_in_string, token_id)
        else:
            self.closers = _closers_after(self.closers, token_id)


def _closers_after(closers: tuple[int, ...], token_id: int) -> tuple[int, ...]:
    """Return the closing brackets of open ones after a token."""
    if token_id in CLOSERS:
        return (*closers, CLOSERS[token_id])
    return closers[:-1] if closers and token_id == closers[-1] else closers
