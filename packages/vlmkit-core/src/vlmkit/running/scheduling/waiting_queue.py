"""The scheduler's queue: sequences that wait for admission, in order of rank.

A waiting sequence is in a heap, follows another one whose prefix it shares, or is paused because
its reader is behind. The queue knows no budget and no cache.
"""

import heapq
import itertools

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.scheduling.prefix_sharing import PrefixSharing

MAX_FOLLOWERS = 16  # that a step with work looks past: comparing prompts takes time
MIN_REMOVED = 64  # dead heap entries before the heap is rebuilt

Rank = tuple[int, int]


class WaitingQueue:
    """Sequences that wait for admission.

    Args:
        prefix_sharing: decides which sequences follow others.

    Attributes:
        ranks: the rank (priority, then arrival) of every sequence, admitted ones included.
    """

    def __init__(self, prefix_sharing: PrefixSharing) -> None:
        self.ranks: dict[Sequence, Rank] = {}
        self._arrivals = itertools.count()
        self._heap: list[tuple[Rank, Sequence]] = []
        self._prefix_sharing = prefix_sharing
        self._paused: dict[Sequence, None] = {}
        self._num_removed = 0  # heap entries whose sequence is gone

    def __len__(self) -> int:
        """Return how many heap entries there are, followers and paused sequences aside."""
        return len(self._heap)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.ranks[sequence] = (sequence.priority, next(self._arrivals))
        self._push(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Queue a preempted sequence again; a held one is paused until its reader catches up."""
        if sequence.is_held:
            self._paused[sequence] = None
        else:
            self._push(sequence)

    def requeue_ready(self) -> None:
        """Queue the followers whose wait is over, and paused sequences that are held no more."""
        for sequence in self._prefix_sharing.release_ready():
            self._push(sequence)
        for sequence in [s for s in self._paused if not s.is_held]:
            del self._paused[sequence]
            self._push(sequence)

    def head(self, limits: EngineLimits, max_followers: int = MAX_FOLLOWERS) -> Sequence | None:
        """Return the next sequence that may run, and leave it in the queue.

        Entries of removed sequences are dropped on the way, and sequences that have to follow
        another one leave the heap.

        Args:
            limits: of the engine.
            max_followers: followers after which the search ends.
        """
        num_followers = 0
        while self._heap and num_followers < max_followers:
            sequence = self._heap[0][1]
            if sequence not in self.ranks:
                self._num_removed -= 1
            elif self._prefix_sharing.follow(sequence, limits.prefix_block_tokens):
                num_followers += 1
            else:
                return sequence
            heapq.heappop(self._heap)
        return None

    def pop(self) -> None:
        """Take the head out of the queue; it keeps its rank."""
        heapq.heappop(self._heap)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that waits."""
        if sequence in self._paused:
            del self._paused[sequence]
        elif not self._prefix_sharing.unfollow(sequence):
            self._num_removed += 1

    def forget(self, sequence: Sequence) -> None:
        """Forget the rank of a sequence that has ended."""
        del self.ranks[sequence]
        self._compact()

    def _push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (self.ranks[sequence], sequence))

    def _compact(self) -> None:
        """Rebuild the heap so that it does not grow with cancelled requests."""
        if self._num_removed > MIN_REMOVED and self._num_removed > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[1] in self.ranks]
            heapq.heapify(self._heap)
            self._num_removed = 0
