"""Proposers that promise no more than the protocol: of random guesses, and of the newest token."""

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from vlmkit.interfaces.sequence import Sequence


class ChanceProposer:
    """Guesses random tokens of the prompt; keeps no state."""

    def __init__(self) -> None:
        self._chance = np.random.default_rng()

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        """Return random tokens of the prompt."""
        ids: Any = np.array(sequence.prompt.token_ids)
        guesses: Seq[int] = self._chance.choice(ids, num_tokens)
        return guesses

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Do nothing."""

    def forget(self, sequence: Sequence) -> None:
        """Do nothing."""


class EchoProposer:
    """Guesses that the newest token goes on; the more often it did, the more guesses."""

    def __init__(self) -> None:
        self._num_right: dict[Sequence, int] = {}

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        """Return the newest token several times."""
        return self.propose_all([sequence], [num_tokens])[0]

    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        """Return the same for each of several answers, as rows of NumPy integers."""
        found: list[Any] = []
        for sequence, most in zip(sequences, num_tokens, strict=True):
            num = min(most, 1 + self._num_right.get(sequence, 0))
            newest = sequence.tokens(len(sequence) - 1, len(sequence))
            found.append(np.repeat(np.array(newest, np.int32), num))
        return tuple(found)

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Guess one more after a step without errors, and one alone after others."""
        right = self._num_right.get(sequence, 0) + 1 if num_accepted == num_drafted else 0
        self._num_right[sequence] = right

    def forget(self, sequence: Sequence) -> None:
        """Drop the count of a sequence."""
        self._num_right.pop(sequence, None)
