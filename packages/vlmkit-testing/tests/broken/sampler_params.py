"""Samplers that break a promise about sampling parameters, or claim the wrong ones."""

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


class ClaimsToIgnoreTopK(ArraySampler):
    ignores = frozenset({"top_k"})


class ClaimsToIgnorePenalties(ArraySampler):
    ignores = frozenset({"repetition_penalty"})


class DropsAField(ArraySampler):
    """Drops a parameter that it does not claim to ignore."""

    field = ""

    def prepare(self, rows: Seq[Row]) -> Pick:
        plain = {self.field: getattr(SamplingParams(), self.field)}
        return super().prepare([self._without(row, plain) for row in rows])

    def _without(self, row: Row, plain: dict[str, Any]) -> Row:
        params = structs.replace(row.sequence.params, **plain)
        return Row(replace(row.sequence, params=params), row.ahead)


class DropsTopK(DropsAField):
    field = "top_k"


class DropsTopP(DropsAField):
    field = "top_p"


class DropsMinP(DropsAField):
    field = "min_p"


class DropsBias(DropsAField):
    field = "logit_bias"


class DropsMinTokens(DropsAField):
    field = "min_tokens"


class DropsPresence(DropsAField):
    field = "presence_penalty"


class DropsFrequency(DropsAField):
    field = "frequency_penalty"


class DropsRepetition(DropsAField):
    field = "repetition_penalty"


class DropsXtc(DropsAField):
    field = "xtc_probability"


class AppliesXtcAlways(ArraySampler):
    """Applies XTC at every token."""

    def prepare(self, rows: Seq[Row]) -> Pick:
        return super().prepare([self._certain(row) for row in rows])

    def _certain(self, row: Row) -> Row:
        params = row.sequence.params
        if params.xtc_probability:
            params = structs.replace(params, xtc_probability=1.0)
        return Row(replace(row.sequence, params=params), row.ahead)


class DropsDry(DropsAField):
    field = "dry_multiplier"


class DropsTheWindowOfPenalties(DropsAField):
    field = "repeat_last_n"


class DropsTypicalP(DropsAField):
    field = "typical_p"


class DropsEpsilon(DropsAField):
    field = "epsilon_cutoff"


class DropsEta(DropsAField):
    field = "eta_cutoff"


class DropsSequenceBias(DropsAField):
    field = "sequence_bias"


class DropsBadWords(DropsAField):
    field = "bad_words_ids"


class DropsNgrams(DropsAField):
    field = "no_repeat_ngram_size"


class DropsSuppressed(DropsAField):
    field = "suppress_tokens"


class DropsSuppressedAtTheBeginning(DropsAField):
    field = "begin_suppress_tokens"


class DropsTopKWithTheClaim(DropsTopK):
    ignores = frozenset({"top_k"})


class DropsRepetitionWithTheClaim(DropsRepetition):
    ignores = frozenset({"repetition_penalty"})


# Temperature.


class RaisesTemperaturesToAHalf(Plain):
    def chosen(self, row: Row, own: Any) -> int:
        params = structs.replace(
            row.sequence.params, temperature=max(0.5, row.sequence.params.temperature)
        )
        return super().chosen(Row(replace(row.sequence, params=params), row.ahead), own)


class DividesByTinyTemperatures(Plain):
    def chosen(self, row: Row, own: Any) -> int:
        temperature = row.sequence.params.temperature
        if not 0 < temperature < 1e-5:
            return super().chosen(row, own)
        with np.errstate(all="ignore"):
            scaled = own / np.float32(temperature)
            return int((scaled - scaled.max()).argmax())


class ChoosesTheLikeliestBelowAHundredth(Plain):
    """Takes small temperatures for zero."""

    def chosen(self, row: Row, own: Any) -> int:
        if row.sequence.params.temperature >= 0.01:
            return super().chosen(row, own)
        params = structs.replace(row.sequence.params, temperature=0.0)
        return super().chosen(Row(replace(row.sequence, params=params), row.ahead), own)


class RaisesTemperaturesToAThousandth(Plain):
    def chosen(self, row: Row, own: Any) -> int:
        temperature = row.sequence.params.temperature
        if not 1e-5 <= temperature < 1e-3:
            return super().chosen(row, own)
        params = structs.replace(row.sequence.params, temperature=1e-3)
        return super().chosen(Row(replace(row.sequence, params=params), row.ahead), own)


class OverflowsAtSmallTemperatures(Plain):
    """Computes exponentials of logits from which the largest is not subtracted."""

    def drawn(self, row: Row, logits: Any, scaled: Any) -> int:
        with np.errstate(all="ignore"):
            weights = np.where(self.kept(row.sequence.params, scaled), np.exp(scaled), 0.0)
        if not np.isfinite(weights).all():
            return int(weights.argmax())
        return super().drawn(row, logits, scaled)


class AddsAnEpsilonToTheTemperature(Plain):
    """Never divides by zero."""

    def drawn(self, row: Row, logits: Any, scaled: Any) -> int:
        temperature = row.sequence.params.temperature
        return super().drawn(row, logits, scaled * (temperature / (temperature + 1e-4)))


# Filters.


class KeepsOneTokenTooMany(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        more = params.top_k + (params.top_k > 1)
        return super().kept(structs.replace(params, top_k=more), scaled)


class FailsIfTopKExceedsTheVocabulary(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        if params.top_k:
            np.partition(-scaled, params.top_k - 1)
        return super().kept(params, scaled)


class TopKDropsEqualLogits(Plain):
    """Keeps the first of equal logits until it has enough."""

    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        kept = super().kept(params, scaled)
        if params.top_k:
            kept[np.argsort(-scaled, kind="stable")[params.top_k :]] = False
        return kept


class TopPDropsEqualLogits(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        kept = super().kept(params, scaled)
        if params.top_p < 1.0:
            order = np.argsort(-scaled, kind="stable")
            kept[order[self.num_of_mass(params.top_p, scaled[order]) + 1 :]] = False
        return kept


class StaysBelowTopP(Plain):
    def num_of_mass(self, mass: float, ordered: Any) -> int:
        return max(0, super().num_of_mass(mass, ordered) - 1)


class KeepsNothingForASmallTopP(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        kept = super().kept(params, scaled)
        return kept if params.top_p > 0.01 else kept & False


class FiltersBeforeTheTemperature(Plain):
    def drawn(self, row: Row, logits: Any, scaled: Any) -> int:
        kept = np.where(self.kept(row.sequence.params, logits), scaled, -np.inf)
        return int((kept + self.noise(row, len(logits))).argmax())


class TreatsMinPAsAProbability(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        kept = super().kept(structs.replace(params, min_p=0.0), scaled)
        chances = np.exp(scaled - scaled.max())
        chances /= chances.sum()
        return kept & ((chances >= params.min_p) | (chances == chances.max()))


class FiltersOnlyFourThousandTokens(Plain):
    """Reads only the columns that its buffer holds."""

    def chosen(self, row: Row, own: Any) -> int:
        return super().chosen(row, own[:4096])


class FiltersOnlyAThousandCandidates(Plain):
    def kept(self, params: SamplingParams, scaled: Any) -> Any:
        ordered = np.sort(scaled)[::-1]
        return super().kept(params, scaled) & (scaled >= ordered[:1000][-1])


class FillsTypicalPByProbability(Plain):
    """Adds tokens to the mass in order of probability."""

    def likely(self, params: SamplingParams, scaled: Any, kept: Any) -> Any:
        params = structs.replace(params, top_p=params.typical_p, top_k=0, min_p=0.0, typical_p=1.0)
        return super().kept(params, scaled) if params.top_p < 1.0 else kept


class AppliesEpsilonFirst(Plain):
    """Uses the probabilities before other filters."""

    def likely(self, params: SamplingParams, scaled: Any, kept: Any) -> Any:
        return kept & super().likely(params, scaled, kept | True)


class TreatsEtaAsEpsilon(Plain):
    def likely(self, params: SamplingParams, scaled: Any, kept: Any) -> Any:
        params = structs.replace(params, epsilon_cutoff=params.eta_cutoff, eta_cutoff=0.0)
        return super().likely(params, scaled, kept)


# Adjustments.


class AddsSequenceBiasAfterPenalties(Plain):
    """Adds the biases of single tokens at the end."""

    def adjusted(self, row: Row, logits: Any) -> Any:
        params = row.sequence.params
        single = {ids[0]: bias for ids, bias in params.sequence_bias if len(ids) == 1}
        longer = tuple((ids, bias) for ids, bias in params.sequence_bias if len(ids) > 1)
        params = structs.replace(params, sequence_bias=longer)
        logits = super().adjusted(Row(replace(row.sequence, params=params), row.ahead), logits)
        for token_id, bias in single.items():
            logits[token_id] += bias
        return logits


class AddsBiasAfterPenalties(Plain):
    """Adds the bias of the request at the end."""

    def adjusted(self, row: Row, logits: Any) -> Any:
        params = structs.replace(row.sequence.params, logit_bias={})
        plain = Row(replace(row.sequence, params=params), row.ahead)
        logits = super().adjusted(plain, logits)
        for token_id, bias in row.sequence.params.logit_bias.items():
            logits[token_id] += bias
        return logits


class ComparesOnlyTheNewestToken(Plain):
    """Compares only the token before the last of a bad word."""

    def ends(self, tokens: list[int], ids: Seq[int]) -> bool:
        return super().ends(tokens, ids[-1:])


class ForbidsTheEndAsABadWord(Plain):
    def forbidden(self, row: Row, tokens: list[int]) -> set[int]:
        single = {ids[0] for ids in row.sequence.params.bad_words_ids if len(ids) == 1}
        return super().forbidden(row, tokens) | single


class FindsRunsOnlyInTheAnswer(Plain):
    def forbidden(self, row: Row, tokens: list[int]) -> set[int]:
        if row.sequence.params.no_repeat_ngram_size:
            tokens = [*row.sequence.output_ids, *row.ahead]
        return super().forbidden(row, tokens)


class SuppressesBeginTokensEverywhere(Plain):
    def forbidden(self, row: Row, tokens: list[int]) -> set[int]:
        return super().forbidden(row, tokens).union(row.sequence.params.begin_suppress_tokens)


class SuppressesOnlyAtTheStart(Plain):
    def forbidden(self, row: Row, tokens: list[int]) -> set[int]:
        found = super().forbidden(row, tokens)
        return found - set(row.sequence.params.suppress_tokens) if row.num_output else found


class ReplacesTheLogitByTheBias(Plain):
    """Replaces the logit by the bias."""

    def adjusted(self, row: Row, logits: Any) -> Any:
        for token_id in row.sequence.params.logit_bias:
            logits[token_id] = 0.0
        return super().adjusted(row, logits)


class IgnoresBannedTokens(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        return super().adjusted(Row(replace(row.sequence, banned_ids=()), row.ahead), logits)


class SubtractsAHundredForBans(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        logits[list(row.sequence.banned_ids)] -= 100.0
        return super().adjusted(Row(replace(row.sequence, banned_ids=()), row.ahead), logits)


class BansOneEndToken(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        ends = frozenset(sorted(row.sequence.eos_ids)[:1])
        return super().adjusted(Row(replace(row.sequence, eos_ids=ends), row.ahead), logits)


class AllowsTheEndATokenEarly(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        least = max(0, row.sequence.params.min_tokens - 1)
        params = structs.replace(row.sequence.params, min_tokens=least)
        return super().adjusted(Row(replace(row.sequence, params=params), row.ahead), logits)


class AppliesPresenceToThePrompt(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        for token_id in set(row.sequence.prompt.token_ids) - set(row.sequence.output_ids):
            if token_id < len(logits):
                logits[token_id] -= row.sequence.params.presence_penalty
        return super().adjusted(row, logits)


class AppliesPresenceForEachOccurrence(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        for token_id, num in Counter(row.sequence.output_ids).items():
            logits[token_id] -= (num - 1) * row.sequence.params.presence_penalty
        return super().adjusted(row, logits)


class AppliesFrequencyOnce(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        for token_id, num in Counter(row.sequence.output_ids).items():
            logits[token_id] += (num - 1) * row.sequence.params.frequency_penalty
        return super().adjusted(row, logits)


class AppliesFrequencyToThePrompt(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        for token_id, num in Counter(row.sequence.prompt.token_ids).items():
            if token_id < len(logits):
                logits[token_id] -= num * row.sequence.params.frequency_penalty
        return super().adjusted(row, logits)


class IgnoresNegativePenalties(Plain):
    """Treats negative penalties as zero."""

    def adjusted(self, row: Row, logits: Any) -> Any:
        params = row.sequence.params
        params = structs.replace(
            params,
            presence_penalty=max(0.0, params.presence_penalty),
            frequency_penalty=max(0.0, params.frequency_penalty),
        )
        return super().adjusted(Row(replace(row.sequence, params=params), row.ahead), logits)


class DividesNegativeLogits(Plain):
    def weaken(self, logits: Any, token_id: int, penalty: float) -> None:
        if token_id < len(logits):
            logits[token_id] /= penalty


class AppliesRepetitionOnlyToTheAnswer(Plain):
    def repeated(self, row: Row) -> set[int]:
        prompt = set(row.sequence.prompt.token_ids) - set(row.sequence.output_ids)
        return super().repeated(row) - prompt


class AppliesRepetitionForEachOccurrence(Plain):
    def repeated(self, row: Row) -> Any:
        held = [*row.sequence.prompt.token_ids, *row.sequence.output_ids, *row.ahead]
        return held if super().repeated(row) else []


class NeedsALogitForEachPromptToken(Plain):
    def weaken(self, logits: Any, token_id: int, penalty: float) -> None:
        logits[token_id] *= 1 / penalty if logits[token_id] > 0 else penalty


FIELDS = (
    (DropsTopK, "top_k", "top_k_keeps_the_likeliest"),
    (DropsTopP, "top_p", "top_p_keeps_the_smallest_set_that_reaches_it"),
    (DropsMinP, "min_p", "min_p_drops_what_is_unlikely_beside_the_likeliest"),
    (DropsBias, "logit_bias", "a_bias_forces_and_forbids"),
    (DropsMinTokens, "min_tokens", "the_end_waits_for_the_minimum"),
    (DropsPresence, "presence_penalty", "a_presence_penalty_counts_once_and_only_in_the_answer"),
    (DropsFrequency, "frequency_penalty", "a_frequency_penalty_counts_every_time"),
    (DropsRepetition, "repetition_penalty", "a_repetition_penalty_weakens_prompt_and_answer"),
    (
        DropsXtc,
        "xtc_probability",
        "xtc_drops_the_likeliest_but_for_the_last_over_its_threshold",
    ),
    (AppliesXtcAlways, "xtc_probability", "xtc_applies_with_its_probability"),
    (DropsDry, "dry_multiplier", "dry_weakens_what_would_go_on_with_a_run_that_came_before"),
    (
        DropsTheWindowOfPenalties,
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
        ClaimsToIgnoreTopK,
        "An ignored parameter changes nothing: top_k.",
        "an_ignored_parameter_changes_nothing",
        honest=DropsTopKWithTheClaim,
    ),
    Broken(
        ClaimsToIgnorePenalties,
        "An ignored parameter changes nothing: repetition_penalty.",
        "an_ignored_parameter_changes_nothing",
        honest=DropsRepetitionWithTheClaim,
    ),
    *(
        Broken(kind, f"A parameter that is not in `ignores` has its effect: {field}.", test)
        for kind, field, test in FIELDS
    ),
)
OF_PLAIN = (
    (
        IgnoresBans,
        "Only sampling parameters may be ignored; bans may not.",
        "only_sampling_parameters_are_ignored",
    ),
    (
        RaisesTemperaturesToAHalf,
        "A temperature of 0 chooses the likeliest token.",
        "temperature_zero_takes_the_likeliest",
    ),
    (
        DividesByTinyTemperatures,
        "A temperature below 1e-5 chooses the likeliest token.",
        "a_temperature_of_next_to_nothing_takes_the_likeliest",
    ),
    (
        ChoosesTheLikeliestBelowAHundredth,
        "A temperature of 1e-5 or more draws.",
        "draws_follow_the_distribution_at_any_temperature",
    ),
    (
        RaisesTemperaturesToAThousandth,
        "A small temperature divides the logits, too.",
        "draws_follow_the_distribution_at_any_temperature",
    ),
    (
        OverflowsAtSmallTemperatures,
        "Logits over a small temperature may be large.",
        "draws_follow_the_distribution_at_any_temperature",
    ),
    (
        AddsAnEpsilonToTheTemperature,
        "Nothing is added to a small temperature.",
        "draws_follow_the_distribution_at_any_temperature",
    ),
    (KeepsOneTokenTooMany, "top_k keeps exactly that many tokens.", "top_k_keeps_the_likeliest"),
    (
        TopKDropsEqualLogits,
        "top_k keeps tokens as likely as the last kept one.",
        "equal_logits_are_kept_or_dropped_together",
    ),
    (
        TopPDropsEqualLogits,
        "top_p keeps tokens as likely as the last kept one.",
        "equal_logits_are_kept_or_dropped_together",
    ),
    (
        StaysBelowTopP,
        "The tokens that top_p keeps reach the sum.",
        "top_p_keeps_the_smallest_set_that_reaches_it",
    ),
    (KeepsNothingForASmallTopP, "top_p keeps at least one token.", "top_p_keeps_one_at_least"),
    (
        FiltersBeforeTheTemperature,
        "top_p uses the probabilities at the temperature.",
        "top_p_keeps_the_smallest_set_that_reaches_it",
    ),
    (
        TreatsMinPAsAProbability,
        "min_p is relative to the probability of the likeliest token.",
        "min_p_drops_what_is_unlikely_beside_the_likeliest",
    ),
    (
        FiltersOnlyFourThousandTokens,
        "Filters cover every token of a large vocabulary.",
        "filters_work_on_rows_of_every_size",
    ),
    (
        FiltersOnlyAThousandCandidates,
        "A filter drops no token that it should keep, however many remain.",
        "a_filter_that_keeps_most_of_many_keeps_the_last_too",
    ),
    (
        FillsTypicalPByProbability,
        "typical_p orders by surprise, and may drop the likeliest token.",
        "typical_p_keeps_what_is_nearest_to_the_mean_surprise",
    ),
    (
        AppliesEpsilonFirst,
        "epsilon_cutoff applies to the probabilities after other filters.",
        "an_epsilon_drops_what_is_less_likely_after_other_filters",
    ),
    (
        TreatsEtaAsEpsilon,
        "eta_cutoff decreases with the entropy.",
        "an_eta_drops_the_less_the_more_is_open",
    ),
    (
        AddsSequenceBiasAfterPenalties,
        "A sequence bias is added before penalties.",
        "a_sequence_bias_comes_before_penalties",
    ),
    (
        AddsBiasAfterPenalties,
        "A bias is added before penalties.",
        "a_bias_comes_before_penalties",
    ),
    (
        ComparesOnlyTheNewestToken,
        "A bad word matches only if all its earlier tokens are the newest.",
        "bad_words_are_not_completed",
    ),
    (ForbidsTheEndAsABadWord, "An end token alone is no bad word.", "bad_words_are_not_completed"),
    (
        FindsRunsOnlyInTheAnswer,
        "A run of the prompt may not be repeated in the answer.",
        "no_run_of_tokens_comes_again",
    ),
    (
        SuppressesBeginTokensEverywhere,
        "begin_suppress_tokens apply to the first token only.",
        "tokens_suppressed_at_the_start_may_come_later",
    ),
    (
        SuppressesOnlyAtTheStart,
        "suppress_tokens apply to every token.",
        "suppressed_tokens_are_never_chosen",
    ),
    (ReplacesTheLogitByTheBias, "A bias is added to the logit.", "a_bias_forces_and_forbids"),
    (IgnoresBannedTokens, "Banned tokens are never chosen.", "banned_tokens_are_never_chosen"),
    (
        SubtractsAHundredForBans,
        "Banned tokens are never chosen, whatever their bias.",
        "banned_tokens_are_never_chosen",
    ),
    (
        BansOneEndToken,
        "None of several end tokens is chosen before min_tokens.",
        "the_end_waits_for_the_minimum",
    ),
    (
        AllowsTheEndATokenEarly,
        "No end token is chosen before min_tokens.",
        "the_end_waits_for_the_minimum",
    ),
    (
        AppliesPresenceToThePrompt,
        "A presence penalty covers the answer only.",
        "a_presence_penalty_counts_once_and_only_in_the_answer",
    ),
    (
        AppliesPresenceForEachOccurrence,
        "A presence penalty is subtracted once.",
        "a_presence_penalty_counts_once_and_only_in_the_answer",
    ),
    (
        AppliesFrequencyOnce,
        "A frequency penalty is subtracted for each occurrence.",
        "a_frequency_penalty_counts_every_time",
    ),
    (
        AppliesFrequencyToThePrompt,
        "A frequency penalty counts tokens of the answer only.",
        "a_frequency_penalty_counts_every_time",
    ),
    (
        IgnoresNegativePenalties,
        "A penalty may be negative.",
        "penalties_add_up_and_turn_round",
    ),
    (
        DividesNegativeLogits,
        "A repetition penalty multiplies negative logits.",
        "a_repetition_penalty_weakens_prompt_and_answer",
    ),
    (
        AppliesRepetitionOnlyToTheAnswer,
        "A repetition penalty covers prompt and answer.",
        "a_repetition_penalty_weakens_prompt_and_answer",
    ),
    (
        AppliesRepetitionForEachOccurrence,
        "A repetition penalty is applied once for each token.",
        "a_repetition_penalty_weakens_prompt_and_answer",
    ),
)
BROKEN = (
    *OF_ARRAYS,
    *(Broken(kind, promise, test, honest=Plain) for kind, promise, test in OF_PLAIN),
    Broken(
        FailsIfTopKExceedsTheVocabulary,
        "top_k may exceed the size of the vocabulary.",
        "top_k_may_be_more_than_there_are",
        raises=(ValueError,),
        honest=Plain,
    ),
    Broken(
        NeedsALogitForEachPromptToken,
        "Tokens of a prompt may have no logit.",
        "tokens_of_a_prompt_may_have_no_logit",
        raises=(IndexError,),
        honest=Plain,
    ),
)
