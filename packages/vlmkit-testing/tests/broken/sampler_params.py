"""Samplers that break one promise each: of what parameters do, and of what is claimed of them."""

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import numpy as np
from honest.sampler import Plain
from msgspec import structs

from broken.broken import Broken
from vlmkit.interfaces.sampler import Pick, Row
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.types.sampling import SamplingParams

# Claims.


class IgnoresBans(Plain):
    ignores = frozenset({"banned_ids"})


class IgnoresInWordsOnly(ArraySampler):
    ignores = frozenset({"top_k"})


class IgnoresPenaltiesInWordsOnly(ArraySampler):
    ignores = frozenset({"repetition_penalty"})


class Drops(ArraySampler):
    """Follows less than it says: passes a field over."""

    field = ""

    def prepare(self, rows: Seq[Row]) -> Pick:
        plain = {self.field: getattr(SamplingParams(), self.field)}
        return super().prepare([self._without(row, plain) for row in rows])

    def _without(self, row: Row, plain: dict[str, Any]) -> Row:
        params = structs.replace(row.sequence.params, **plain)
        return Row(replace(row.sequence, params=params), row.ahead)


class DropsTopK(Drops):
    field = "top_k"


class DropsTopP(Drops):
    field = "top_p"


class DropsMinP(Drops):
    field = "min_p"


class DropsBias(Drops):
    field = "logit_bias"


class DropsTheMinimum(Drops):
    field = "min_tokens"


class DropsPresence(Drops):
    field = "presence_penalty"


class DropsFrequency(Drops):
    field = "frequency_penalty"


class DropsRepetition(Drops):
    field = "repetition_penalty"


class DropsXtc(Drops):
    field = "xtc_probability"


class AlwaysXtc(ArraySampler):
    """Leaves nothing to chance."""

    def prepare(self, rows: Seq[Row]) -> Pick:
        return super().prepare([self._certain(row) for row in rows])

    def _certain(self, row: Row) -> Row:
        params = row.sequence.params
        if params.xtc_probability:
            params = structs.replace(params, xtc_probability=1.0)
        return Row(replace(row.sequence, params=params), row.ahead)


class DropsDry(Drops):
    field = "dry_multiplier"


class DropsTheWindow(Drops):
    field = "repeat_last_n"


class DropsTypicalP(Drops):
    field = "typical_p"


class DropsEpsilon(Drops):
    field = "epsilon_cutoff"


class DropsEta(Drops):
    field = "eta_cutoff"


class DropsSequenceBias(Drops):
    field = "sequence_bias"


class DropsBadWords(Drops):
    field = "bad_words_ids"


class DropsNgrams(Drops):
    field = "no_repeat_ngram_size"


class DropsSuppressed(Drops):
    field = "suppress_tokens"


class DropsSuppressedAtTheBeginning(Drops):
    field = "begin_suppress_tokens"


class DropsTopKAndSaysSo(DropsTopK):
    ignores = frozenset({"top_k"})


class DropsRepetitionAndSaysSo(DropsRepetition):
    ignores = frozenset({"repetition_penalty"})


# Temperature.


class NeverBelowAHalf(Plain):
    def chosen(self, row: Row, own: Any) -> int:
        params = structs.replace(
            row.sequence.params, temperature=max(0.5, row.sequence.params.temperature)
        )
        return super().chosen(Row(replace(row.sequence, params=params), row.ahead), own)


class DividesByNextToNothing(Plain):
    def chosen(self, row: Row, own: Any) -> int:
        temperature = row.sequence.params.temperature
        if not 0 < temperature < 1e-5:
            return super().chosen(row, own)
        with np.errstate(all="ignore"):
            scaled = own / np.float32(temperature)
            return int((scaled - scaled.max()).argmax())


# Filters.


class KeepsOneMore(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        more = params.top_k + (params.top_k > 1)
        return super().kept(structs.replace(params, top_k=more), scaled)


class CountsPastTheEnd(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        if params.top_k:
            np.partition(-scaled, params.top_k - 1)
        return super().kept(params, scaled)


class CutsEquals(Plain):
    """Takes the first of equals until it has enough."""

    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        kept = super().kept(params, scaled)
        if params.top_k:
            kept[np.argsort(-scaled, kind="stable")[params.top_k :]] = False
        return kept


class CutsEqualsOfAMass(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        kept = super().kept(params, scaled)
        if params.top_p < 1.0:
            order = np.argsort(-scaled, kind="stable")
            kept[order[self.num_of_mass(params.top_p, scaled[order]) + 1 :]] = False
        return kept


class StaysBelowTheMass(Plain):
    def num_of_mass(self, mass: float, ordered: Any) -> int:
        return max(0, super().num_of_mass(mass, ordered) - 1)


class KeepsNothingOfALittleMass(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        kept = super().kept(params, scaled)
        return kept if params.top_p > 0.01 else kept & False


class FiltersBeforeTheTemperature(Plain):
    def drawn(self, row: Row, logits: Any, scaled: Any) -> int:
        kept = np.where(self.kept(row.sequence.params, logits), scaled, -np.inf)
        return int((kept + self.noise(row, len(logits))).argmax())


class TakesMinPForAProbability(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        kept = super().kept(structs.replace(params, min_p=0.0), scaled)
        chances = np.exp(scaled - scaled.max())
        chances /= chances.sum()
        return kept & ((chances >= params.min_p) | (chances == chances.max()))


class LosesAboveFourThousand(Plain):
    """Looks at as many columns as its buffer has."""

    def chosen(self, row: Row, own: Any) -> int:
        return super().chosen(row, own[:4096])


class HasAThousandCandidates(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        ordered = np.sort(scaled)[::-1]
        return super().kept(params, scaled) & (scaled >= ordered[:1000][-1])


class TakesTheLikeliestForTypical(Plain):
    """Fills the mass by probability."""

    def likely(self, params: SamplingParams, scaled: Any, kept: Any) -> Any:
        params = structs.replace(params, top_p=params.typical_p, top_k=0, min_p=0.0, typical_p=1.0)
        return super().kept(params, scaled) if params.top_p < 1.0 else kept


class CutsEpsilonFirst(Plain):
    """Looks at probabilities before other filters."""

    def likely(self, params: SamplingParams, scaled: Any, kept: Any) -> Any:
        return kept & super().likely(params, scaled, kept | True)


class TakesEtaForEpsilon(Plain):
    def likely(self, params: SamplingParams, scaled: Any, kept: Any) -> Any:
        params = structs.replace(params, epsilon_cutoff=params.eta_cutoff, eta_cutoff=0.0)
        return super().likely(params, scaled, kept)


# Adjustments.


class BiasesAfterPenalties(Plain):
    """Takes the bias of a token for that of the request."""

    def adjusted(self, row: Row, logits: Any) -> Any:
        params = row.sequence.params
        single = {ids[0]: bias for ids, bias in params.sequence_bias if len(ids) == 1}
        longer = tuple((ids, bias) for ids, bias in params.sequence_bias if len(ids) > 1)
        bias = params.logit_bias | single
        params = structs.replace(params, sequence_bias=longer, logit_bias=bias)
        return super().adjusted(Row(replace(row.sequence, params=params), row.ahead), logits)


class ComparesTheNewestToken(Plain):
    """Looks at the one token before the last of a sequence."""

    def ends(self, tokens: list[int], ids: Seq[int]) -> bool:
        return super().ends(tokens, ids[-1:])


class ForbidsTheEnd(Plain):
    def forbidden(self, row: Row, tokens: list[int]) -> set[int]:
        single = {ids[0] for ids in row.sequence.params.bad_words_ids if len(ids) == 1}
        return super().forbidden(row, tokens) | single


class FindsRunsInTheAnswer(Plain):
    def forbidden(self, row: Row, tokens: list[int]) -> set[int]:
        if row.sequence.params.no_repeat_ngram_size:
            tokens = [*row.sequence.output_ids, *row.ahead]
        return super().forbidden(row, tokens)


class SuppressesAtEveryPlace(Plain):
    def forbidden(self, row: Row, tokens: list[int]) -> set[int]:
        return super().forbidden(row, tokens).union(row.sequence.params.begin_suppress_tokens)


class SuppressesAtTheBeginning(Plain):
    def forbidden(self, row: Row, tokens: list[int]) -> set[int]:
        found = super().forbidden(row, tokens)
        return found - set(row.sequence.params.suppress_tokens) if row.num_output else found


class SetsTheBias(Plain):
    """Takes a bias for the logit itself."""

    def adjusted(self, row: Row, logits: Any) -> Any:
        for token_id in row.sequence.params.logit_bias:
            logits[token_id] = 0.0
        return super().adjusted(row, logits)


class ForgetsBans(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        return super().adjusted(Row(replace(row.sequence, banned_ids=()), row.ahead), logits)


class BansByAHundred(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        logits[list(row.sequence.banned_ids)] -= 100.0
        return super().adjusted(Row(replace(row.sequence, banned_ids=()), row.ahead), logits)


class BansOneEnd(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        ends = frozenset(sorted(row.sequence.eos_ids)[:1])
        return super().adjusted(Row(replace(row.sequence, eos_ids=ends), row.ahead), logits)


class EndsATokenEarly(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        least = max(0, row.sequence.params.min_tokens - 1)
        params = structs.replace(row.sequence.params, min_tokens=least)
        return super().adjusted(Row(replace(row.sequence, params=params), row.ahead), logits)


class PunishesThePrompt(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        for token_id in set(row.sequence.prompt.token_ids) - set(row.sequence.output_ids):
            if token_id < len(logits):
                logits[token_id] -= row.sequence.params.presence_penalty
        return super().adjusted(row, logits)


class PunishesPresenceEachTime(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        for token_id, num in Counter(row.sequence.output_ids).items():
            logits[token_id] -= (num - 1) * row.sequence.params.presence_penalty
        return super().adjusted(row, logits)


class PunishesFrequencyOnce(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        for token_id, num in Counter(row.sequence.output_ids).items():
            logits[token_id] += (num - 1) * row.sequence.params.frequency_penalty
        return super().adjusted(row, logits)


class CountsThePrompt(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        for token_id, num in Counter(row.sequence.prompt.token_ids).items():
            if token_id < len(logits):
                logits[token_id] -= num * row.sequence.params.frequency_penalty
        return super().adjusted(row, logits)


class IgnoresNegativePenalties(Plain):
    """Takes penalties below zero for none."""

    def adjusted(self, row: Row, logits: Any) -> Any:
        params = row.sequence.params
        params = structs.replace(
            params,
            presence_penalty=max(0.0, params.presence_penalty),
            frequency_penalty=max(0.0, params.frequency_penalty),
        )
        return super().adjusted(Row(replace(row.sequence, params=params), row.ahead), logits)


class StrengthensNegatives(Plain):
    def weaken(self, logits: Any, token_id: int, penalty: float) -> None:
        if token_id < len(logits):
            logits[token_id] /= penalty


class WeakensTheAnswerOnly(Plain):
    def repeated(self, row: Row) -> set[int]:
        prompt = set(row.sequence.prompt.token_ids) - set(row.sequence.output_ids)
        return super().repeated(row) - prompt


class WeakensEachTime(Plain):
    def repeated(self, row: Row) -> Any:
        held = [*row.sequence.prompt.token_ids, *row.sequence.output_ids, *row.ahead]
        return held if super().repeated(row) else []


class NeedsALogitForEachToken(Plain):
    def weaken(self, logits: Any, token_id: int, penalty: float) -> None:
        logits[token_id] *= 1 / penalty if logits[token_id] > 0 else penalty


FIELDS = (
    (DropsTopK, "top_k", "top_k_keeps_the_likeliest"),
    (DropsTopP, "top_p", "top_p_keeps_the_smallest_set_that_reaches_it"),
    (DropsMinP, "min_p", "min_p_drops_what_is_unlikely_beside_the_likeliest"),
    (DropsBias, "logit_bias", "a_bias_forces_and_forbids"),
    (DropsTheMinimum, "min_tokens", "the_end_waits_for_the_minimum"),
    (DropsPresence, "presence_penalty", "a_presence_penalty_counts_once_and_only_in_the_answer"),
    (DropsFrequency, "frequency_penalty", "a_frequency_penalty_counts_every_time"),
    (DropsRepetition, "repetition_penalty", "a_repetition_penalty_weakens_prompt_and_answer"),
    (
        DropsXtc,
        "xtc_probability",
        "xtc_drops_the_likeliest_but_for_the_last_over_its_threshold",
    ),
    (AlwaysXtc, "xtc_probability", "xtc_applies_with_its_probability"),
    (DropsDry, "dry_multiplier", "dry_weakens_what_would_go_on_with_a_run_that_came_before"),
    (
        DropsTheWindow,
        "repeat_last_n",
        "penalties_cover_the_requested_window",
    ),
    (DropsTypicalP, "typical_p", "typical_p_keeps_what_is_nearest_to_the_mean_surprise"),
    (DropsEpsilon, "epsilon_cutoff", "an_epsilon_drops_what_is_less_likely_after_other_filters"),
    (DropsEta, "eta_cutoff", "an_eta_drops_the_less_the_more_is_open"),
    (DropsSequenceBias, "sequence_bias", "a_sequence_bias_needs_what_comes_before"),
    (DropsBadWords, "bad_words_ids", "bad_words_are_not_completed"),
    (DropsNgrams, "no_repeat_ngram_size", "no_run_of_tokens_comes_again"),
    (DropsSuppressed, "suppress_tokens", "suppressed_tokens_are_never_chosen"),
    (
        DropsSuppressedAtTheBeginning,
        "begin_suppress_tokens",
        "tokens_suppressed_at_the_start_may_come_later",
    ),
)
OF_ARRAYS = (
    Broken(
        IgnoresInWordsOnly,
        "What a sampler says it ignores changes nothing: top_k.",
        "an_ignored_parameter_changes_nothing",
        honest=DropsTopKAndSaysSo,
    ),
    Broken(
        IgnoresPenaltiesInWordsOnly,
        "What a sampler says it ignores changes nothing: repetition_penalty.",
        "an_ignored_parameter_changes_nothing",
        honest=DropsRepetitionAndSaysSo,
    ),
    *(
        Broken(kind, f"What a sampler does not say it ignores it follows: {field}.", test)
        for kind, field, test in FIELDS
    ),
)
OF_PLAIN = (
    (
        IgnoresBans,
        "Only parameters are ignored, and bans are none.",
        "only_sampling_parameters_are_ignored",
    ),
    (
        NeverBelowAHalf,
        "A temperature of 0 takes the likeliest.",
        "temperature_zero_takes_the_likeliest",
    ),
    (
        DividesByNextToNothing,
        "A temperature below 1e-5 takes the likeliest.",
        "a_temperature_of_next_to_nothing_takes_the_likeliest",
    ),
    (KeepsOneMore, "top_k keeps so many and no more.", "top_k_keeps_the_likeliest"),
    (
        CutsEquals,
        "top_k keeps those as likely as the last.",
        "equal_logits_are_kept_or_dropped_together",
    ),
    (
        CutsEqualsOfAMass,
        "top_p keeps those as likely as the last.",
        "equal_logits_are_kept_or_dropped_together",
    ),
    (
        StaysBelowTheMass,
        "What top_p keeps reaches the sum.",
        "top_p_keeps_the_smallest_set_that_reaches_it",
    ),
    (KeepsNothingOfALittleMass, "top_p keeps one at least.", "top_p_keeps_one_at_least"),
    (
        FiltersBeforeTheTemperature,
        "The probabilities of top_p are those at the temperature.",
        "top_p_keeps_the_smallest_set_that_reaches_it",
    ),
    (
        TakesMinPForAProbability,
        "min_p is a fraction of the likeliest token's probability.",
        "min_p_drops_what_is_unlikely_beside_the_likeliest",
    ),
    (
        LosesAboveFourThousand,
        "Every token of a large vocabulary has a place.",
        "filters_work_on_rows_of_every_size",
    ),
    (
        HasAThousandCandidates,
        "A filter drops no more than it says, however many are left.",
        "a_filter_that_keeps_most_of_many_keeps_the_last_too",
    ),
    (
        TakesTheLikeliestForTypical,
        "typical_p goes by surprise, and may drop the likeliest.",
        "typical_p_keeps_what_is_nearest_to_the_mean_surprise",
    ),
    (
        CutsEpsilonFirst,
        "epsilon_cutoff is for the probabilities that other filters leave.",
        "an_epsilon_drops_what_is_less_likely_after_other_filters",
    ),
    (
        TakesEtaForEpsilon,
        "eta_cutoff falls with the entropy.",
        "an_eta_drops_the_less_the_more_is_open",
    ),
    (
        BiasesAfterPenalties,
        "A sequence's bias is added before penalties.",
        "a_sequence_bias_comes_before_penalties",
    ),
    (
        ComparesTheNewestToken,
        "All tokens before the last of a sequence must be the newest.",
        "bad_words_are_not_completed",
    ),
    (ForbidsTheEnd, "An end by itself is no bad word.", "bad_words_are_not_completed"),
    (
        FindsRunsInTheAnswer,
        "A run may not come again that the prompt holds.",
        "no_run_of_tokens_comes_again",
    ),
    (
        SuppressesAtEveryPlace,
        "begin_suppress_tokens are for the first token.",
        "tokens_suppressed_at_the_start_may_come_later",
    ),
    (
        SuppressesAtTheBeginning,
        "suppress_tokens are for all tokens.",
        "suppressed_tokens_are_never_chosen",
    ),
    (SetsTheBias, "A bias is added to the logit.", "a_bias_forces_and_forbids"),
    (ForgetsBans, "Banned tokens are never chosen.", "banned_tokens_are_never_chosen"),
    (
        BansByAHundred,
        "Banned tokens are never chosen, whatever is added to them.",
        "banned_tokens_are_never_chosen",
    ),
    (
        BansOneEnd,
        "Before min_tokens no end is chosen, of several none.",
        "the_end_waits_for_the_minimum",
    ),
    (
        EndsATokenEarly,
        "No end is chosen before min_tokens.",
        "the_end_waits_for_the_minimum",
    ),
    (
        PunishesThePrompt,
        "A presence penalty is for what the answer holds.",
        "a_presence_penalty_counts_once_and_only_in_the_answer",
    ),
    (
        PunishesPresenceEachTime,
        "A presence penalty is subtracted once.",
        "a_presence_penalty_counts_once_and_only_in_the_answer",
    ),
    (
        PunishesFrequencyOnce,
        "A frequency penalty is subtracted each time.",
        "a_frequency_penalty_counts_every_time",
    ),
    (
        CountsThePrompt,
        "A frequency penalty counts the answer's tokens.",
        "a_frequency_penalty_counts_every_time",
    ),
    (
        IgnoresNegativePenalties,
        "A penalty may be below zero.",
        "penalties_add_up_and_turn_round",
    ),
    (
        StrengthensNegatives,
        "A repetition penalty multiplies negative logits.",
        "a_repetition_penalty_weakens_prompt_and_answer",
    ),
    (
        WeakensTheAnswerOnly,
        "A repetition penalty is for what prompt or answer hold.",
        "a_repetition_penalty_weakens_prompt_and_answer",
    ),
    (
        WeakensEachTime,
        "A repetition penalty is applied once for each token.",
        "a_repetition_penalty_weakens_prompt_and_answer",
    ),
)
BROKEN = (
    *OF_ARRAYS,
    *(Broken(kind, promise, test, honest=Plain) for kind, promise, test in OF_PLAIN),
    Broken(
        CountsPastTheEnd,
        "top_k may be more than there are tokens.",
        "top_k_may_be_more_than_there_are",
        raises=(ValueError,),
        honest=Plain,
    ),
    Broken(
        NeedsALogitForEachToken,
        "Tokens of a prompt may have no logit.",
        "tokens_of_a_prompt_may_have_no_logit",
        raises=(IndexError,),
        honest=Plain,
    ),
)
