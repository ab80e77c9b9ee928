"""What a proposer must do: guess the tokens that follow an answer. No implementation.

Its methods run in the loop's thread, between steps: what they take, every answer waits for.
"""

from collections.abc import Sequence as Seq
from typing import Protocol

from vlmkit.interfaces.sequence import Sequence


class Proposer(Protocol):
    """Guesses tokens, which the engine then computes beside the newest one of an answer.

    A guess changes no answer: it stands if the sampler chooses the same token. Guessing well saves
    steps, guessing badly costs what the engine takes to compute it in vain.
    """

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        """Return up to ``num_tokens`` guesses of what follows a sequence's tokens; more are cut."""
        ...

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Learn how many drafts were computed in a step, and how many of them stand.

        Fewer may be computed than were guessed; where none are, nothing is noted.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of a sequence, which ended; it may never have been shown."""
        ...
