"""Rules that hold an answer to some tokens, beside a constraint or without one.

Each clears tokens that may not follow from the masks of a step, before any sampler sees a logit. So
they hold for every sampler, for drafts and after a preemption: a rule reads the tokens of the
answer, and keeps nothing of those that are ahead.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence as Seq

import numpy as np

from vlmkit.errors import ConstraintError, RequestError
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.constraints.grammar_state import GrammarState
from vlmkit.running.sampling.token_sets import BITS, Words, holds, words_of
from vlmkit.types.sampling import MAX_SEQUENCE_TOKENS


class Rule(ABC):
    """Says which tokens may not follow one answer."""

    @abstractmethod
    def narrow(self, sequence: Sequence, ahead: Seq[int], mask: Words) -> None:
        """Clear the bits ``[words]`` of the tokens that may not follow.

        Args:
            sequence: whose answer it is.
            ahead: tokens that come after the sequence's own and are not in it: drafts.
            mask: the tokens that other rules allow.
        """

    def forced(self, sequence: Sequence) -> Seq[int]:  # noqa: ARG002 - of most rules
        """Return tokens of which the answer cannot but go on; none is always an answer."""
        return ()


class AllowedTokens(Rule):
    """Allows some tokens and no other; the mask of vLLM's ``allowed_token_ids``.

    Args:
        token_ids: those that may be chosen.
        vocab_size: columns of the logits.
    """

    def __init__(self, token_ids: Iterable[int], vocab_size: int) -> None:
        self._words = words_of(token_ids, vocab_size)

    def narrow(self, sequence: Sequence, ahead: Seq[int], mask: Words) -> None:  # noqa: ARG002
        """Clear all other tokens; see :meth:`Rule.narrow`."""
        mask &= self._words


class BadWords(Rule):
    """Forbids the last token of a word where the tokens before it are the answer's newest.

    Tokens of the prompt do not count, as in vLLM's ``bad_words``.

    Args:
        words: each the tokens of one spelling.
    """

    def __init__(self, words: Iterable[Seq[int]]) -> None:
        self._alone: set[int] = set()
        self._behind: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        self._longest = 1
        for word in map(tuple, words):
            self._longest = max(self._longest, len(word))
            if len(word) == 1:
                self._alone.add(word[0])
            else:
                self._behind[word[-2]].append(word)

    def narrow(self, sequence: Sequence, ahead: Seq[int], mask: Words) -> None:
        """Clear tokens that would complete a word; see :meth:`Rule.narrow`."""
        for token_id in self._completing(sequence, ahead):
            mask[token_id // BITS] &= ~words_of((token_id % BITS,), BITS)[0]

    def _completing(self, sequence: Sequence, ahead: Seq[int]) -> set[int]:
        found = set(self._alone)
        newest = (*sequence.output_ids[-self._longest :], *ahead)
        for word in self._behind.get(newest[-1], ()) if newest else ():
            if newest[1 - len(word) :] == word[:-1]:
                found.add(word[-1])
        return found


class RuledGrammarState:
    """Follows one sequence by rules, as :class:`.grammar_state.GrammarState` does by a grammar.

    Args:
        rules: all of them hold.
        vocab_size: columns of the logits.
        within: follows the constraint that the answer keeps to, too; None where there is none.

    Attributes:
        unconstrained: parts of the constraint's schemas that are not enforced.
    """

    def __init__(
        self, rules: Seq[Rule], vocab_size: int, within: GrammarState | None = None
    ) -> None:
        self.unconstrained = () if within is None else within.unconstrained
        self._rules = rules
        self._within = within
        self._vocab_size = vocab_size
        self._every = words_of(range(vocab_size), vocab_size)
        self._free: dict[bool, Words] = {}  # by whether the answer may end

    def new_masks(self, num_rows: int) -> Words:
        """Return masks ``[rows, words]`` that allow nothing."""
        return np.zeros((num_rows, len(self._every)), np.int32)

    def fill(self, sequence: Sequence, drafts: Seq[int], masks: Words) -> None:
        """Set the bits of the tokens that may follow a sequence and each of its drafts.

        Args:
            sequence: whose answer it is.
            drafts: tokens that may come next; rows behind one that may not follow stay empty.
            masks: ``[1 + drafts, words]`` zeros, one row for each place.

        Raises:
            ConstraintError: nothing may follow the sequence.
        """
        if self._within is not None:
            self._within.fill(sequence, drafts, masks)
        else:
            for place in range(len(masks)):
                masks[place] = self._choosable(sequence, place)
        for place, mask in enumerate(masks):
            self._narrow(sequence, drafts[:place], mask)
            if place < len(drafts) and not holds(mask, drafts[place]):
                masks[place + 1 :] = 0
                break
        if not masks[0].any():
            raise ConstraintError(
                "the answer cannot go on within its rules: no token is left that it may choose",
                hint="allow more tokens, or forbid fewer words",
            )

    def forced(self, sequence: Sequence) -> list[int]:
        """Return tokens of which the answer cannot but go on."""
        for rule in self._rules:
            if token_ids := rule.forced(sequence):
                return list(token_ids)
        return [] if self._within is None else self._within.forced(sequence)

    def num_possible(self, sequence: Sequence, guesses: Seq[int]) -> int:
        """Return how many guesses may follow a sequence, one after the other."""
        if self._within is not None:
            guesses = guesses[: self._within.num_possible(sequence, guesses)]
        for place, token_id in enumerate(guesses):
            mask = self._choosable(sequence, place).copy()
            self._narrow(sequence, guesses[:place], mask)
            if not holds(mask, token_id):
                return place
        return len(guesses)

    def _narrow(self, sequence: Sequence, ahead: Seq[int], mask: Words) -> None:
        for rule in self._rules:
            rule.narrow(sequence, ahead, mask)

    def _choosable(self, sequence: Sequence, num_ahead: int) -> Words:
        """Return the tokens that a sampler may choose of a sequence without rules."""
        params = sequence.params
        may_end = len(sequence.output_ids) + num_ahead >= params.min_tokens
        if may_end not in self._free:
            banned = {*sequence.banned_ids, *params.suppress_tokens}
            banned |= frozenset() if may_end else sequence.eos_ids
            own = (token_id for token_id in banned if token_id < self._vocab_size)
            self._free[may_end] = self._every & ~words_of(own, self._vocab_size)
        return self._free[may_end]


def spellings(words: Iterable[str], encode: Callable[[str], Seq[int]]) -> list[list[int]]:
    """Return the tokens of words as texts hold them: by themselves, and behind a space.

    The second is left out where it begins with the same token or is of another length, as in vLLM.

    Raises:
        RequestError: a word has no token, or too many.
    """
    made: list[list[int]] = []
    for number, word in enumerate(words):
        alone, behind = list(encode(word.lstrip())), list(encode(f" {word.lstrip()}"))
        if not 0 < len(alone) <= MAX_SEQUENCE_TOKENS:
            raise RequestError(
                f"bad_words[{number}] has {len(alone)} tokens, not 1 to {MAX_SEQUENCE_TOKENS}",
                param="bad_words",
            )
        made.append(alone)
        if len(behind) == len(alone) and behind[0] != alone[0]:
            made.append(behind)
    return made
