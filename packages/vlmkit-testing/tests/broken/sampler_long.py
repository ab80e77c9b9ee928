"""Samplers that break a promise about long answers or nearly equal logits."""

from collections import Counter
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from honest.sampler import Plain

from broken.broken import Broken
from vlmkit.interfaces.sampler import Pick, Row


class LooksBackSixtyFourTokens(Plain):
    def repeated(self, row: Row) -> set[int]:
        sequence = row.sequence
        held = [*sequence.prompt.token_ids, *sequence.output_ids, *row.ahead]
        return set(held[-64:]) if sequence.params.repetition_penalty != 1.0 else set()


class CountsInOneByte(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        made = super().adjusted(row, logits)
        for token_id, num in Counter([*row.sequence.output_ids, *row.ahead]).items():
            if token_id < len(made):
                made[token_id] += num // 256 * 256 * row.sequence.params.frequency_penalty
        return made


class ComparesInHalfPrecision(Plain):
    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)
        return lambda logits: pick(np.asarray(logits).astype(np.float16).astype(np.float32))


class SubtractsAConstantForBans(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        banned = list(row.sequence.banned_ids)
        lowered = logits[banned] - 100.0
        made = super().adjusted(row, logits)
        made[banned] = lowered
        return made


class RepeatsDistantDraws(Plain):
    """Has a position counter of one byte."""

    def noise(self, row: Row, vocab_size: int) -> Any:
        seed = row.sequence.seed % 2**64
        return np.random.default_rng([seed, row.num_output % 256]).gumbel(size=vocab_size)


ROWS = (
    (
        LooksBackSixtyFourTokens,
        "A repetition penalty covers the whole prompt and answer.",
        "penalties_cover_the_whole_sequence",
    ),
    (
        CountsInOneByte,
        "A frequency penalty counts every occurrence.",
        "penalties_cover_the_whole_sequence",
    ),
    (
        ComparesInHalfPrecision,
        "The likeliest token is chosen at the full precision of the logits.",
        "a_small_difference_decides",
    ),
    (
        SubtractsAConstantForBans,
        "A banned token is never chosen, however likely it is.",
        "banned_tokens_are_never_chosen",
    ),
    (
        RepeatsDistantDraws,
        "Draws of one seed differ at every position, distant ones included.",
        "draws_far_apart_are_not_alike",
    ),
)
LONG = tuple(Broken(kind, promise, test, honest=Plain) for kind, promise, test in ROWS)
