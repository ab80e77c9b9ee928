"""The common prefix of two sequences, as a prefix cache defines it, by direct comparison.

The prefix covers equal token ids, media digests, atomic spans and scopes. Does not use hashes or a
cache, nor consider what is computed.
"""

from itertools import compress, count, zip_longest
from operator import ne
from typing import NamedTuple, TypeAlias

from vlmkit.interfaces.view import SequenceView


class Part(NamedTuple):
    """A range of tokens that only match as a whole: those of a medium or an atomic span."""

    start: int
    stop: int
    digest: bytes = b""


Parts: TypeAlias = tuple[tuple[Part, ...], tuple[Part, ...]]
"""The media of a prompt, and its atomic spans."""


def parts_of(sequence: SequenceView) -> Parts:
    """Return a prompt's media and its atomic spans."""
    media = (Part(slot.start, slot.stop, slot.digest) for slot in sequence.prompt.media)
    return tuple(media), tuple(Part(*span) for span in sequence.plan.spans)


def num_before_unlike(num_tokens: int, ours: Parts, theirs: Parts) -> int:
    """Return how many of the first ``num_tokens`` precede all parts that differ."""
    for pair in zip(ours, theirs, strict=True):
        unlike = (part for both in zip_longest(*pair) if both[0] != both[1] for part in both)
        num_tokens = min([num_tokens, *(part.start for part in unlike if part is not None)])
    return num_tokens


def whole(sequence: SequenceView, num_tokens: int, block_tokens: int = 1) -> int:
    """Return the length of a prefix shortened to whole blocks that cut no atomic span.

    Tokens that no other sequence may share are left out.
    """
    num_tokens = num_shareable(sequence, num_tokens)
    num_tokens -= num_tokens % block_tokens
    for span in reversed(sequence.plan.spans):
        if span.start < num_tokens < span.stop:
            num_tokens = span.start - span.start % block_tokens
    return num_tokens


def num_shareable(sequence: SequenceView, num_tokens: int) -> int:
    """Return how many of the first ``num_tokens`` other sequences may share."""
    most = sequence.plan.max_shared_tokens
    return num_tokens if most is None else min(num_tokens, most)


def num_alike(first: SequenceView, second: SequenceView) -> int:
    """Return the number of first tokens of two sequences that have equal cache keys."""
    if first.scope != second.scope:
        return 0
    length = min(len(first), len(second))
    ours, theirs = first.tokens(0, length), second.tokens(0, length)
    num = next(compress(count(), map(ne, ours, theirs)), length)
    return num_before_unlike(num, parts_of(first), parts_of(second))
