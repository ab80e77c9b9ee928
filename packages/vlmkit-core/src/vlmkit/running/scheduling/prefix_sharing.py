"""In-flight prefix sharing: a sequence waits while another one computes a prefix that both have.

Without it, both would compute the same tokens side by side. A follower waits until the shared
tokens of its leader are in the cache, and no longer. The queue is the scheduler's: it queues the
followers that are released here.
"""

from collections.abc import Hashable
from itertools import islice

from vlmkit.interfaces.sequence import Sequence
from vlmkit.kit import prefix

MIN_SHARED_TOKENS = 16  # fewer are not worth waiting for
MAX_COMPARED = 16  # leaders with one prefix: comparing takes time, and the first share the most


class PrefixSharing:
    """The sequences that prefill (leaders), and the sequences that wait for them (followers)."""

    def __init__(self) -> None:
        self._prefilling: dict[Hashable, dict[Sequence, None]] = {}  # by scope and first tokens
        self._followers: dict[Sequence, dict[Sequence, int]] = {}  # with the tokens they share
        self._leaders: dict[Sequence, Sequence] = {}

    def start(self, sequence: Sequence) -> None:
        """Record that an admitted sequence prefills its prompt."""
        if len(sequence) > MIN_SHARED_TOKENS:
            self._prefilling.setdefault(_prefix_key(sequence), {})[sequence] = None

    def stop(self, sequence: Sequence) -> None:
        """Record that a sequence prefills no more: it is done, ended, or preempted."""
        group = self._prefilling.get(_prefix_key(sequence), {})
        group.pop(sequence, None)
        if not group:
            self._prefilling.pop(_prefix_key(sequence), None)

    def follow(self, sequence: Sequence, block_tokens: int) -> bool:
        """Make a sequence wait if another one computes a prefix that it could share.

        Args:
            sequence: not admitted to the cache.
            block_tokens: the engine shares prefixes in multiples of this; 0 shares nothing.

        Returns:
            Whether the sequence waits.
        """
        if not block_tokens or len(sequence) <= MIN_SHARED_TOKENS:
            return False
        for leader in islice(self._prefilling.get(_prefix_key(sequence), ()), MAX_COMPARED):
            num_left = len(leader) - leader.num_computed_tokens
            if num_left < MIN_SHARED_TOKENS or leader.priority > sequence.priority:
                continue
            num_shared = _num_shared(sequence, leader, block_tokens)
            num_coming = num_shared - leader.num_computed_tokens
            if num_coming >= MIN_SHARED_TOKENS and _will_compute(leader, num_shared):
                self._followers.setdefault(leader, {})[sequence] = num_shared
                self._leaders[sequence] = leader
                return True
        return False

    def unfollow(self, sequence: Sequence) -> bool:
        """Forget a follower; return whether the sequence was one."""
        leader = self._leaders.pop(sequence, None)
        if leader is None:
            return False
        followers = self._followers[leader]
        del followers[sequence]
        if not followers:
            del self._followers[leader]
        return True

    def release_ready(self) -> list[Sequence]:
        """Release and return the followers whose prefix is computed, or will not be soon."""
        released = []
        for leader, followers in list(self._followers.items()):
            is_prefilling = leader in self._prefilling.get(_prefix_key(leader), ())
            coming = {num for num in set(followers.values()) if _will_compute(leader, num)}
            ready = [s for s, num in followers.items() if not is_prefilling or num not in coming]
            released += ready
        for sequence in released:
            self.unfollow(sequence)
        return released


def _prefix_key(sequence: Sequence) -> Hashable:
    """Return a key that is equal for all sequences that can share anything."""
    return sequence.scope, tuple(sequence.tokens(0, MIN_SHARED_TOKENS))


def _num_shared(sequence: Sequence, leader: Sequence, block_tokens: int) -> int:
    """Return how many tokens a follower will find in the cache, none whose row it wants."""
    num_alike = min(prefix.num_alike(sequence, leader), sequence.first_row)
    num_alike = prefix.num_shareable(leader, num_alike)
    return prefix.whole(sequence, num_alike, block_tokens)


def _will_compute(leader: Sequence, num_tokens: int) -> bool:
    """Return whether a leader will soon have computed its first tokens, and has not yet.

    A held leader does not run. A leader that waits for a medium behind those tokens waits for
    something that its followers do not need.
    """
    media = leader.prompt.media
    is_waiting = any(media[index].start >= num_tokens for index in leader.encoding)
    return leader.num_computed_tokens < num_tokens and not leader.is_held and not is_waiting
