"""Which sequences of a model with recurrent layers have which ids of the library.

The state of a recurrent layer stands for all tokens of its sequence, so it can neither be cut nor
shared as a prefix. A step may be computed again. So each admitted sequence has two ids: one with
the state after its last step, and one with the state before it. The library lets both refer to one
state until the first is computed. Computes nothing.
"""

import heapq
from typing import Protocol

from vlmkit.errors import EngineError
from vlmkit.interfaces.cache_events import CacheListener
from vlmkit.interfaces.engine import Admission
from vlmkit.interfaces.view import SequenceView


class Memory(Protocol):
    """The cache of the library."""

    def copy(self, source: int, target: int, start: int) -> None:
        """Let a sequence refer to the state of another one, and to its cells from ``start`` on."""

    def remove(self, seq_id: int, start: int) -> None:
        """Remove a sequence from its state and its cells, from ``start`` on."""


class StateTable:
    """The ids of sequences, and the state before the last step of each.

    Args:
        memory: the states, and cells of layers with attention.
        capacity_tokens: tokens that have room, over all sequences.
        max_sequences: most admitted sequences; the library has twice as many ids.

    Attributes:
        num_free_tokens: tokens that no admitted sequence has room for.
    """

    def __init__(self, memory: Memory, capacity_tokens: int, max_sequences: int) -> None:
        self._memory, self._max_sequences = memory, max_sequences
        self.num_free_tokens = capacity_tokens
        self._room: dict[SequenceView, int] = {}
        self._free = list(range(max_sequences))
        self._ids: dict[SequenceView, int] = {}
        self._steps: dict[int, tuple[int, int]] = {}

    def seq_id(self, sequence: SequenceView) -> int:
        """Return the library's id of an admitted sequence."""
        return self._ids[sequence]

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Give a sequence an id and room; None if full.

        It gets the lowest id: the library computes sequences together whose ids follow each other.
        """
        num_tokens = len(sequence) + 1
        if not self._free or num_tokens > self.num_free_tokens:
            return None
        self.num_free_tokens -= num_tokens
        self._room[sequence] = num_tokens
        self._ids[sequence] = seq_id = heapq.heappop(self._free)
        self._steps[seq_id] = 0, 0
        return Admission(0)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens``; False, and no change, if full."""
        num_more = max(0, num_tokens - self._room[sequence])
        if num_more > self.num_free_tokens:
            return False
        self.num_free_tokens -= num_more
        self._room[sequence] += num_more
        return True

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Share nothing."""

    def listen(self, listener: CacheListener) -> None:
        """Report nothing: no prefix is shared."""

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Raise an error: the engine takes no drafts, which alone are cut."""
        raise EngineError(
            f"sequence {sequence.id!r} has a recurrent state, which cannot be cut to "
            f"{num_tokens} tokens"
        )

    def before(self, sequence: SequenceView, start: int, stop: int) -> tuple[int, int]:
        """Prepare the state for tokens ``[start, stop)``: a new step, or the last one again.

        Returns:
            The id, and the first token to compute.

        Raises:
            EngineError: the state after ``start`` tokens is not kept.
        """
        seq_id = self._ids[sequence]
        earlier = self._max_sequences + seq_id
        begin, end = self._steps[seq_id]
        if start == end:
            self._memory.copy(seq_id, earlier, begin)
        elif start == begin:
            self._memory.remove(seq_id, 0)
            self._memory.copy(earlier, seq_id, 0)
        else:
            raise EngineError(f"the recurrent state after {start} tokens is not kept")
        self._steps[seq_id] = start, stop
        return seq_id, start

    def release(self, sequence: SequenceView) -> None:
        """Free the states and cells of a sequence."""
        self.num_free_tokens += self._room.pop(sequence)
        seq_id = self._ids.pop(sequence)
        del self._steps[seq_id]
        for each in (seq_id, self._max_sequences + seq_id):
            self._memory.remove(each, 0)
        heapq.heappush(self._free, seq_id)
