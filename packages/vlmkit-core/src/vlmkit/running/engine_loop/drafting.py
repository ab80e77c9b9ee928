"""Draft tokens of running answers: forced by a grammar, or guessed by a proposer.

Forced tokens come before guesses. Drafts change no answer, so a proposer that fails is only
switched off. :mod:`.step_executor` accepts or rejects drafts.
"""

import logging

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.proposer import Proposer
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames

log = logging.getLogger(__name__)


class Drafting:
    """Sets the drafts of a sequence after each token.

    Args:
        proposer: guesses tokens; None guesses none.
        limits: of the engine, which verifies drafts.
        component_names: what the log calls the proposer.
    """

    def __init__(
        self,
        proposer: Proposer | None,
        limits: EngineLimits,
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._component_names = component_names
        self._proposer = proposer if limits.max_draft_tokens else None
        self._limits = limits
        self._forced: set[Sequence] = set()  # sequences whose drafts are no guesses

    def propose(self, sequence: Sequence) -> None:
        """Set the drafts of a sequence for its next step."""
        if self._proposer is not None or sequence.guide is not None:
            sequence.drafts = self._drafts(sequence)

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Tell the proposer how many of its drafts were accepted."""
        sequence.drafts = ()
        if self._proposer is None or sequence in self._forced:
            return
        try:
            self._proposer.note(sequence, num_drafted, num_accepted)
        except Exception as error:  # noqa: BLE001 - a proposer may raise anything
            self._give_up(error)

    def forget(self, sequence: Sequence) -> None:
        """Drop the state of a sequence that ended."""
        self._forced.discard(sequence)
        if self._proposer is None:
            return
        try:
            self._proposer.forget(sequence)
        except Exception as error:  # noqa: BLE001 - a proposer may raise anything
            self._give_up(error)

    def _drafts(self, sequence: Sequence) -> tuple[int, ...]:
        """Return forced tokens or else guesses, up to one that cannot be sampled."""
        num_left = sequence.max_tokens - len(sequence.output_ids) - 1  # the last needs no draft
        num_tokens = min(num_left, self._limits.max_draft_tokens)
        if num_tokens < 1:
            return ()
        if sequence.guide is None:
            return tuple(self._guesses(sequence, num_tokens))
        try:
            return tuple(self._within(sequence, num_tokens))
        except Exception:
            log.debug("a constraint failed; so will the request, in its step", exc_info=True)
            return ()

    def _within(self, sequence: Sequence, num_tokens: int) -> list[int]:
        """Return drafts that the grammar forces, or guesses that it allows."""
        self._forced.discard(sequence)
        forced: list[int] = sequence.guide.forced(sequence)[:num_tokens]
        if forced := forced[: self._num_possible(forced, sequence)]:
            self._forced.add(sequence)
            return forced
        guesses = self._guesses(sequence, num_tokens)
        return guesses[: sequence.guide.num_possible(sequence, guesses)]

    def _guesses(self, sequence: Sequence, num_tokens: int) -> list[int]:
        """Return the proposer's guesses, up to one that cannot be sampled."""
        if self._proposer is None:
            return []
        try:
            guesses = [int(token_id) for token_id in self._proposer.propose(sequence, num_tokens)]
        except Exception as error:  # noqa: BLE001 - a proposer may raise anything
            self._give_up(error)
            return []
        return guesses[: self._num_possible(guesses[:num_tokens], sequence)]

    def _num_possible(self, guesses: list[int], sequence: Sequence) -> int:
        """Return how many guesses come before one that no sampler may choose."""
        for index, token_id in enumerate(guesses):
            if not 0 <= token_id < self._limits.vocab_size or token_id in sequence.banned_ids:
                return index
        return len(guesses)

    def _give_up(self, error: Exception) -> None:
        who = self._component_names.of("proposer")
        log.error("%s failed; nothing is drafted any more", who, exc_info=error)
        self._proposer = None
