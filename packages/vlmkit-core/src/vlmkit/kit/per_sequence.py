"""State of a component for each sequence, separate from that of other components."""

from collections.abc import Callable
from typing import Generic, TypeVar

from vlmkit.interfaces.sequence import Sequence

T = TypeVar("T")


class PerSequence(Generic[T]):
    """The state of one component by sequence: created on first use, freed with the sequence.

    Each instance is separate, so components can be nested. Nothing needs to be removed, because
    only the sequence references the state. The state must not reference the sequence: that would
    keep both in memory until the next garbage collection. A copy of a sequence has no state. Create
    one instance for each component, not for each step.

    Args:
        make: returns the initial state of a sequence.
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[Sequence], T]) -> None:
        self._make = make

    def of(self, sequence: Sequence) -> T:
        """Return a sequence's state."""
        state: T
        try:
            state = sequence.kept[self]
        except KeyError:
            state = sequence.kept[self] = self._make(sequence)
        return state
