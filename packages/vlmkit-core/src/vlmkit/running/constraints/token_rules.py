"""Rules that restrict the tokens of an answer, with a constraint or without one.

Each rule clears tokens from the bitmasks of a step, before the sampler sees a logit. So the rules
hold for every sampler, for drafts and after a preemption. A rule reads the tokens of the answer,
and drafts leave no trace in it.
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
    """A rule on the tokens of one answer."""

    @abstractmethod
    def narrow(self, sequence: Sequence, ahead: Seq[int], mask: Words) -> None:
        """Clear the bits ``[words]`` of the tokens that may not follow.

        Args:
            sequence: the sequence of the answer.
            ahead: drafts after the sequence's own tokens, not part of it.
            mask: the tokens that other rules allow; changed.
        """

    def forced(self, sequence: Sequence) -> Seq[int]:  # noqa: ARG002 - of most rules
        """Return the tokens with which the answer must go on; may always be empty."""
        return ()


class AllowedTokens(Rule):
    """Allows only some tokens, as vLLM's ``allowed_token_ids``.

    Args:
        token_ids: the tokens that may be chosen.
        vocab_size: columns of the logits.
    """

    def __init__(self, token_ids: Iterable[int], vocab_size: int) -> None:
        self._words = words_of(token_ids, vocab_size)

    def narrow(self, sequence: Sequence, ahead: Seq[int], mask: Words) -> None:  # noqa: ARG002
        """Clear all other tokens; see :meth:`Rule.narrow`."""
        mask &= self._words


class BadWords(Rule):
    """Forbids the last token of a word where the answer ends with the tokens before it.

    Tokens of the prompt do not count, as in vLLM's ``bad_words``.

    Args:
        words: the tokens of each spelling.
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
        """Clear the tokens that would complete a word; see :meth:`Rule.narrow`."""
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
    """A grammar state that applies rules, and may wrap the :class:`GrammarState` of a constraint.

    Args:
        rules: the rules, which all hold.
        vocab_size: columns of the logits.
        grammar: the grammar state of the answer's constraint; None without a constraint.

    Attributes:
        unenforced: parts of the constraint's schemas that are not enforced.
    """

    def __init__(
        self, rules: Seq[Rule], vocab_size: int, grammar: GrammarState | None = None
    ) -> None:
        self.unenforced = () if grammar is None else grammar.unenforced
        self._rules = rules
        self._grammar = grammar
        self._vocab_size = vocab_size
        self._every = words_of(range(vocab_size), vocab_size)
        self._allowed_by_end: dict[bool, Words] = {}  # by whether the answer may end

    def allocate_bitmask(self, num_rows: int) -> Words:
        """Return bitmasks ``[rows, words]`` that allow no token."""
        return np.zeros((num_rows, len(self._every)), np.int32)

    def fill(self, sequence: Sequence, drafts: Seq[int], masks: Words) -> None:
        """Set the bits of the tokens that may follow a sequence and each of its drafts.

        Args:
            sequence: the sequence of the answer.
            drafts: tokens that may come next; rows behind one that is not allowed stay empty.
            masks: ``[1 + drafts, words]`` zeros; filled.

        Raises:
            ConstraintError: no token may follow the sequence.
        """
        if self._grammar is not None:
            self._grammar.fill(sequence, drafts, masks)
        else:
            for num_ahead in range(len(masks)):
                masks[num_ahead] = self._allowed(sequence, num_ahead)
        for num_ahead, mask in enumerate(masks):
            self._narrow(sequence, drafts[:num_ahead], mask)
            if num_ahead < len(drafts) and not holds(mask, drafts[num_ahead]):
                masks[num_ahead + 1 :] = 0
                break
        if not masks[0].any():
            raise ConstraintError(
                "the answer cannot go on within its rules: no token is left that it may choose",
                hint="allow more tokens, or forbid fewer words",
            )

    def forced(self, sequence: Sequence) -> list[int]:
        """Return the tokens with which the answer must go on."""
        for rule in self._rules:
            if token_ids := rule.forced(sequence):
                return list(token_ids)
        return [] if self._grammar is None else self._grammar.forced(sequence)

    def num_possible(self, sequence: Sequence, guesses: Seq[int]) -> int:
        """Return how many of the guesses may follow a sequence, one after the other."""
        if self._grammar is not None:
            guesses = guesses[: self._grammar.num_possible(sequence, guesses)]
        for num_ahead, token_id in enumerate(guesses):
            mask = self._allowed(sequence, num_ahead).copy()
            self._narrow(sequence, guesses[:num_ahead], mask)
            if not holds(mask, token_id):
                return num_ahead
        return len(guesses)

    def _narrow(self, sequence: Sequence, ahead: Seq[int], mask: Words) -> None:
        for rule in self._rules:
            rule.narrow(sequence, ahead, mask)

    def _allowed(self, sequence: Sequence, num_ahead: int) -> Words:
        """Return the bitmask of the tokens that may follow where no rule applies."""
        params = sequence.params
        may_end = len(sequence.output_ids) + num_ahead >= params.min_tokens
        if may_end not in self._allowed_by_end:
            banned = {*sequence.banned_ids, *params.suppress_tokens}
            banned |= frozenset() if may_end else sequence.eos_ids
            own = (token_id for token_id in banned if token_id < self._vocab_size)
            self._allowed_by_end[may_end] = self._every & ~words_of(own, self._vocab_size)
        return self._allowed_by_end[may_end]


def spellings(words: Iterable[str], encode: Callable[[str], Seq[int]]) -> list[list[int]]:
    """Return the tokens of each word, at the start of a text and after a space.

    The second spelling is left out where it begins with the same token or has another length, as in
    vLLM.

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
