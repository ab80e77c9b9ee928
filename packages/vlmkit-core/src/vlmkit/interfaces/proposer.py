"""The interface of proposers, which draft tokens for speculative decoding; no implementation.

Methods run in the engine loop's thread, between steps, so every answer waits for them.
"""

from collections.abc import Sequence as Seq
from typing import Protocol, runtime_checkable

from vlmkit.interfaces.sequence import Sequence


class Proposer(Protocol):
    """Drafts tokens, which the engine then verifies together with an answer's newest token.

    A draft never changes an answer: it is accepted only if the sampler chooses the same token. Good
    drafts save steps; each rejected draft costs the engine's time for computing it.
    """

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        """Return drafts of the tokens that follow a sequence.

        Args:
            sequence: the answer so far.
            num_tokens: maximum number of drafts; the pipeline discards more.
        """
        ...

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Record how many drafts a step computed, and how many were accepted.

        A step may compute fewer drafts than were proposed. It is not called if it computes none.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Discard all state of a sequence that ended; it may never have been proposed for."""
        ...


@runtime_checkable
class BatchProposer(Protocol):
    """An optional part of a proposer: drafts for all answers of a step in one call."""

    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        """Return drafts for each sequence: the same as ``propose`` for one after the other.

        The pipeline calls it once after each step, in place of ``propose``. A proposer with a model
        can then compute the drafts of all answers together.

        Args:
            sequences: different answers so far; may be empty.
            num_tokens: maximum number of drafts of each sequence, in the same order.
        """
        ...
