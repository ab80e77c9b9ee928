"""Which rows of a step attend as one batch: short neighbours of like length, and only so many.

A batch is as wide as its longest row, and its keys and values are gathered before they are read, so
rows that differ pay for each other. A row that is long attends alone, and pays for its own length.
Sizes only; what is gathered is the business of ``attention``.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

MOST_BYTES = 2**28  # of one batch in one layer


@dataclass(frozen=True, slots=True)
class Costs:
    """What reading keys and values costs.

    Attributes:
        token_bytes: the most that a layer keeps for a token.
        call_bytes: copied in the time that another call of attention takes.
        may_split: whether one row's scores may be computed in pieces without a loss.
    """

    token_bytes: int
    call_bytes: int
    may_split: bool

    @property
    def call_tokens(self) -> int:
        """Tokens whose keys and values are copied in the time of another call."""
        return max(1, self.call_bytes // self.token_bytes)

    def batches(self, lengths: Seq[int]) -> list[tuple[int, int]]:
        """Return where to cut rows into batches, as half-open ranges in order.

        Args:
            lengths: tokens that each row reads; batches are few where they ascend.
        """
        ranges: list[tuple[int, int]] = []
        start = longest = total = 0
        for stop, length in enumerate(lengths):
            longest, total = max(longest, length), total + length
            if stop > start and not self._may_be_one(stop + 1 - start, longest, total):
                ranges.append((start, stop))
                start, longest, total = stop, length, length
        return [*ranges, (start, len(lengths))] if lengths else []

    def _may_be_one(self, num_rows: int, longest: int, total: int) -> bool:
        """Tell whether rows are a batch that is cheaper than two."""
        padding = num_rows * longest - total
        return (
            longest <= self.call_tokens
            and padding <= self.call_tokens
            and num_rows * longest * self.token_bytes <= MOST_BYTES
        )
