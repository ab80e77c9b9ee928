"""Tracks sequences with values that are not finite, whose cache blocks must never be shared.

A step only marks such sequences, on the device. The host reads the marks of all sequences at once,
and only when a prefix might be shared, because a read waits for the device.
"""

import torch

from vlmkit.interfaces.view import SequenceView


class NonFiniteTracker:
    """Marks admitted sequences whose hidden states had values that are not finite.

    Attributes:
        padding: index of a mark that no sequence has.

    Args:
        max_sequences: most sequences at once.
        device: that computes them.
    """

    def __init__(self, max_sequences: int, device: torch.device) -> None:
        self.padding = max_sequences
        # Once a mark is not a number, it stays so.
        self._marks = torch.zeros(max_sequences + 1, device=device)
        self._index_of: dict[SequenceView, int] = {}
        self._free = list(range(max_sequences))

    def index(self, sequence: SequenceView) -> int:
        """Return the index of a sequence's mark."""
        if sequence not in self._index_of:
            self._index_of[sequence] = self._free.pop()
        return self._index_of[sequence]

    def record(self, hidden: torch.Tensor, indices: torch.Tensor) -> None:
        """Mark the sequences of computed tokens on the device, without waiting for it.

        Args:
            hidden: ``[tokens, hidden]`` last states of tokens.
            indices: ``[tokens]`` mark of each token's sequence.
        """
        zeros = hidden.sum(-1, dtype=self._marks.dtype) * 0  # not zero if a value is not finite
        self._marks.index_add_(0, indices, zeros)

    def sequences(self) -> set[SequenceView]:
        """Return the sequences that had values that are not finite; waits for the device."""
        marks = self._marks.tolist()
        return {sequence for sequence, index in self._index_of.items() if marks[index] != 0}

    def forget(self, sequence: SequenceView) -> None:
        """Drop a sequence and its mark."""
        index = self._index_of.pop(sequence, None)
        if index is not None:
            self._marks[index] = 0
            self._free.append(index)
