"""A proposer with random guesses as NumPy integers: it promises no more than the protocol."""

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
