"""Samplers that break a promise about long answers or nearly equal logits."""

from collections import Counter
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from honest.sampler import Plain

from broken.broken import Broken
from vlmkit.interfaces.sampler import Pick, Row
from vlmkit.types.sampling import SamplingParams


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


class ForgetsDraftsInPenalties(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        return super().adjusted(Row(row.sequence), logits)


class FiltersByTopPBeforeTopK(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        found = super().kept(params, scaled)
        return found & super().kept(params.replaced({"top_k": 0}), scaled)


class CountsTopPOfAllTokens(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        found = super().kept(params.replaced({"top_p": 1.0}), scaled)
        return found & super().kept(params.replaced({"top_k": 0}), scaled)


class NarrowsTokenIds(Plain):
    def add(self, logits: Any, token_id: int, bias: float) -> None:
        super().add(logits, token_id % 2**16, bias)


class ComparesEightTokens(Plain):
    def ends(self, tokens: list[int], ids: Seq[int]) -> bool:
        return super().ends(tokens, ids[-8:])


class RepeatsAfterEveryThousandTokens(Plain):
    def forbidden(self, row: Row, tokens: list[int]) -> set[int]:
        return super().forbidden(row, tokens[-1000:])


class KeepsAllForLargeTopK(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        few = params.replaced({"top_k": 0}) if params.top_k >= 256 else params
        return super().kept(few, scaled)


class SuppressesFromTheSecondToken(Plain):
    def forbidden(self, row: Row, tokens: list[int]) -> set[int]:
        found = super().forbidden(row, tokens)
        params = row.sequence.params
        if row.num_output == 0 and not params.logit_bias:
            found -= set(params.begin_suppress_tokens)
        return found


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
ROWS += (
    (
        SuppressesFromTheSecondToken,
        "Tokens that are suppressed at the start are not chosen first, with any parameters.",
        "each_parameter_alone_acts_as_documented",
    ),
)
ROWS += (
    (
        ComparesEightTokens,
        "A biased or forbidden sequence may be as long as the parameters allow.",
        "long_texts_count_as_a_whole",
    ),
    (
        KeepsAllForLargeTopK,
        "Top-k keeps the stated number of tokens, however large it is.",
        "each_filter_keeps_what_is_documented_at_any_value",
    ),
    (
        RepeatsAfterEveryThousandTokens,
        "No n-gram of the whole text is repeated.",
        "long_texts_count_as_a_whole",
    ),
)
ROWS += (
    (
        CountsTopPOfAllTokens,
        "Top-p is a share of the tokens that top-k keeps.",
        "top_p_counts_what_top_k_keeps",
    ),
)
TOGETHER = (
    (ForgetsDraftsInPenalties, "Penalties count drafts as tokens of the answer."),
    (FiltersByTopPBeforeTopK, "Top-p applies to the tokens that top-k keeps."),
    (NarrowsTokenIds, "Bans hold for every token of a large vocabulary."),
)
ROWS += tuple(
    (kind, promise, "combined_parameters_act_as_documented") for kind, promise in TOGETHER
)
LONG = tuple(Broken(kind, promise, test, honest=Plain) for kind, promise, test in ROWS)
