"""The interface of schedulers, which decide what tokens run next; no implementation.

Methods run in the engine loop's thread.
"""

from typing import Protocol

from vlmkit.interfaces.engine import Cache
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import Step


class Scheduler(Protocol):
    """Decides what tokens run next. Pure: uses no clock, I/O, tokenizer or arrays.

    It maintains the counters of its sequences. It sets ``num_computed_tokens`` at admission, commit
    and preemption, and ``num_cached_tokens`` at the first admission. It empties ``features`` at a
    preemption. It must not run a sequence that ``is_held``. If the engine shares prefixes, it must
    not admit a sequence while another one computes the same prefix, which would be computed twice.

    Sequences run by ascending priority, then in order of arrival. A scheduler with another order
    must declare it: its attribute ``ignores`` is a frozenset with ``priority``, ``arrival`` or
    both. In any order, answers must progress while prompts arrive, and new sequences must join
    while answers progress. Drafts count as tokens of a step, and must leave some for prompts.

    It may set the priority of a sequence that it queues. Otherwise it changes only the counters
    above. It must not keep a sequence that was removed or refused.

    Media are encoded outside the loop. A step may list a slot to encode together with the item that
    needs it. The item runs at once if the features are cached, and is otherwise missing from the
    commit. While ``sequence.encoding`` lists a slot, planning an item that touches it wastes room.
    """

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence.

        Raises:
            QueueFull: the queue is at its limit.
        """
        ...

    def plan(self, cache: Cache) -> Step:
        """Return the next step; an empty step if nothing can run."""
        ...

    def commit(self, step: Step, duration_s: float) -> None:
        """Record that a step was computed. The loop appends new tokens afterwards.

        While every admitted sequence decodes and none waits, the loop may repeat a step without a
        plan, see :class:`vlmkit.interfaces.engine.OverlapsSteps`.

        Args:
            step: the items that ran, without rejected drafts. Items that failed or wait for an
                image are missing.
            duration_s: time of engine and sampler in seconds; the only time that a scheduler sees.
        """
        ...

    def remove(self, sequence: Sequence, cache: Cache) -> None:
        """Remove a sequence that ended for any reason, and release its room in the cache."""
        ...

    @property
    def max_waiting(self) -> int:
        """Maximum number of sequences in the queue."""
        ...

    @property
    def num_waiting(self) -> int:
        """Number of sequences in the queue."""
        ...

    @property
    def num_running(self) -> int:
        """Number of sequences admitted to the cache."""
        ...
