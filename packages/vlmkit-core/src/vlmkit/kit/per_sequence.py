"""What a component keeps for each sequence, apart from what any other component keeps for it."""

from collections.abc import Callable
from typing import Generic, TypeVar

from vlmkit.interfaces.sequence import Sequence

T = TypeVar("T")


class PerSequence(Generic[T]):
    """State of one component, by sequence: made when it is first asked for, gone with the sequence.

    Two of these never meet, so a component may hand sequences on to another that keeps something,
    too. Nothing is to be removed: the sequence holds the state, and nobody else does. The state
    must not hold the sequence, which would keep both until the next garbage collection. A copy of
    a sequence begins without any. Make one of these for each component, and not at each step.

    Args:
        make: returns the state of a sequence that has none.
    """

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[Sequence], T]) -> None:
        self._make = make

    def of(self, sequence: Sequence) -> T:
        """Return a sequence's state."""
        kept: T
        try:
            kept = sequence.kept[self]
        except KeyError:
            kept = sequence.kept[self] = self._make(sequence)
        return kept
