"""One slot of the cache, and the choice of a slot for a new sequence.

A slot keeps the tokens of a released sequence, so that a later prompt with the same prefix can
start from them. Prefixes are compared token by token: ids, digests of images, ranges whose tokens
see each other both ways, and scopes. Nothing is hashed. Changes no slot.
"""

from collections.abc import Iterable, Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vlmkit.interfaces.view import SequenceView
from vlmkit.kit import prefix


@dataclass(slots=True)
class Slot:
    """One slot.

    Attributes:
        ids: ``[slot tokens]``, valid up to ``num_committed``.
        num_tokens: tokens whose keys and values are stored.
        num_committed: tokens that are final, so that other sequences may start from them.
        num_reserved: tokens that the owner has room for; without an owner, the stored tokens.
        last_used: larger is more recent.
        event_keys: the keys of its whole blocks in cache events, if there is a listener.
    """

    ids: NDArray[np.int32]
    owner: SequenceView | None = None
    scope: bytes = b""
    parts: prefix.Parts = ((), ())
    num_tokens: int = 0
    num_committed: int = 0
    num_reserved: int = 0
    last_used: int = 0
    event_keys: list[bytes] = field(default_factory=list)

    def num_equal(self, ids: NDArray[np.int32], parts: prefix.Parts) -> int:
        """Return how many first tokens equal those of a prompt, images and ranges included."""
        num = min(self.num_committed, len(ids))
        differs = np.flatnonzero(self.ids[:num] != ids[:num])
        num = int(differs[0]) if len(differs) else num
        return prefix.num_before_unlike(num, self.parts, parts)


def longest_prefix(
    slots: Seq[Slot], candidates: Iterable[int], sequence: SequenceView
) -> tuple[int | None, int]:
    """Return the candidate that shares the longest prefix with a sequence, and its length."""
    ids = np.array(sequence.tokens(0, sequence.first_row), np.int32)
    parts = prefix.parts_of(sequence)
    best, longest = None, 0
    for index in candidates:
        slot = slots[index]
        if slot.scope != sequence.scope or slot.num_committed <= longest:
            continue
        num_equal = prefix.whole(sequence, slot.num_equal(ids, parts))
        if num_equal > longest:
            best, longest = index, num_equal
    return best, longest


def choose_target(
    slots: Seq[Slot], free: list[int], source: int | None, num_cached: int, *, copies: bool
) -> int:
    """Return the slot for a new sequence.

    The slot that holds the prefix, if the rest of its tokens is small; else an empty slot, or the
    least recently used one.

    Args:
        slots: all slots.
        free: those without an owner.
        source: the slot that holds the prefix.
        num_cached: tokens of the prefix.
        copies: whether the prefix can be copied to another slot.
    """
    if source in free and (not copies or len(free) == 1):
        return source
    if source in free and 2 * num_cached >= slots[source].num_tokens:
        return source
    others = [index for index in free if index != source]
    empty = [index for index in others if not slots[index].num_tokens]
    if empty:
        return empty[0]
    return min(others, key=lambda index: slots[index].last_used)
