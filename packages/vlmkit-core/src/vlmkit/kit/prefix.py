"""How far two sequences begin alike, as a cache of prefixes tells: nothing hashed, all compared.

They do as far as their token ids, their media's digests, the spans that are computed whole and
their scopes are equal. Knows no cache, and not what of it is computed.
"""

from itertools import compress, count, zip_longest
from operator import ne
from typing import NamedTuple, TypeAlias

from vlmkit.interfaces.view import SequenceView


class Part(NamedTuple):
    """Tokens that are alike as a whole or not at all: a medium's, or a span's."""

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
    """Return how many of the first ``num_tokens`` stand before any part that only one has."""
    for pair in zip(ours, theirs, strict=True):
        unlike = (part for both in zip_longest(*pair) if both[0] != both[1] for part in both)
        num_tokens = min([num_tokens, *(part.start for part in unlike if part is not None)])
    return num_tokens


def whole(sequence: SequenceView, num_tokens: int, block_tokens: int = 1) -> int:
    """Shorten a prefix to whole blocks that cut no span which must be computed at once."""
    num_tokens -= num_tokens % block_tokens
    for span in reversed(sequence.plan.spans):
        if span.start < num_tokens < span.stop:
            num_tokens = span.start - span.start % block_tokens
    return num_tokens


def num_alike(first: SequenceView, second: SequenceView) -> int:
    """Return how many first tokens of two sequences are alike in all that a cache key holds."""
    if first.scope != second.scope:
        return 0
    most = min(len(first), len(second))
    ours, theirs = first.tokens(0, most), second.tokens(0, most)
    num = next(compress(count(), map(ne, ours, theirs)), most)
    return num_before_unlike(num, parts_of(first), parts_of(second))
