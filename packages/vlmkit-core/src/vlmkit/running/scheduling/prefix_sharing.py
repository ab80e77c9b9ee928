"""Beginnings that are being computed, and who waits to share them.

A newcomer that begins as a sequence does whose prompt is being read would compute the same tokens
beside it; it waits instead until they are in the cache, and no longer. Knows no queue: whoever is
let go is queued by the scheduler.
"""

from collections.abc import Hashable
from itertools import islice

from vlmkit.interfaces.sequence import Sequence
from vlmkit.kit import prefix

LEAST_SHARED_TOKENS = 16  # what is worth waiting for
MOST_COMPARED = 16  # of those who begin alike: comparing takes time, and the first share the most


class PrefixSharing:
    """Knows who reads a prompt with room in the cache, and who waits for which of them."""

    def __init__(self) -> None:
        self._readers: dict[Hashable, dict[Sequence, None]] = {}  # by scope and first tokens
        self._followers: dict[Sequence, dict[Sequence, int]] = {}  # with the tokens they share
        self._leaders: dict[Sequence, Sequence] = {}

    def start(self, sequence: Sequence) -> None:
        """Note that a sequence has room and reads its prompt."""
        if len(sequence) > LEAST_SHARED_TOKENS:
            self._readers.setdefault(_start_of(sequence), {})[sequence] = None

    def stop(self, sequence: Sequence) -> None:
        """Note that a sequence reads no more: it is done, has ended, or has lost its room."""
        group = self._readers.get(_start_of(sequence), {})
        group.pop(sequence, None)
        if not group:
            self._readers.pop(_start_of(sequence), None)

    def follow(self, sequence: Sequence, block_tokens: int) -> bool:
        """Let a newcomer wait if someone computes what it could share; tell whether it does.

        Args:
            sequence: without room in the cache.
            block_tokens: a prefix is shared in multiples of this; 0 shares nothing.
        """
        if not block_tokens or len(sequence) <= LEAST_SHARED_TOKENS:
            return False
        for leader in islice(self._readers.get(_start_of(sequence), ()), MOST_COMPARED):
            num_left = len(leader) - leader.num_computed_tokens
            if num_left < LEAST_SHARED_TOKENS or leader.priority > sequence.priority:
                continue
            num_shared = _num_shared(sequence, leader, block_tokens)
            num_coming = num_shared - leader.num_computed_tokens
            if num_coming >= LEAST_SHARED_TOKENS and _computes(leader, num_shared):
                self._followers.setdefault(leader, {})[sequence] = num_shared
                self._leaders[sequence] = leader
                return True
        return False

    def unfollow(self, sequence: Sequence) -> bool:
        """Forget one who waits; tell whether it did."""
        leader = self._leaders.pop(sequence, None)
        if leader is None:
            return False
        followers = self._followers[leader]
        del followers[sequence]
        if not followers:
            del self._followers[leader]
        return True

    def let_go(self) -> list[Sequence]:
        """Return those who wait no longer: what they share is there, or will not come soon."""
        freed = []
        for leader, followers in list(self._followers.items()):
            is_reading = leader in self._readers.get(_start_of(leader), ())
            coming = {num for num in set(followers.values()) if _computes(leader, num)}
            ready = [s for s, num in followers.items() if not is_reading or num not in coming]
            freed += ready
        for sequence in freed:
            self.unfollow(sequence)
        return freed


def _start_of(sequence: Sequence) -> Hashable:
    """Return what sequences that share anything have in common."""
    return sequence.scope, tuple(sequence.tokens(0, LEAST_SHARED_TOKENS))


def _num_shared(sequence: Sequence, leader: Sequence, block_tokens: int) -> int:
    """Return how many tokens of a newcomer the cache will have: none whose row it wants."""
    num_alike = min(prefix.num_alike(sequence, leader), sequence.first_row)
    return prefix.whole(sequence, num_alike, block_tokens)


def _computes(leader: Sequence, num_tokens: int) -> bool:
    """Tell whether the first tokens of a sequence will be there soon, and are not yet.

    One that is held does not run, and one whose chunk waits for a medium further on waits for what
    a follower has no use for.
    """
    media = leader.prompt.media
    is_waiting = any(media[index].start >= num_tokens for index in leader.encoding)
    return leader.num_computed_tokens < num_tokens and not leader.is_held and not is_waiting
