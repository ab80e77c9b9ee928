"""How far an answer has come: along its script, and in what it says once it has left the script."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from vlmkit_mock import vocabulary as v
from vlmkit_mock.answer import Answer
from vlmkit_mock.kinds import BACKSLASH, CLOSERS, KINDS, QUOTE, SEPARATOR, WORD_KINDS

PATIENCE = 64
"""How many tokens an answer whose end is not allowed repeats its script before it tries others."""


@dataclass(slots=True)
class Progress:
    """Where an answer is after some tokens.

    Attributes:
        num_tokens: of the answer so far.
        num_skipped: tokens of the script before its first call that were not said.
        num_own: tokens since it left the script.
        is_on_script: whether all tokens so far are the script's.
        is_in_string: whether it is within a string of JSON.
        is_escaped: whether a backslash was last there.
        closers: what closes the brackets that are open outside strings, the innermost last.
        closers_in_string: the same within the string.
        last: the last token; -1 before the first, and a backslash after what it escapes.
        run: how many of the last tokens are letters and digits, or how many are not.
        uses: how often each separator was said, and the end of reasoning, twice in a row as once;
            within brackets, since the last quote.
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
        """Whether it is within an object or an array."""
        return bool(self.closers) and self.closers[-1] in b"]}"

    @property
    def closer(self) -> int | None:
        """What closes the innermost bracket, of the string if it is in one."""
        closers = self.closers_in_string if self.is_in_string else self.closers
        return closers[-1] if closers else None

    def followed(self, answer: Answer, token_ids: Seq[int]) -> "Progress":
        """Return the progress after some more tokens; this one stays as it is."""
        progress = replace(self, uses=dict(self.uses))
        progress.follow(answer, token_ids)
        return progress

    def follow(self, answer: Answer, token_ids: Seq[int]) -> None:
        """Go on by some tokens."""
        for token_id in token_ids:
            self._follow_script(answer, token_id)
            self._follow_text(token_id)
            self.num_tokens += 1

    def _follow_script(self, answer: Answer, token_id: int) -> None:
        index = self.num_tokens + self.num_skipped
        if (resumed := answer.resumed(token_id, index)) > index:
            index, self.is_on_script = resumed, True
            self.num_skipped = index - self.num_tokens
        if self.is_on_script:
            is_scripted = token_id in (answer.token(index), answer.repeated(index))
            self.is_on_script = is_scripted and index < answer.num_tokens + PATIENCE
        self.num_own = 0 if self.is_on_script else self.num_own + 1

    def _follow_text(self, token_id: int) -> None:
        seen = token_id
        if self.is_escaped:
            self.is_escaped, seen = False, BACKSLASH
        else:
            self._follow_quotes(token_id)
            is_counted = KINDS[token_id] == SEPARATOR or token_id == v.REASONING_END
            if is_counted and token_id != self.last:
                self.uses[token_id] = self.uses.get(token_id, 0) + 1
        is_word = KINDS[seen] in WORD_KINDS
        self.run = self.run + 1 if is_word == (self.kind in WORD_KINDS) else 1
        self.last = seen

    def _follow_quotes(self, token_id: int) -> None:
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
    """Return what closes the brackets that are open after a token."""
    if token_id in CLOSERS:
        return (*closers, CLOSERS[token_id])
    return closers[:-1] if closers and token_id == closers[-1] else closers
