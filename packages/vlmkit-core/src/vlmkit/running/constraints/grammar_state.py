"""The grammar state of one answer: which tokens may follow it, and which must.

It also allows the end tokens, where the text may end and the answer is long enough. Drafts leave no
trace in the state. It changes no logits.
"""

import logging
import time
from collections.abc import Iterator, Sequence as Seq
from contextlib import contextmanager

import numpy as np

from vlmkit.errors import ConstraintError, EngineError
from vlmkit.interfaces.constraint import MakeMatcher, Resettable
from vlmkit.interfaces.sequence import Sequence
from vlmkit.kit.traces import trace_of
from vlmkit.running.sampling.token_sets import BITS, Words, words_of

log = logging.getLogger(__name__)

MAX_S, MAX_TOKEN_S = 0.25, 0.004
"""CPU time of the loop that one answer's constraint may take: at first, and for each token."""


class GrammarState:
    """The grammar state of one sequence.

    Args:
        make: makes a matcher in its initial state.
        allowed: ``[words]`` bitmask of the tokens that nothing else bans, without end tokens.
        ends: ``[words]`` bitmask of the tokens that end an answer.
        unenforced: parts of the constraint's schemas that it does not enforce.

    Attributes:
        unenforced: as above.
    """

    def __init__(
        self, make: MakeMatcher, allowed: Words, ends: Words, unenforced: tuple[str, ...] = ()
    ) -> None:
        self.unenforced = unenforced
        self._make = make
        self._matcher = make()
        self._allowed = allowed
        self._ends = ends
        self._num_seen = 0  # tokens of the answer that the matcher has accepted
        self._looks_ahead = True
        self._used_s = 0.0

    def allocate_bitmask(self, num_rows: int) -> Words:
        """Return bitmasks ``[rows, words]`` that allow no token."""
        return np.zeros((num_rows, len(self._allowed)), np.int32)

    def fill(self, sequence: Sequence, drafts: Seq[int], masks: Words) -> None:
        """Set the bits of the tokens that may follow a sequence and each of its drafts.

        Rows behind a draft that is not allowed stay empty: no answer gets there. Rows on which the
        matcher failed stay empty, too.

        Args:
            sequence: the sequence of the answer.
            drafts: tokens that may come next.
            masks: ``[1 + drafts, words]`` zeros; filled.

        Raises:
            ConstraintError: no token may follow the sequence, or the constraint is too slow.
        """
        self._check_time(sequence)
        with self._timed():
            self._fill_all(sequence, drafts, masks)

    def _fill_all(self, sequence: Sequence, drafts: Seq[int], masks: Words) -> None:
        self._advance(sequence)
        num_output = len(sequence.output_ids)
        self._fill(sequence, num_output, masks[0])
        if not masks[0].any():
            raise ConstraintError(
                "the answer cannot go on within its constraint: no token is left that it may "
                "choose, and it may not end here",
                hint="allow more, or set no min_tokens",
            )
        num_ahead = 0
        try:
            while num_ahead < len(drafts) and self._matcher.accept(drafts[num_ahead]):
                num_ahead += 1
                mask = np.zeros_like(masks[0])
                self._fill(sequence, num_output + num_ahead, mask)
                masks[num_ahead] = mask  # completely or not at all
            self._roll_back(num_ahead)
        except Exception as error:  # noqa: BLE001 - a matcher may raise anything
            self._disable_lookahead(error)

    def forced(self, sequence: Sequence) -> list[int]:
        """Return the tokens with which the answer must go on."""
        if not self._looks_ahead:
            return []
        with self._timed():
            self._advance(sequence)
            try:
                return [int(token_id) for token_id in self._matcher.forced()]
            except Exception as error:  # noqa: BLE001 - a matcher may raise anything
                self._disable_lookahead(error)
                return []

    def num_possible(self, sequence: Sequence, guesses: Seq[int]) -> int:
        """Return how many of the guesses may follow a sequence, one after the other."""
        if not self._looks_ahead:
            return 0
        with self._timed():
            return self._num_possible(sequence, guesses)

    def _num_possible(self, sequence: Sequence, guesses: Seq[int]) -> int:
        self._advance(sequence)
        num = 0
        try:
            while num < len(guesses) and self._matcher.accept(guesses[num]):
                num += 1
            self._roll_back(num)
        except Exception as error:  # noqa: BLE001 - a matcher may raise anything
            self._disable_lookahead(error)
            return 0
        return num

    def _fill(self, sequence: Sequence, num_output: int, mask: Words) -> None:
        self._matcher.fill(mask)
        mask &= self._allowed
        if num_output < sequence.params.min_tokens:
            for token_id in sequence.params.stop_token_ids:  # the sampler bans them until then
                mask[token_id // BITS] &= ~words_of((token_id % BITS,), BITS)[0]
        elif self._matcher.may_end:
            mask |= self._ends

    def _advance(self, sequence: Sequence) -> None:
        """Advance the matcher by the tokens that are new since the last call."""
        for token_id in sequence.output_ids[self._num_seen :]:
            if not self._matcher.accept(token_id):
                raise EngineError("a constraint refuses a token that it allowed")
            self._num_seen += 1

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Measure CPU time of this thread, so that other threads of a busy machine do not count."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            self._used_s += time.thread_time() - began_s

    def _check_time(self, sequence: Sequence) -> None:
        """End an answer whose constraint takes too much of the loop's time.

        Raises:
            ConstraintError: the constraint takes too much time.
        """
        if self._used_s > MAX_S + MAX_TOKEN_S * len(sequence.output_ids):
            raise ConstraintError(
                "the constraint is too complex for this answer: computing which tokens may follow "
                f"takes more than {MAX_S} s and {MAX_TOKEN_S} s for each token"
            )

    def _roll_back(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.roll_back(num_tokens)

    def _disable_lookahead(self, error: Exception) -> None:
        """Reset the matcher, which may be unusable after a failure, and try no more drafts."""
        trace = trace_of(error)  # without its text, which may quote the request
        log.warning("a constraint failed on a draft; no more are made for it\n%s", trace)
        if isinstance(self._matcher, Resettable):
            self._matcher.reset()
        else:
            self._matcher = self._make()
        self._num_seen = 0
        self._looks_ahead = False
