"""Follows one answer by llguidance."""

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from vlmkit.errors import ConstraintError
from vlmkit_guidance.forced import Run, find_run, forced_tokens
from vlmkit_guidance.reasons import reason_of
from vlmkit_guidance.tokens import Tokens


class GuidanceMatcher:
    """One answer; see :class:`vlmkit.seams.constraint.Matcher`.

    Args:
        matcher: llguidance's own, at the beginning; of a grammar that forces nothing by itself.
        tokens: of the model.
    """

    def __init__(self, matcher: LLMatcher, tokens: Tokens) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self._accepted: list[int] = []
        self._places = [0]  # bytes of the answer after each token
        self._runs: list[Run | None] = [None]  # what is forced after each token, where it is known
        self._mask: NDArray[np.uint32] | None = None

    @property
    def may_end(self) -> bool:
        """Whether the text is whole as it is."""
        return self._matcher.is_accepting()

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Set the bits of the tokens that may follow."""
        allowed, end = self._allowed(), self._tokens.eos_token_id
        if (forced := self._forced()) and _holds(allowed, forced[0]):
            mask[forced[0] // 32] = np.uint32(1 << forced[0] % 32).view(np.int32)
            return
        mask[:] = allowed.view(np.int32)[: len(mask)]
        if end < 32 * len(mask):
            mask[-1] &= (1 << end % 32) - 1
        self._drop_beginnings(mask)

    def accept(self, token_id: int) -> bool:
        """Go on by a token; where it may not follow, stay and return False."""
        if not 0 <= token_id < self._tokens.eos_token_id:
            return False
        num_accepted = self._matcher.try_consume_tokens([token_id])
        self._check()
        if num_accepted != 1:
            return False
        piece, run = self._tokens.tokens[token_id], self._runs[-1]
        self._accepted.append(token_id)
        self._places.append(self._places[-1] + len(piece))
        self._runs.append(run and run.after(piece, self._places[-1]))
        self._mask = None
        return True

    def roll_back(self, num_tokens: int) -> None:
        """Take the newest tokens back."""
        self._matcher.rollback(num_tokens)
        self._check()
        left = len(self._accepted) - num_tokens
        del self._accepted[left:], self._places[left + 1 :], self._runs[left + 1 :]
        self._mask = None

    def forced(self) -> list[int]:
        """Return tokens of which the text cannot but go on, as far as they are looked ahead."""
        return self._forced()

    def _forced(self) -> list[int]:
        last = self._accepted[-1] if self._accepted else None
        return forced_tokens(self._run(), self._tokens, last)

    def _run(self) -> Run:
        run = self._runs[-1]
        if run is None:
            run = find_run(self._matcher, self._allowed(), self._tokens, self._places[-1])
            self._check()
            self._runs[-1] = run
        return run

    def _allowed(self) -> NDArray[np.uint32]:
        """Return the mask ``[words]`` of llguidance."""
        if self._mask is None:
            self._mask = np.frombuffer(self._matcher.compute_bitmask(), "<u4")
            self._check()
        return self._mask

    def _drop_beginnings(self, mask: NDArray[np.int32]) -> None:
        """Leave out tokens that end within what is forced, where one reaches its end."""
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
