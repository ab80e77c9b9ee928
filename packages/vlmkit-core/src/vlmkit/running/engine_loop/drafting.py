"""Draft tokens of running answers: forced by a grammar, or guessed by a proposer.

Forced tokens come before guesses. Drafts change no answer, so a proposer that fails is only
disabled. :mod:`.step_executor` accepts or rejects drafts.
"""

import logging
from collections.abc import Sequence as Seq

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.proposer import BatchProposer, Proposer
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames, Fault

log = logging.getLogger(__name__)


class Drafting:
    """Sets the drafts of sequences after each step.

    Args:
        proposer: guesses tokens; None guesses none.
        limits: of the engine, which verifies drafts.
        component_names: what the log calls the proposer.

    Attributes:
        has_failed: whether the proposer raised, and is disabled.
    """

    def __init__(
        self,
        proposer: Proposer | None,
        limits: EngineLimits,
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._component_names = component_names
        self._proposer = proposer if limits.max_draft_tokens else None
        offered: object = proposer
        self._batches = offered if isinstance(offered, BatchProposer) else None
        self._limits = limits
        self.has_failed = False
        self._forced: set[Sequence] = set()  # sequences whose drafts are no guesses

    def propose(self, sequences: Seq[Sequence]) -> None:
        """Set the drafts of different sequences for their next step."""
        asked: list[Sequence] = []
        bounds: list[int] = []
        for sequence in sequences:
            if self._proposer is None and sequence.guide is None:
                continue
            num_left = sequence.max_tokens - len(sequence.output_ids) - 1  # the last needs no draft
            num_tokens = min(num_left, self._limits.max_draft_tokens)
            sequence.drafts = self._forced_tokens(sequence, num_tokens)
            if not sequence.drafts and num_tokens > 0 and self._proposer is not None:
                asked.append(sequence)
                bounds.append(num_tokens)
        if asked:
            for sequence, guesses in zip(asked, self._guesses(asked, bounds), strict=True):
                sequence.drafts = self._allowed(sequence, guesses)

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

    def _forced_tokens(self, sequence: Sequence, num_tokens: int) -> tuple[int, ...]:
        """Return the tokens that a grammar forces, up to one that cannot be sampled."""
        self._forced.discard(sequence)
        if sequence.guide is None or num_tokens < 1:
            return ()
        try:
            forced: list[int] = sequence.guide.forced(sequence)[:num_tokens]
        except Exception:
            log.debug("a constraint failed; so will the request, in its step", exc_info=True)
            return ()
        if forced := forced[: self._num_possible(forced, sequence)]:
            self._forced.add(sequence)
        return tuple(forced)

    def _allowed(self, sequence: Sequence, guesses: list[int]) -> tuple[int, ...]:
        """Return guesses up to one that a grammar forbids."""
        if sequence.guide is None:
            return tuple(guesses)
        try:
            return tuple(guesses[: sequence.guide.num_possible(sequence, guesses)])
        except Exception:
            log.debug("a constraint failed; so will the request, in its step", exc_info=True)
            return ()

    def _guesses(self, sequences: Seq[Sequence], bounds: Seq[int]) -> list[list[int]]:
        """Return the guesses for each sequence, up to one that cannot be sampled."""
        try:
            proposed = self._proposed(sequences, bounds)
        except Exception as error:  # noqa: BLE001 - a proposer may raise anything
            self._give_up(error)
            return [[] for _ in sequences]
        return [
            guesses[: self._num_possible(guesses[:num_tokens], sequence)]
            for sequence, guesses, num_tokens in zip(sequences, proposed, bounds, strict=True)
        ]

    def _proposed(self, sequences: Seq[Sequence], bounds: Seq[int]) -> list[list[int]]:
        """Return what the proposer guesses for each sequence.

        Raises:
            Fault: there is not one result for each sequence.
        """
        proposer = self._proposer
        if self._batches is not None:
            proposed = self._batches.propose_all(sequences, bounds)
            found = [[int(token_id) for token_id in guesses] for guesses in proposed]
            if len(found) != len(sequences):
                problem = f"returned drafts for {len(found)} sequences, expected {len(sequences)}"
                raise Fault("proposer", problem)
            return found
        if proposer is None:
            return [[] for _ in sequences]
        pairs = zip(sequences, bounds, strict=True)
        return [[int(token_id) for token_id in proposer.propose(s, num)] for s, num in pairs]

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
        self.has_failed = True
