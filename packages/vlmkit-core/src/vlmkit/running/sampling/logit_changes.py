"""Changes of single logits of one row, and how two sets of changes combine."""

from typing import Any, NamedTuple

import numpy as np

Numbers = np.ndarray[Any, Any]


class LogitChanges(NamedTuple):
    """The changes of one row; each token occurs at most once.

    Attributes:
        token_ids: ``[changes]`` int64.
        offsets: ``[changes]`` float32: added first.
        factors: ``[changes]`` float32: divide positive logits, and multiply all others.
        shifts: ``[changes]`` float32: added afterwards.
    """

    token_ids: Numbers
    offsets: Numbers
    factors: Numbers
    shifts: Numbers

    def combined(self, other: "LogitChanges") -> "LogitChanges":
        """Return both: offsets and shifts are added, and factors multiplied."""
        if not len(other.token_ids):
            return self
        token_ids = np.union1d(self.token_ids, other.token_ids)
        made = changes_of(token_ids)
        for each in (self, other):
            indices = token_ids.searchsorted(each.token_ids)
            made.offsets[indices] += each.offsets
            made.factors[indices] *= each.factors
            made.shifts[indices] += each.shifts
        return made


def changes_of(
    token_ids: Any, *, offsets: Any = 0.0, factors: Any = 1.0, shifts: Any = 0.0
) -> LogitChanges:
    """Return the changes of some tokens; each number is one for all tokens, or an array."""
    ids = np.asarray(token_ids, np.int64)
    numbers = (np.broadcast_to(each, ids.shape) for each in (offsets, factors, shifts))
    return LogitChanges(ids, *(each.astype(np.float32) for each in numbers))
