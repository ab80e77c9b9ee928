"""Changes that depend on the order of the newest tokens: biased and forbidden sequences, n-grams.

Reads prompt and answer, and tokens that are ahead, of which it keeps nothing.
"""

import math
from collections import defaultdict
from typing import Any

import numpy as np

from vlmkit.interfaces.sampler import Row
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.sampling.logit_changes import LogitChanges, changes_of
from vlmkit.running.sampling.token_history import TokenHistory
from vlmkit.types.sampling import SamplingParams


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
        self._held = TokenHistory(sequence)

    @staticmethod
    def has_any(params: SamplingParams) -> bool:
        """Tell whether parameters depend on the order of tokens."""
        sequences = [*params.bad_words_ids, *(ids for ids, _ in params.sequence_bias)]
        return params.no_repeat_ngram_size > 0 or any(len(ids) > 1 for ids in sequences)

    def at(self, row: Row) -> LogitChanges:
        """Return what is added to logits of tokens; tokens that are forbidden get no chance."""
        offsets, forbidden = self._found(row)
        token_ids = [*{*offsets, *forbidden}]
        return changes_of(
            token_ids,
            offsets=[offsets.get(token_id, 0.0) for token_id in token_ids],
            shifts=[-math.inf if token_id in forbidden else 0.0 for token_id in token_ids],
        )

    def _found(self, row: Row) -> tuple[dict[int, float], set[int]]:
        tokens = self._held.at(row)
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
