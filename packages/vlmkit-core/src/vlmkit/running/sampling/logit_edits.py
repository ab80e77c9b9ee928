"""The logit edits of a request: biases, penalties, bans, and the minimum length.

It says how single logits change, and changes none itself. It counts the tokens of a sequence as it
grows. Drafts leave no trace in those counts.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from vlmkit.interfaces.sampler import Row
from vlmkit.interfaces.sequence import Sequence
from vlmkit.kit.per_sequence import PerSequence
from vlmkit.running.sampling.dry import DryRule
from vlmkit.running.sampling.logit_changes import LogitChanges, changes_of
from vlmkit.running.sampling.sequence_rules import SequenceRules
from vlmkit.types.sampling import SamplingParams


class LogitEdits:
    """The logit edits of one sequence, kept up to date.

    Args:
        sequence: the sequence, whose parameters and tokens count.

    Attributes:
        banned: tokens that must never be chosen.
        settled: the choice of all further tokens, once it is the same for each.
    """

    settled: Any = None

    def __init__(self, sequence: Sequence) -> None:
        params = sequence.params
        is_windowed = params.repeat_last_n >= 0
        reads_prompt = params.repetition_penalty != 1.0 and not is_windowed
        prompt = set(sequence.prompt.token_ids) if reads_prompt else set()
        waiting = sequence.eos_ids if params.min_tokens else frozenset()
        banned = {*sequence.banned_ids, *params.suppress_tokens}
        banned |= {ids[0] for ids in params.bad_words_ids if len(ids) == 1} - sequence.eos_ids
        first = frozenset(params.begin_suppress_tokens)
        offsets = dict(params.logit_bias)
        for ids, bias in params.sequence_bias:
            if len(ids) == 1:
                offsets[ids[0]] = offsets.get(ids[0], 0.0) + bias
        shifts = dict.fromkeys([*prompt, *waiting, *first, *offsets], 0.0)
        shifts |= dict.fromkeys(banned, -math.inf)
        self.banned = frozenset(banned)
        self._params = params
        self._rules: list[SequenceRules | DryRule] = []
        if SequenceRules.has_any(params):
            self._rules.append(SequenceRules(sequence))
        if DryRule.is_enabled(params):
            self._rules.append(DryRule(sequence))
        self._is_counting = has_penalty(params) and not is_windowed
        self._is_windowed = has_penalty(params) and is_windowed
        self._num_counted = 0
        self._num_fixed = len(shifts)
        self._index_of = {token_id: index for index, token_id in enumerate(shifts)}
        self._token_ids = np.array(list(shifts), dtype=np.int64)
        self._shifts = np.array(list(shifts.values()), dtype=np.float64)
        self._offsets = np.array([offsets.get(i, 0.0) for i in shifts], dtype=np.float64)
        self._counts = np.zeros(len(shifts), dtype=np.int64)
        self._is_in_prompt = np.array([token_id in prompt for token_id in shifts], dtype=np.bool_)
        self._ends = np.array([self._index_of[token_id] for token_id in waiting], dtype=np.int64)
        self._first = np.array([self._index_of[token_id] for token_id in first], dtype=np.int64)
        self._fixed: LogitChanges | None = None

    def is_settled(self, num_output: int) -> bool:
        """Return whether the edits are the same for all tokens after so many."""
        is_counting = self._is_counting or self._is_windowed
        return not is_counting and not self._rules and not self._is_beginning(num_output)

    def is_plain_at(self, num_output: int) -> bool:
        """Return whether bans are the only edits."""
        params = self._params
        is_moved = params.logit_bias or params.sequence_bias
        return not is_moved and self.is_settled(num_output)

    def _is_beginning(self, num_output: int) -> bool:
        """Return whether some tokens are suppressed at the start of the answer."""
        return num_output < self._params.min_tokens or (
            num_output == 0 and bool(self._params.begin_suppress_tokens)
        )

    def at(self, row: Row) -> LogitChanges:
        """Return the edits of a row of this sequence."""
        changes = self._counted(row) if self._is_counting else self._without_counts(row.num_output)
        if self._is_windowed:
            changes = changes.combined(_window_penalties(row))
        for rule in self._rules:
            changes = changes.combined(rule.at(row))
        return changes

    def _counted(self, row: Row) -> LogitChanges:
        output_ids = row.sequence.output_ids
        self._count(output_ids[self._num_counted :])
        self._num_counted = len(output_ids)
        self._count(row.ahead)
        changes = self._changes(row.num_output)
        for token_id in reversed(row.ahead):
            self._forget(token_id)
        return changes

    def _without_counts(self, num_output: int) -> LogitChanges:
        """Return edits that depend only on the length of the answer so far."""
        if self._is_beginning(num_output):
            return self._changes(num_output)
        if self._fixed is None:
            self._fixed = self._changes(num_output)
        return self._fixed

    def _changes(self, num_output: int) -> LogitChanges:
        params, is_in_output = self._params, self._counts > 0
        shifts = self._shifts - self._counts * params.frequency_penalty
        shifts -= is_in_output * params.presence_penalty
        if num_output < params.min_tokens:
            shifts[self._ends] = -math.inf
        if num_output == 0:
            shifts[self._first] = -math.inf
        is_held = self._is_in_prompt | is_in_output
        factors = np.where(is_held, params.repetition_penalty, 1.0)
        numbers = (self._offsets, factors, shifts)
        return LogitChanges(self._token_ids, *(array.astype(np.float32) for array in numbers))

    def _count(self, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            index = self._index_of.setdefault(token_id, len(self._token_ids))
            if index == len(self._token_ids):
                self._token_ids = np.append(self._token_ids, token_id)
                self._shifts = np.append(self._shifts, 0.0)
                self._offsets = np.append(self._offsets, 0.0)
                self._counts = np.append(self._counts, 0)
                self._is_in_prompt = np.append(self._is_in_prompt, False)
            self._counts[index] += 1

    def _forget(self, token_id: int) -> None:
        """Undo the newest count of a token, and drop its entry if that count added it."""
        index = self._index_of[token_id]
        self._counts[index] -= 1
        if index >= self._num_fixed and not self._counts[index]:
            del self._index_of[token_id]
            self._token_ids = self._token_ids[:-1]
            self._shifts = self._shifts[:-1]
            self._offsets = self._offsets[:-1]
            self._counts = self._counts[:-1]
            self._is_in_prompt = self._is_in_prompt[:-1]


EDITS = PerSequence(LogitEdits)
"""The edits of each sequence. Samplers share them, since only the sequence's tokens count."""


def has_penalty(params: SamplingParams) -> bool:
    """Return whether the tokens of a sequence change its logits."""
    has_any = params.presence_penalty or params.frequency_penalty
    return bool(has_any or params.repetition_penalty != 1.0) and params.repeat_last_n != 0


def _window(row: Row, num_tokens: int) -> list[int]:
    """Return the newest tokens of prompt and answer, drafts included."""
    sequence = row.sequence
    newest = [*sequence.output_ids[-num_tokens:], *row.ahead][-num_tokens:]
    num_missing = min(num_tokens - len(newest), sequence.num_prompt_tokens)
    if num_missing > 0:
        newest = [*sequence.prompt.token_ids[-num_missing:], *newest]
    return newest


def _window_penalties(row: Row) -> LogitChanges:
    """Return the three penalties of a row within its window of ``repeat_last_n`` tokens.

    Prompt and answer are counted alike, as in llama.cpp's penalty sampler.
    """
    params = row.sequence.params
    token_ids, counts = np.unique(_window(row, params.repeat_last_n), return_counts=True)
    return changes_of(
        token_ids,
        factors=params.repetition_penalty,
        shifts=-(counts * params.frequency_penalty + params.presence_penalty),
    )
