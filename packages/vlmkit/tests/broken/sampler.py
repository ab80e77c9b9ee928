"""Samplers that break one promise each, made of the built-in one."""

import dataclasses
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from broken.broken import Broken, Table
from vlmkit.running.sampler import ArraySampler
from vlmkit.seams.sampler import Pick, Row
from vlmkit.testing import SamplerContract


class Forgets(ArraySampler):
    """Drops one field of every sequence."""

    field = ""
    value: Any = ()

    def prepare(self, rows: Seq[Row]) -> Pick:
        changed = {self.field: self.value, "sampler_state": None}
        return super().prepare(
            [Row(dataclasses.replace(row.sequence, **changed), row.ahead) for row in rows]
        )


class ForgetsBans(Forgets):
    field = "banned_ids"


class ForgetsTheEnd(Forgets):
    field, value = "eos_ids", frozenset()


class ForgetsPositions(Forgets):
    field, value = "output_ids", []


class ForgetsWhatIsAhead(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        return super().prepare([Row(row.sequence) for row in rows])


class KeepsWhatIsAhead(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        for row in rows:
            row.sequence.output_ids.extend(row.ahead)
        return super().prepare([Row(row.sequence) for row in rows])


class FeelsOtherRows(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        seed = rows[0].sequence.seed
        return super().prepare(
            [Row(dataclasses.replace(row.sequence, seed=seed), row.ahead) for row in rows]
        )


class Overwrites(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)

        def overwrite(logits: Any) -> Any:
            picked = pick(logits)
            logits[:] = 0.0
            return picked

        return overwrite


class TakesTheLikeliest(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        return lambda logits: np.argmax(np.from_dlpack(logits), axis=-1)


class ReturnsAList(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)
        return lambda logits: pick(logits).tolist()


class Sums(ArraySampler):
    """Lets one row's values reach the others."""

    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)
        return lambda logits: pick(logits + 0 * logits.sum())


class OnSampler(SamplerContract):
    def __init__(self, kind: type[ArraySampler]) -> None:
        self._kind = kind

    def make(self) -> ArraySampler:
        return self._kind()


TABLE = Table(
    SamplerContract,
    OnSampler,
    ArraySampler,
    (
        Broken(
            ForgetsBans,
            "Banned tokens are never chosen.",
            "banned_tokens_are_never_chosen",
        ),
        Broken(
            ForgetsTheEnd,
            "No end is chosen before min_tokens.",
            "the_end_waits_for_the_minimum",
        ),
        Broken(
            ForgetsPositions,
            "The draw of a position is another one than that of the next.",
            "each_position_draws_anew",
        ),
        Broken(
            ForgetsPositions,
            "A frequency penalty counts every time that a token stands in the answer.",
            "a_frequency_penalty_counts_every_time",
        ),
        Broken(
            ForgetsWhatIsAhead,
            "What is ahead of a row counts as if it were in the answer.",
            "what_is_ahead_counts_as_if_it_were_in_the_answer",
        ),
        Broken(
            KeepsWhatIsAhead,
            "What was ahead leaves no trace.",
            "what_was_ahead_leaves_no_trace",
        ),
        Broken(
            FeelsOtherRows,
            "A row is chosen by its own sequence alone.",
            "seeds_in_one_batch_draw_as_alone",
        ),
        Broken(
            Sums,
            "A row without a finite value harms no other.",
            "a_row_without_a_finite_value_harms_no_other",
        ),
        Broken(
            ReturnsAList,
            "A pick returns an array of one token id for each row.",
            "there_is_one_token_for_each_row",
            raises=(AttributeError, TypeError),
        ),
        Broken(
            Overwrites,
            "The logits stay as they are.",
            "the_logits_stay_as_they_are",
        ),
        Broken(
            TakesTheLikeliest,
            "Draws follow the distribution of the logits.",
            "draws_follow_the_distribution",
        ),
        Broken(
            TakesTheLikeliest,
            "top_k keeps the likeliest tokens, and all of them.",
            "top_k_keeps_the_likeliest",
        ),
    ),
    is_whole=False,
)
