"""Matches one answer against a compiled grammar, with llguidance."""

import numpy as np
from numpy.typing import NDArray

from vlmkit.errors import ConstraintError
from vlmkit_guidance.forced import Run, find_run, forced_tokens
from vlmkit_guidance.grammar import Grammar
from vlmkit_guidance.reasons import has_too_many_states, reason_of
from vlmkit_guidance.tokens import Tokens


class GuidanceMatcher:
    """The matcher of one answer; see :class:`vlmkit.interfaces.constraint.Matcher`.

    Args:
        grammar: the grammar of the answer; it must not force tokens by itself.
        tokens: the model's vocabulary.
    """

    def __init__(self, grammar: Grammar, tokens: Tokens) -> None:
        self._grammar = grammar
        self._first, self._has_own_lexer = grammar.matcher()
        self._matcher = self._first.deep_copy()
        self._tokens = tokens
        self._accepted: list[int] = []
        self._offsets = [0]  # bytes of the answer after each token
        self._runs: list[Run | None] = [None]  # the forced text after each token; None if unknown
        self._mask: NDArray[np.uint32] | None = None

    @property
    def may_end(self) -> bool:
        """Whether the answer may end here."""
        return self._matcher.is_accepting()

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Set the bits of the allowed tokens."""
        allowed, end = self._allowed(), self._tokens.eos_token_id
        if (forced := self._forced()) and _holds(allowed, forced[0]):
            mask[forced[0] // 32] = np.uint32(1 << forced[0] % 32).view(np.int32)
            return
        mask[:] = allowed.view(np.int32)[: len(mask)]
        if end < 32 * len(mask):
            mask[-1] &= (1 << end % 32) - 1
        self._drop_partial_tokens(mask)

    def accept(self, token_id: int) -> bool:
        """Advance by a token; return False and stay if it is not allowed."""
        if not 0 <= token_id < self._tokens.eos_token_id:
            return False
        is_accepted = self._consumes(token_id)
        self._check()
        if not is_accepted:
            return False
        piece, run = self._tokens.tokens[token_id], self._runs[-1]
        self._accepted.append(token_id)
        self._offsets.append(self._offsets[-1] + len(piece))
        self._runs.append(run and run.after(piece, self._offsets[-1]))
        self._mask = None
        return True

    def roll_back(self, num_tokens: int) -> None:
        """Remove the newest tokens."""
        self._matcher.rollback(num_tokens)
        self._check()
        left = len(self._accepted) - num_tokens
        del self._accepted[left:], self._offsets[left + 1 :], self._runs[left + 1 :]
        self._mask = None

    def reset(self) -> None:
        """Return to the start of the answer."""
        self._matcher = self._first.deep_copy()
        self._accepted.clear()
        del self._offsets[1:], self._runs[:]
        self._runs.append(None)
        self._mask = None

    def forced(self) -> list[int]:
        """Return the tokens that must follow, within a bounded look-ahead."""
        return self._forced()

    def _forced(self) -> list[int]:
        last = self._accepted[-1] if self._accepted else None
        return forced_tokens(self._run(), self._tokens, last)

    def _run(self) -> Run:
        run = self._runs[-1]
        if run is None:
            run = self._found_run()
            if self._switches_lexer():
                run = self._found_run()
            self._check()
            self._runs[-1] = run
        return run

    def _found_run(self) -> Run:
        return find_run(self._matcher, self._allowed(), self._tokens, self._offsets[-1])

    def _consumes(self, token_id: int) -> bool:
        """Advance by a token if it is allowed."""
        if self._matcher.try_consume_tokens([token_id]) == 1:
            return True
        if self._mask is None or _holds(self._mask, token_id):
            # A shared lexer without free states refuses tokens, and has no error before a mask.
            self._mask = None
            return _holds(self._allowed(), token_id) and (
                self._matcher.try_consume_tokens([token_id]) == 1
            )
        return False

    def _switches_lexer(self) -> bool:
        """Switch to a lexer of its own if the shared one is full; tell whether it did."""
        if (
            self._has_own_lexer
            or not self._matcher.is_error()
            or not has_too_many_states(self._matcher.get_error())
            or (own := self._grammar.own_matcher()) is None
        ):
            return False
        self._first, self._has_own_lexer = own, True
        self._matcher = own.deep_copy()
        self._matcher.try_consume_tokens(self._accepted)
        return True

    def _allowed(self) -> NDArray[np.uint32]:
        """Return llguidance's mask ``[words]``."""
        if self._mask is None:
            mask = self._matcher.compute_bitmask()
            if self._switches_lexer():
                mask = self._matcher.compute_bitmask()
            self._check()
            self._mask = np.frombuffer(mask, "<u4")
        return self._mask

    def _drop_partial_tokens(self, mask: NDArray[np.int32]) -> None:
        """Exclude tokens that end inside the forced text, if one covers all of it."""
        run = self._run()
        if len(run.text) > 1 and run.reaches.get(0, 0) >= len(run.text):
            for size in range(1, len(run.text)):
                token_id = self._tokens.id_of(run.text[:size])
                if token_id is not None:
                    mask[token_id // 32] &= ~np.uint32(1 << token_id % 32).view(np.int32)

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = reason_of(self._matcher.get_error())
            raise ConstraintError(f"the constraint is too complex for this answer: {reason}")


def _holds(mask: NDArray[np.uint32], token_id: int) -> bool:
    return bool(mask[token_id // 32] >> np.uint32(token_id % 32) & np.uint32(1))
