"""Which sequences have values that are not finite: noted where they are computed, read when asked.

Blocks of such a sequence must never be shared. A step only notes it, on the device; the host reads
it, for all sequences at once, when somebody might share.
"""

import torch

from vlmkit.interfaces.view import SequenceView


class Health:
    """The health of admitted sequences.

    Args:
        max_sequences: most of them at once.
        device: that computes them.
    """

    def __init__(self, max_sequences: int, device: torch.device) -> None:
        self._marks = torch.zeros(max_sequences, device=device)  # a sum that is no number stays so
        self._place_of: dict[SequenceView, int] = {}
        self._free = list(range(max_sequences))

    def place(self, sequence: SequenceView) -> int:
        """Return where a sequence's health is noted."""
        if sequence not in self._place_of:
            self._place_of[sequence] = self._free.pop()
        return self._place_of[sequence]

    def note(self, hidden: torch.Tensor, places: torch.Tensor) -> None:
        """Note the health of computed tokens, without a word to the host.

        Args:
            hidden: ``[tokens, hidden]`` last states of tokens.
            places: ``[tokens]`` of their sequences.
        """
        nothing = hidden.sum(-1, dtype=self._marks.dtype) * 0  # unless a value is not finite
        self._marks.index_add_(0, places, nothing)

    def broken(self) -> set[SequenceView]:
        """Return the sequences that have had values that are not finite; one read."""
        marks = self._marks.tolist()
        return {sequence for sequence, place in self._place_of.items() if marks[place] != 0}

    def forget(self, sequence: SequenceView) -> None:
        """Drop everything about a sequence."""
        place = self._place_of.pop(sequence, None)
        if place is not None:
            self._marks[place] = 0
            self._free.append(place)
