"""Which rows of a step attend as one batch: neighbours of like length, and only so many.

A batch is as wide as its longest row, and its keys and values are gathered before they are read: 64
rows of which one has 128k tokens would take 32 GiB in a layer of common size. Sizes only; what is
gathered is the business of ``attention``.
"""

from collections.abc import Sequence as Seq

MOST_BYTES = 2**28  # of one batch in one layer; a row that has more is a batch of its own
FEW_BYTES = 2**24  # a batch of fewer is never split: the second one would cost more than padding
MOST_PADDING = 2  # in a larger batch, the longest row has at most so many times the shortest's


def batches(lengths: Seq[int], token_bytes: int) -> list[tuple[int, int]]:
    """Return where to cut rows into batches, as half-open ranges in order.

    Args:
        lengths: tokens of each row, ascending.
        token_bytes: that a layer keeps for a token.
    """
    ranges: list[tuple[int, int]] = []
    stop = len(lengths)
    while stop:
        longest, start = lengths[stop - 1], stop - 1
        while start and _may_join(lengths[start - 1], longest, stop - start + 1, token_bytes):
            start -= 1
        ranges.append((start, stop))
        stop = start
    return ranges[::-1]


def _may_join(length: int, longest: int, num_rows: int, token_bytes: int) -> bool:
    num_bytes = num_rows * longest * token_bytes
    is_alike = longest <= MOST_PADDING * length
    return num_bytes <= FEW_BYTES or (num_bytes <= MOST_BYTES and is_alike)
