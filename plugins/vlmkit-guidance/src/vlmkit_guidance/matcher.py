"""Follows one answer by llguidance."""

import logging
from collections.abc import Sequence as Seq

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from vlmkit.errors import ConstraintError

log = logging.getLogger(__name__)

MAX_SHOWN_CHARS = 500


class GuidanceMatcher:
    """One answer; see :class:`vlmkit.seams.constraint.Matcher`.

    Args:
        matcher: llguidance's own, at the beginning.
        end: the token that ends an answer there, and is none of the model's.
    """

    def __init__(self, matcher: LLMatcher, end: int) -> None:
        self._matcher = matcher
        self._end = end

    @property
    def may_end(self) -> bool:
        """Whether the text is whole as it is."""
        return self._matcher.is_accepting()

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Set the bits of the tokens that may follow."""
        words = np.frombuffer(self._matcher.compute_bitmask(), "<i4")
        self._check()
        mask[:] = words[: len(mask)]
        if self._end < 32 * len(mask):
            mask[-1] &= (1 << self._end % 32) - 1

    def accept(self, token_id: int) -> bool:
        """Go on by a token; where it may not follow, stay and return False."""
        if not 0 <= token_id < self._end:
            return False
        num_accepted = self._matcher.try_consume_tokens([token_id])
        self._check()
        return num_accepted == 1

    def roll_back(self, num_tokens: int) -> None:
        """Take the newest tokens back."""
        self._matcher.rollback(num_tokens)
        self._check()

    def forced(self) -> Seq[int]:
        """Return tokens of which the text cannot but go on."""
        token_ids = self._matcher.compute_ff_tokens()
        self._check()
        return [token_id for token_id in token_ids if token_id < self._end]

    def _check(self) -> None:
        if self._matcher.is_error():
            raise failed("the constraint is too complex for this answer", self._matcher.get_error())


def failed(problem: str, reason: str) -> ConstraintError:
    """Keep the library's words out of the answer and in the log."""
    log.warning("%s: %s", problem, " ".join(reason.split())[:MAX_SHOWN_CHARS])
    return ConstraintError(problem, hint="the server's log says why")
