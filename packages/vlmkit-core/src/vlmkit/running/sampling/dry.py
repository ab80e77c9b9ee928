"""DRY ("don't repeat yourself"): a penalty that grows with the run that a token would repeat.

The rule is llama.cpp's. Runs are searched among the newest tokens of prompt and answer, and end at
sequence breakers. One pass over the window for each new token updates the length of the run that
ends at each position. Drafts leave no trace in this state.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from vlmkit.interfaces.sampler import Row
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.sampling.logit_changes import LogitChanges, changes_of
from vlmkit.running.sampling.token_history import TokenHistory
from vlmkit.types.sampling import MAX_BREAKER_TOKENS, MAX_DRY_TOKENS, SamplingParams

LARGEST_EXPONENT = 88.7228391  # of e, in float32
LARGEST_PENALTY = 1e38
NO_CHANGES = changes_of([])


class _Runs(NamedTuple):
    """The runs at the end of a text that occurred before.

    Attributes:
        lengths: int32, one for each position of the window before the newest token: how many
            tokens up to there equal the newest tokens.
        head: the last position at which a breaker begins; -1 if there is none.
    """

    lengths: Any
    head: int


class DryRule:
    """The DRY penalties of one sequence.

    Args:
        sequence: the sequence, whose parameters, breakers and tokens count.
    """

    def __init__(self, sequence: Sequence) -> None:
        params = sequence.params
        last_n = params.dry_penalty_last_n
        self._window = MAX_DRY_TOKENS if last_n < 0 else min(last_n, MAX_DRY_TOKENS)
        self._params = params
        self._breakers = sequence.dry_breakers
        self._history = TokenHistory(sequence)
        self._runs: _Runs | None = None
        self._num_seen = 0

    @staticmethod
    def is_enabled(params: SamplingParams) -> bool:
        """Return whether parameters ask for DRY."""
        return params.dry_multiplier > 0 and params.dry_penalty_last_n != 0

    def at(self, row: Row) -> LogitChanges:
        """Return the penalties of the tokens that would repeat a run."""
        tokens = self._history.at(row)
        num_own = len(tokens) - len(row.ahead)
        if not len(tokens):
            return NO_CHANGES
        if self._runs is None:
            self._num_seen = max(1, row.sequence.num_prompt_tokens)
            self._runs = self._first(tokens[: self._num_seen])
        for stop in range(self._num_seen + 1, num_own + 1):
            self._runs = self._next(self._runs, tokens[:stop])
        self._num_seen = max(self._num_seen, num_own)
        runs = self._runs
        for stop in range(self._num_seen + 1, len(tokens) + 1):
            runs = self._next(runs, tokens[:stop])
        return self._penalties(runs, tokens)

    def _first(self, tokens: Any) -> _Runs:
        """Return the runs of a prompt, by a Z-function, in time linear in the window."""
        reverse = tokens[::-1][: self._window].tolist()
        lengths = np.array(_z_function(reverse)[1:][::-1], np.int32)
        head = -1
        for position in reversed(range(max(0, len(tokens) - self._window), len(tokens))):
            if self._broken_for(tokens, position) is not None:
                head = position
                break
        return _Runs(lengths, head)

    def _next(self, runs: _Runs, tokens: Any) -> _Runs:
        """Return the runs after one more token, given those before it."""
        newest = len(tokens) - 1
        start = max(0, len(tokens) - self._window)
        before = runs.lengths if start else np.append(np.int32(0), runs.lengths)
        lengths = (before + 1) * (tokens[start:newest] == tokens[newest])
        head = runs.head
        for position in range(newest, max(newest - MAX_BREAKER_TOKENS - 1, head), -1):
            if self._broken_for(tokens, position) is not None:
                head = position
                break
        return _Runs(lengths.astype(np.int32, copy=False), head)

    def _broken_for(self, tokens: Any, position: int) -> int | None:
        """Return how many tokens follow the first one of the longest breaker at a position."""
        token_id = int(tokens[position])
        behind = tuple(tokens[position + 1 : position + 1 + MAX_BREAKER_TOKENS].tolist())
        tails = self._breakers.get(token_id, ())
        return max((len(tail) for tail in tails if behind[: len(tail)] == tail), default=None)

    def _penalties(self, runs: _Runs, tokens: Any) -> LogitChanges:
        params, start = self._params, max(0, len(tokens) - self._window)
        num, allowed = len(tokens) - start, params.dry_allowed_length
        limit = num
        if runs.head >= start:
            limit = len(tokens) - 1 - runs.head - (self._broken_for(tokens, runs.head) or 0)
        if num <= allowed or limit < allowed:
            return NO_CHANGES
        lengths = np.minimum(runs.lengths, np.arange(1, num).clip(max=limit))
        positions = np.flatnonzero(lengths >= allowed)
        token_ids, of_token = np.unique(tokens[start + 1 + positions], return_inverse=True)
        longest = np.zeros(len(token_ids), np.int64)
        np.maximum.at(longest, of_token, lengths[positions])
        is_free = [() in self._breakers.get(each, ()) for each in token_ids.tolist()]
        kept = ~np.array(is_free, np.bool_)
        return changes_of(token_ids[kept], shifts=-_penalty(params, longest[kept] - allowed))


def _penalty(params: SamplingParams, exponents: Any) -> Any:
    """Return the penalties for runs that are so many tokens over the allowed length."""
    if params.dry_base > 1.000001:
        exponents = np.minimum(exponents, int(LARGEST_EXPONENT / math.log(params.dry_base)))
    with np.errstate(over="ignore"):
        powers = params.dry_multiplier * np.float64(params.dry_base) ** exponents
    return np.minimum(powers, LARGEST_PENALTY)


def _z_function(tokens: list[int]) -> list[int]:
    """Return for each position how many tokens from there equal the first tokens.

    Gusfield, Algorithms on Strings, Trees and Sequences, 1997, chapter 1.
    """
    num = len(tokens)
    lengths = [num] + [0] * (num - 1)
    left = right = 0
    for position in range(1, num):
        length = min(lengths[position - left], right - position) if position < right else 0
        while position + length < num and tokens[length] == tokens[position + length]:
            length += 1
        lengths[position] = length
        if position + length > right:
            left, right = position, position + length
    return lengths
