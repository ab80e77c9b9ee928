"""Changes that depend on the order of the newest tokens: biased and forbidden sequences, n-grams.

Reads prompt and answer, and tokens that are ahead, of which it keeps nothing.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from vlmkit.ask.sampling import SamplingParams
from vlmkit.seams.sampler import Row
from vlmkit.seams.sequence import Sequence


class SequenceRules:
    """What one sequence's newest tokens forbid, and what they make likelier.

    Args:
        sequence: whose parameters and tokens are followed.
    """

    def __init__(self, sequence: Sequence) -> None:
        params = sequence.params
        self._ngram_size = params.no_repeat_ngram_size
        self._biased: dict[int, dict[tuple[int, ...], float]] = defaultdict(dict)
        for ids, bias in params.sequence_bias:
            if len(ids) > 1:
                self._biased[ids[-2]][ids] = bias
        self._forbidden: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for ids in params.bad_words_ids:
            if len(ids) > 1:
                self._forbidden[ids[-2]].append(ids)
        self._tokens = np.array(sequence.prompt.token_ids, dtype=np.int64)
        self._num_prompt = self._num_tokens = len(self._tokens)

    @staticmethod
    def has_any(params: SamplingParams) -> bool:
        """Tell whether parameters depend on the order of tokens."""
        sequences = [*params.bad_words_ids, *(ids for ids, _ in params.sequence_bias)]
        return params.no_repeat_ngram_size > 0 or any(len(ids) > 1 for ids in sequences)

    def at(self, row: Row) -> tuple[dict[int, float], set[int]]:
        """Return what is added to logits of tokens, and the tokens that are forbidden."""
        tokens = self._held(row)
        if not len(tokens):
            return {}, set()
        newest = int(tokens[-1])
        offsets: dict[int, float] = {}
        for ids, bias in self._biased.get(newest, {}).items():
            if _ends(tokens, ids[:-1]):
                offsets[ids[-1]] = offsets.get(ids[-1], 0.0) + bias
        forbidden = {ids[-1] for ids in self._forbidden.get(newest, ()) if _ends(tokens, ids[:-1])}
        if self._ngram_size:
            forbidden.update(_repeats(tokens, self._ngram_size))
        return offsets, forbidden

    def _held(self, row: Row) -> Any:
        """Return all tokens, those that are ahead as well: an array that is soon overwritten."""
        own = row.sequence.output_ids
        num_tokens = self._num_prompt + len(own)
        stop = num_tokens + len(row.ahead)
        if stop > len(self._tokens):
            more = np.zeros(max(64, stop - len(self._tokens) + len(self._tokens) // 2), np.int64)
            self._tokens = np.concatenate([self._tokens, more])
        self._tokens[self._num_tokens : num_tokens] = own[self._num_tokens - self._num_prompt :]
        self._num_tokens = num_tokens
        self._tokens[num_tokens:stop] = row.ahead
        return self._tokens[:stop]


def _ends(tokens: Any, ids: tuple[int, ...]) -> bool:
    """Tell whether tokens end with others."""
    return len(ids) <= len(tokens) and bool((tokens[len(tokens) - len(ids) :] == ids).all())


def _repeats(tokens: Any, size: int) -> list[int]:
    """Return the tokens that would complete a run of this size that came before."""
    num_runs = len(tokens) - size + 1
    starts = np.arange(max(num_runs, 0))
    for place in reversed(range(size - 1)):
        if not len(starts):
            break
        starts = starts[tokens[starts + place] == tokens[num_runs + place]]
    found: list[int] = np.unique(tokens[starts + size - 1]).tolist()
    return found
