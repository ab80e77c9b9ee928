"""What a request changes about single tokens: bias, penalties, bans, and an end that must wait.

Says what to do to which logits; does it to none. Counts what a sequence holds as it grows, and
keeps no trace of tokens that are only ahead of it.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from vlmkit.ask.sampling import SamplingParams
from vlmkit.kit.per_sequence import PerSequence
from vlmkit.seams.sampler import Row
from vlmkit.seams.sequence import Sequence

Numbers = np.ndarray[Any, Any]


class Changes(NamedTuple):
    """Changes of one row, each token at most once.

    Attributes:
        token_ids: ``[changes]`` int64.
        factors: ``[changes]`` float32: positive logits are divided by it, others multiplied.
        shifts: ``[changes]`` float32: added afterwards.
    """

    token_ids: Numbers
    factors: Numbers
    shifts: Numbers


class Edits:
    """One sequence's changes, kept up to date.

    Args:
        sequence: whose parameters and tokens they follow.

    Attributes:
        banned: tokens that must never be chosen.
        settled: how tokens are chosen from here on, once that is the same for each.
    """

    settled: Any = None

    def __init__(self, sequence: Sequence) -> None:
        params = sequence.params
        prompt = set(sequence.prompt.token_ids) if params.repetition_penalty != 1.0 else set()
        waiting = sequence.eos_ids if params.min_tokens else frozenset()
        shifts = dict.fromkeys(prompt | waiting, 0.0) | params.logit_bias
        shifts |= dict.fromkeys(sequence.banned_ids, -math.inf)
        self.banned = frozenset(sequence.banned_ids)
        self._params = params
        self._is_counting = has_penalty(params)
        self._num_counted = 0
        self._num_fixed = len(shifts)
        self._places = {token_id: place for place, token_id in enumerate(shifts)}
        self._token_ids = np.array(list(shifts), dtype=np.int64)
        self._shifts = np.array(list(shifts.values()), dtype=np.float64)
        self._counts = np.zeros(len(shifts), dtype=np.int64)
        self._is_in_prompt = np.array([token_id in prompt for token_id in shifts], dtype=np.bool_)
        self._ends = np.array([self._places[token_id] for token_id in waiting], dtype=np.int64)
        self._fixed: Changes | None = None

    def is_settled(self, num_output: int) -> bool:
        """Tell whether what changes is the same for all tokens after so many."""
        return not self._is_counting and num_output >= self._params.min_tokens

    def at(self, row: Row) -> Changes:
        """Return what to change in a row of this sequence."""
        if not self._is_counting:
            return self._without_counts(row.num_output)
        output_ids = row.sequence.output_ids
        self._count(output_ids[self._num_counted :])
        self._num_counted = len(output_ids)
        self._count(row.ahead)
        changes = self._changes(row.num_output)
        for token_id in reversed(row.ahead):
            self._forget(token_id)
        return changes

    def _without_counts(self, num_output: int) -> Changes:
        """Return changes that only an answer's least length changes."""
        if num_output < self._params.min_tokens:
            return self._changes(num_output)
        if self._fixed is None:
            self._fixed = self._changes(num_output)
        return self._fixed

    def _changes(self, num_output: int) -> Changes:
        params, is_in_output = self._params, self._counts > 0
        shifts = self._shifts - self._counts * params.frequency_penalty
        shifts -= is_in_output * params.presence_penalty
        if num_output < params.min_tokens:
            shifts[self._ends] = -math.inf
        is_held = self._is_in_prompt | is_in_output
        factors = np.where(is_held, params.repetition_penalty, 1.0)
        return Changes(self._token_ids, factors.astype(np.float32), shifts.astype(np.float32))

    def _count(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            place = self._places.setdefault(token_id, len(self._token_ids))
            if place == len(self._token_ids):
                self._token_ids = np.append(self._token_ids, token_id)
                self._shifts = np.append(self._shifts, 0.0)
                self._counts = np.append(self._counts, 0)
                self._is_in_prompt = np.append(self._is_in_prompt, False)
            self._counts[place] += 1

    def _forget(self, token_id: int) -> None:
        """Take back the newest count of a token, and its place if that was made for it."""
        place = self._places[token_id]
        self._counts[place] -= 1
        if place >= self._num_fixed and not self._counts[place]:
            del self._places[token_id]
            self._token_ids = self._token_ids[:-1]
            self._shifts = self._shifts[:-1]
            self._counts = self._counts[:-1]
            self._is_in_prompt = self._is_in_prompt[:-1]


EDITS = PerSequence(Edits)
"""A sequence's edits, which any sampler of this kind may go on with: its tokens decide them."""


def has_penalty(params: SamplingParams) -> bool:
    """Tell whether what a sequence holds changes its logits."""
    return bool(
        params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
    )
