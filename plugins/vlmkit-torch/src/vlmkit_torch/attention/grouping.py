"""Which rows of a step attend as one batch: adjacent rows of similar length, up to a memory limit.

A batch is as wide as its longest row, and its keys and values are gathered before they are read. A
short row in a wide batch therefore pays for the longest. A long row attends alone. Computes sizes
only; ``key_ranges`` gathers.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

MAX_BATCH_BYTES = 2**28  # of one batch in one layer


@dataclass(frozen=True, slots=True)
class ReadCosts:
    """What reading keys and values costs.

    Attributes:
        token_bytes: most bytes that a layer stores for a token.
        call_bytes: bytes copied in the time of one more call of attention.
        may_split: whether one row's scores may be computed in pieces without loss of precision.
        reads_in_place: whether adjacent tokens are read without a copy, which 8 bits never are.
    """

    token_bytes: int
    call_bytes: int
    may_split: bool
    reads_in_place: bool = True

    @property
    def call_tokens(self) -> int:
        """Tokens whose keys and values are copied in the time of one more call."""
        return max(1, self.call_bytes // self.token_bytes)

    @property
    def piece_tokens(self) -> int:
        """Tokens whose copies are small enough to stay in a CPU's cache until they are read."""
        return 2 * self.call_tokens

    def batch_rows(self, num_tokens: int) -> int:
        """Return how many rows of ``num_tokens`` each may be gathered at once, at least one."""
        most = MAX_BATCH_BYTES // (num_tokens * self.token_bytes)
        if not self.reads_in_place:
            most = min(most, self.piece_tokens // num_tokens)
        return max(1, most)

    def batches(self, lengths: Seq[int]) -> list[tuple[int, int]]:
        """Return how to cut rows into batches, as half-open ranges in order.

        Args:
            lengths: tokens that each row reads; ascending lengths give the fewest batches.
        """
        ranges: list[tuple[int, int]] = []
        start = longest = total = 0
        for stop, length in enumerate(lengths):
            longest, total = max(longest, length), total + length
            if stop > start and not self._is_one_batch(stop + 1 - start, longest, total):
                ranges.append((start, stop))
                start, longest, total = stop, length, length
        return [*ranges, (start, len(lengths))] if lengths else []

    def _is_one_batch(self, num_rows: int, longest: int, total: int) -> bool:
        """Return whether one batch of these rows is cheaper than two."""
        padding = num_rows * longest - total
        if not self.reads_in_place and num_rows * longest > self.piece_tokens:
            return False  # all of it is expanded before it is read
        return (
            longest <= self.call_tokens
            and padding <= self.call_tokens
            and num_rows * longest * self.token_bytes <= MAX_BATCH_BYTES
        )
