"""Logit edits by the order of the newest tokens: biased and forbidden sequences, and n-grams.

It reads prompt, answer and drafts. Drafts leave no trace in its state.
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
    """The tokens that a sequence's newest tokens forbid or make likelier.

    Args:
        sequence: the sequence, whose parameters and tokens count.
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
        self._history = TokenHistory(sequence)

    @staticmethod
    def has_any(params: SamplingParams) -> bool:
        """Return whether parameters depend on the order of tokens."""
        sequences = [*params.bad_words_ids, *(ids for ids, _ in params.sequence_bias)]
        return params.no_repeat_ngram_size > 0 or any(len(ids) > 1 for ids in sequences)

    def at(self, row: Row) -> LogitChanges:
        """Return the biases of a row; forbidden tokens get minus infinity."""
        offsets, forbidden = self._found(row)
        token_ids = [*{*offsets, *forbidden}]
        return changes_of(
            token_ids,
            offsets=[offsets.get(token_id, 0.0) for token_id in token_ids],
            shifts=[-math.inf if token_id in forbidden else 0.0 for token_id in token_ids],
        )

    def _found(self, row: Row) -> tuple[dict[int, float], set[int]]:
        tokens = self._history.at(row)
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
    """Return whether tokens end with other tokens."""
    return len(ids) <= len(tokens) and bool((tokens[len(tokens) - len(ids) :] == ids).all())


def _repeats(tokens: Any, size: int) -> list[int]:
    """Return the tokens that would repeat an n-gram of this size."""
    num_runs = len(tokens) - size + 1
    starts = np.arange(max(num_runs, 0))
    for offset in reversed(range(size - 1)):
        if not len(starts):
            break
        starts = starts[tokens[starts + offset] == tokens[num_runs + offset]]
    found: list[int] = np.unique(tokens[starts + size - 1]).tolist()
    return found
