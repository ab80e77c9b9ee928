"""What a scheduler must do: decide which tokens run next. No implementation.

Its methods run in the loop's thread.
"""

from typing import Protocol

from vlmkit.interfaces.engine import Cache
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import Step


class Scheduler(Protocol):
    """Decides which tokens run next. Pure: no clock, no I/O, no tokenizer, no arrays.

    It keeps the books of its sequences: ``num_computed_tokens`` at admission, commit and
    preemption, ``num_cached_tokens`` at the first admission, and empty ``features`` after a
    preemption. It leaves a sequence alone that ``is_held``, and admits none whose beginning another
    one computes at this moment where the engine shares prefixes: it would compute it twice.

    Smaller priorities are served first, and of equals the first to come. A scheduler of another
    order says so: its attribute ``ignores`` is a frozenset that names ``priority``, ``arrival`` or
    both. In any order, answers go on while prompts come, and newcomers join while answers go on.

    Of a sequence that it queues it may set the priority; it changes nothing else but its books, and
    keeps no sequence that was removed or refused.

    Media are encoded beside the loop. A step may name a slot and hold the item that needs it: the
    item runs at once if the features are kept, and is otherwise left out of the commit. While
    ``sequence.encoding`` names a slot, a step has better use for the room of what touches it.
    """

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence.

        Raises:
            QueueFull: the queue is at its bound.
        """
        ...

    def plan(self, cache: Cache) -> Step:
        """Choose the next step; an empty one when nothing can run."""
        ...

    def commit(self, step: Step, duration_s: float) -> None:
        """Note that a step was computed. New tokens are appended after this, by the loop.

        Args:
            step: its items are those that ran, as far as their tokens stand: one that failed or
                waits for an image is not among them, and drafts that were not accepted are cut off.
            duration_s: how long engine and sampler took. It is all that a scheduler knows of time.
        """
        ...

    def remove(self, sequence: Sequence, cache: Cache) -> None:
        """Forget a sequence that ended for whatever reason, and release its room."""
        ...

    @property
    def max_waiting(self) -> int:
        """Sequences that the queue takes."""
        ...

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
        ...

    @property
    def num_running(self) -> int:
        """Sequences with room in the cache."""
        ...
