"""Samplers that break a promise about draws, or about the inputs of a choice."""

import dataclasses
import zlib
from collections.abc import Callable, Sequence as Seq
from ctypes import POINTER, c_float
from typing import Any

import numpy as np
from honest.sampler import Mirostat, Plain

from broken.broken import Broken, Table
from broken.sampler_long import LONG
from broken.sampler_params import BROKEN as OF_PARAMETERS
from vlmkit.interfaces.sampler import Pick, Row
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.sampling.sampler import ArraySampler
from vlmkit.types.sampling import SamplingParams
from vlmkit_testing import SamplerContract

GREEDY = SamplingParams()
LONG_LISTS = "every_entry_of_a_long_list_counts"

# Inputs and outputs.


class ReturnsAList(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)
        return lambda logits: pick(logits).tolist()


class ReturnsFloats(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)
        return lambda logits: pick(logits).astype(np.float32)


class ReturnsAColumn(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)
        return lambda logits: pick(logits)[:, None]


class ReversesRows(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        return super().prepare(rows[::-1])


class OverwritesLogits(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)

        def overwrite(logits: Any) -> Any:
            picked = pick(logits)
            logits[:] = 0.0
            return picked

        return overwrite


class SetsBansInTheLogits(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)

        def ban(logits: Any) -> Any:
            for row, own in zip(logits, rows, strict=True):
                row[list(own.sequence.banned_ids)] = -np.inf
            return pick(logits)

        return ban


class AssumesContiguousRows(ArraySampler):
    """Assumes that rows follow each other without a gap."""

    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)

        def read(logits: Any) -> Any:
            start = logits.ctypes.data_as(POINTER(c_float))
            return pick(np.ctypeslib.as_array(start, logits.shape).copy())

        return read


class FiltersInPlace(ArraySampler):
    """Writes what min-p drops into the logits."""

    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)

        def drop(logits: Any) -> Any:
            picked = pick(logits)
            for row, own in zip(logits, rows, strict=True):
                if own.sequence.params.min_p:
                    row[row < row.max() + np.log(own.sequence.params.min_p)] = -np.inf
            return picked

        return drop


class TakesTheLastOfEqualsInABatch(ArraySampler):
    """Searches a single row from its beginning, and the rows of a batch from their ends."""

    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)

        def search(logits: Any) -> Any:
            picked = np.array(pick(logits))
            for number, row in enumerate(rows):
                is_greedy = row.sequence.params == GREEDY
                if is_greedy and len(rows) > 1 and not row.sequence.banned_ids:
                    picked[number] = logits.shape[1] - 1 - logits[number, ::-1].argmax()
            return picked

        return search


class FailsWithPenaltiesBesideABadRow(ArraySampler):
    """Computes penalties of all rows at once, relative to the largest logit of the step."""

    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)

        def shifted(logits: Any) -> Any:
            is_penalised = any(row.sequence.params.repetition_penalty != 1 for row in rows)
            largest = logits.max() if is_penalised else np.float32(0)
            return pick(logits - largest + largest)

        return shifted


class SumsOverRows(ArraySampler):
    """Adds values of one row to the others."""

    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)
        return lambda logits: pick(logits + 0 * logits.sum())


class ClipsLogits(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)
        return lambda logits: pick(np.clip(logits, -20.0, None))


class TreatsMinusInfinityAsZero(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        pick = super().prepare(rows)
        return lambda logits: pick(np.nan_to_num(logits, neginf=0.0))


class KeepsReleasedSequences(ArraySampler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Sequence] = []

    def prepare(self, rows: Seq[Row]) -> Pick:
        self.seen += [row.sequence for row in rows]
        return super().prepare(rows)


# Inputs of a choice.


class ChangedSequences(ArraySampler):
    """Samples for changed sequences."""

    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        raise NotImplementedError

    def prepare(self, rows: Seq[Row]) -> Pick:
        changed = []
        for index, row in enumerate(rows):
            fields: dict[str, Any] = {"output_ids": list(row.sequence.output_ids)}
            fields |= self.other(row, index, rows)
            changed.append(Row(dataclasses.replace(row.sequence, **fields), row.ahead))
        return super().prepare(changed)


class DrawsByRowIndex(ChangedSequences):
    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        return {"seed": row.sequence.seed + index}


class KeepsPenaltiesByPrompt(ChangedSequences):
    """Counts tokens once for all answers of a prompt that have one length."""

    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        same = (
            each.sequence.output_ids
            for each in rows
            if each.sequence.prompt is row.sequence.prompt
            and len(each.sequence.output_ids) == len(row.sequence.output_ids)
        )
        return {"output_ids": list(next(same))}


class ClipsBiases(ChangedSequences):
    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        params = row.sequence.params
        clipped = tuple((ids, max(-5.0, min(5.0, bias))) for ids, bias in params.sequence_bias)
        return {"params": params.replaced({"sequence_bias": clipped})}


class ReadsAThousandBadWords(ChangedSequences):
    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        params = row.sequence.params
        return {"params": params.replaced({"bad_words_ids": params.bad_words_ids[:1000]})}


class BansTheFirstTokens(ChangedSequences):
    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        return {"banned_ids": row.sequence.banned_ids[:16]}


class DrawsByTheSeedOfTheFirstRow(ChangedSequences):
    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        return {"seed": rows[0].sequence.seed}


class UsesParametersOfTheFirstRow(ChangedSequences):
    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        return {"params": rows[0].sequence.params}


class DependsOnTheBatchSize(ChangedSequences):
    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        return {"seed": row.sequence.seed ^ (len(rows) > 10)}


class DependsOnSequenceIds(ChangedSequences):
    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        return {"seed": row.sequence.seed ^ zlib.crc32(row.sequence.id.encode())}


class CountsItsCalls(ChangedSequences):
    num_calls = 0

    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        self.num_calls += index == 0
        return {"seed": row.sequence.seed ^ (self.num_calls - 1)}


class DrawsFromOneStream(ChangedSequences):
    stream = np.random.default_rng(0)

    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        return {"seed": int(self.stream.integers(2**62))}


class CountsOneTokenForEachCall(ChangedSequences):
    """Assumes that an answer grows by one token between two calls."""

    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        sequence = row.sequence
        seen, length = sequence.kept.get(self) or (list(sequence.output_ids), len(sequence))
        if len(sequence) > length:
            seen = [*seen, sequence.output_ids[-1]]
        sequence.kept[self] = seen, len(sequence)
        return {"output_ids": list(seen)}


class CachesByTheAddressOfASequence(ChangedSequences):
    def __init__(self) -> None:
        super().__init__()
        self.prompts: dict[int, Any] = {}

    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        prompt = self.prompts.setdefault(id(row.sequence), row.sequence.prompt)
        return {"prompt": prompt, "seed": row.sequence.seed ^ prompt.token_ids[0]}


class NeedsItsKeptState(ChangedSequences):
    """Counts the tokens of an answer by its own calls."""

    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        sequence = row.sequence
        sequence.kept[self] = num_calls = sequence.kept.get(self, 0) + 1
        return {"seed": sequence.seed + num_calls}


class WritesTheSeedIntoTheSequence(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        for row in rows:
            row.sequence.seed += 1
        return super().prepare(rows)


class AppendsDraftsToTheSequence(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        for row in rows:
            row.sequence.output_ids.extend(row.ahead)
        return super().prepare([Row(row.sequence) for row in rows])


class IgnoresDraftsAhead(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        return super().prepare([Row(row.sequence) for row in rows])


class CountsRejectedDrafts(Plain):
    def adjusted(self, row: Row, logits: Any) -> Any:
        seen = row.sequence.kept.get(self, [])
        row.sequence.kept[self] = [*seen, *row.ahead]
        for token_id in seen:
            logits[token_id] -= row.sequence.params.frequency_penalty
        return super().adjusted(row, logits)


class StopsWaitingAtADraft(ArraySampler):
    """Allows an answer to end once a draft was at the position where it may."""

    def prepare(self, rows: Seq[Row]) -> Pick:
        for row in rows:
            if row.num_output >= row.sequence.params.min_tokens:
                row.sequence.kept[self] = True
        return super().prepare([self._settled(row) for row in rows])

    def _settled(self, row: Row) -> Row:
        if self not in row.sequence.kept:
            return row
        params = row.sequence.params.replaced({"min_tokens": 0})
        return Row(dataclasses.replace(row.sequence, params=params), row.ahead)


class AdaptsToRejectedDrafts(Mirostat):
    """Adapts its limit to drafts."""

    def _after(self, state: Any, ahead: Seq[int]) -> float:
        state.limit -= self.target_bits * len(ahead)
        return float(state.limit)


# Draws.


class IgnoresPositionsInDraws(ChangedSequences):
    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        return {"output_ids": []}


class AddsSeedAndPosition(Plain):
    def noise(self, row: Row, vocab_size: int) -> Any:
        seed = (row.sequence.seed + row.num_output) % 2**64
        return np.random.default_rng(seed).gumbel(size=vocab_size)


class UsesTheLowBitsOfASeed(ChangedSequences):
    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        return {"seed": row.sequence.seed & (2**32 - 1)}


class DropsTheSignOfASeed(ChangedSequences):
    def other(self, row: Row, index: int, rows: Seq[Row]) -> dict[str, Any]:
        return {"seed": abs(row.sequence.seed)}


class NeverDraws(ArraySampler):
    def prepare(self, rows: Seq[Row]) -> Pick:
        return lambda logits: np.argmax(np.from_dlpack(logits), axis=-1)


class DividesTwice(Plain):
    def drawn(self, row: Row, logits: Any, scaled: Any) -> int:
        return super().drawn(row, logits, scaled / row.sequence.params.temperature)


class NeverDrawsTheLastToken(Plain):
    def noise(self, row: Row, vocab_size: int) -> Any:
        noise = super().noise(row, vocab_size)
        noise[-1] = -50.0
        return noise


class DrawsUniformNoise(Plain):
    """Adds uniform noise instead of Gumbel noise."""

    def noise(self, row: Row, vocab_size: int) -> Any:
        return np.exp(-np.exp(-super().noise(row, vocab_size))) * 4


class ReplacesFilteredDrawsByTheLikeliest(Plain):
    """Draws from all tokens, and replaces a filtered one by the likeliest."""

    def drawn(self, row: Row, logits: Any, scaled: Any) -> int:
        chosen = int((scaled + self.noise(row, len(scaled))).argmax())
        is_kept = self.kept(row.sequence.params, scaled)[chosen]
        return chosen if is_kept else int(scaled.argmax())


class AddsBiasAfterTheTemperature(Plain):
    def drawn(self, row: Row, logits: Any, scaled: Any) -> int:
        for token_id, bias in row.sequence.params.logit_bias.items():
            scaled[token_id] += bias * (1 - 1 / row.sequence.params.temperature)
        return super().drawn(row, logits, scaled)


class ChoosesTheLikeliestAfterDrafts(Plain):
    def drawn(self, row: Row, logits: Any, scaled: Any) -> int:
        return int(scaled.argmax()) if row.ahead else super().drawn(row, logits, scaled)


def on(kind: Callable[[], Any]) -> SamplerContract:
    """Return the contract on a sampler."""
    contract = SamplerContract()
    contract.make = kind  # type: ignore[method-assign]
    return contract


BROKEN = (
    *LONG,
    Broken(
        KeepsPenaltiesByPrompt,
        "The rest of the batch changes no choice, not even answers to the same prompt.",
        "answers_to_one_prompt_do_not_mix",
    ),
    *(
        Broken(kind, f"{what} have their effect, however many they are.", LONG_LISTS)
        for kind, what in (
            (ClipsBiases, "All biases"),
            (ReadsAThousandBadWords, "All bad words"),
            (BansTheFirstTokens, "All banned tokens"),
        )
    ),
    Broken(
        FiltersInPlace,
        "The sampler does not modify the logits, whatever a row's parameters are.",
        "the_logits_stay_as_they_are",
    ),
    Broken(
        TakesTheLastOfEqualsInABatch,
        "The rest of the batch does not decide between equal logits.",
        "neighbours_never_change_a_choice_of_equal_logits",
    ),
    Broken(
        FailsWithPenaltiesBesideABadRow,
        "A row without a finite value harms no other, whatever their parameters are.",
        "rows_without_a_finite_value_harm_no_parameter_of_others",
    ),
    Broken(
        ReturnsAList,
        "The sampler returns an array.",
        "there_is_one_token_for_each_row",
        raises=(AttributeError,),
    ),
    Broken(ReturnsFloats, "Token ids are integers.", "there_is_one_token_for_each_row"),
    Broken(ReturnsAColumn, "Token ids have the shape [rows].", "there_is_one_token_for_each_row"),
    Broken(
        ReversesRows,
        "The logits are in the order of the rows.",
        "neighbours_never_change_a_choice",
    ),
    Broken(OverwritesLogits, "Sampling does not modify the logits.", "the_logits_stay_as_they_are"),
    Broken(SetsBansInTheLogits, "The logits are never modified.", "the_logits_stay_as_they_are"),
    Broken(
        AssumesContiguousRows,
        "Logits may be any array, also with gaps between its rows.",
        "logits_may_be_a_part_of_something_larger",
    ),
    Broken(
        SumsOverRows,
        "A row without finite values affects no other.",
        "a_row_without_a_finite_value_harms_no_other",
    ),
    Broken(
        ClipsLogits,
        "A token of minus infinity is never chosen, whatever remains.",
        "the_tokens_that_a_constraint_allows_are_chosen",
    ),
    Broken(
        TreatsMinusInfinityAsZero,
        "A token of minus infinity is never chosen.",
        "logits_of_minus_infinity_are_never_chosen",
    ),
    Broken(
        KeepsReleasedSequences,
        "A sampler keeps per-sequence state in the sequence.",
        "ended_sequences_are_released",
    ),
    Broken(
        DrawsByRowIndex,
        "The position of a row in a batch never changes its choice.",
        "equal_rows_differ_by_their_seeds_alone",
    ),
    Broken(
        DrawsByTheSeedOfTheFirstRow,
        "Another row's seed never changes a choice.",
        "equal_rows_differ_by_their_seeds_alone",
    ),
    Broken(
        UsesParametersOfTheFirstRow,
        "Another row's parameters never change a choice.",
        "neighbours_never_change_a_choice",
    ),
    Broken(
        DependsOnTheBatchSize,
        "The size of a batch never changes a choice.",
        "neighbours_never_change_a_choice",
    ),
    Broken(
        DependsOnSequenceIds,
        "A choice depends only on tokens, parameters and seed.",
        "a_choice_depends_on_nothing_else_of_a_sequence",
    ),
    Broken(
        CountsItsCalls,
        "Earlier calls never change a choice.",
        "earlier_calls_never_change_a_choice",
    ),
    Broken(DrawsFromOneStream, "A seed determines the choice.", "a_seed_determines_the_choice"),
    Broken(
        CountsOneTokenForEachCall,
        "A choice depends on all tokens of the answer, however many a step added.",
        "earlier_calls_never_change_a_choice",
    ),
    Broken(
        CachesByTheAddressOfASequence,
        "A choice depends on no released sequence.",
        "earlier_calls_never_change_a_choice",
    ),
    Broken(
        NeedsItsKeptState,
        "A sampler works without its kept state.",
        "a_preempted_sequence_chooses_as_before",
    ),
    Broken(
        WritesTheSeedIntoTheSequence,
        "A sampler modifies only its own state in a sequence.",
        "a_sequence_stays_as_it_is",
    ),
    Broken(
        AppendsDraftsToTheSequence,
        "Drafts ahead of a row are not in the sequence.",
        "a_sequence_stays_as_it_is",
    ),
    Broken(
        IgnoresDraftsAhead,
        "Drafts count as if they were in the sequence.",
        "drafts_count_as_if_they_were_in_the_answer",
    ),
    Broken(
        CountsRejectedDrafts,
        "Rejected drafts leave no trace in counts.",
        "rejected_drafts_leave_no_trace",
        honest=Plain,
    ),
    Broken(
        StopsWaitingAtADraft,
        "Rejected drafts leave no trace in what settles once for an answer.",
        "rejected_drafts_leave_no_trace_of_any_parameter",
    ),
    Broken(
        AdaptsToRejectedDrafts,
        "Rejected drafts leave no trace in kept state.",
        "rejected_drafts_leave_no_trace",
        honest=Mirostat,
    ),
    Broken(IgnoresPositionsInDraws, "Each position has its own draw.", "each_position_draws_anew"),
    Broken(
        AddsSeedAndPosition,
        "Each pair of seed and position has its own draw.",
        "draws_of_other_seeds_and_positions_are_independent",
        honest=Plain,
    ),
    Broken(UsesTheLowBitsOfASeed, "Every bit of a seed counts.", "every_bit_of_a_seed_counts"),
    Broken(DropsTheSignOfASeed, "The sign of a seed counts.", "every_bit_of_a_seed_counts"),
    Broken(
        NeverDraws,
        "Draws follow the softmax of the logits by default.",
        "draws_follow_the_distribution",
    ),
    Broken(
        DividesTwice,
        "The temperature divides the logits.",
        "draws_follow_the_distribution",
        honest=Plain,
    ),
    Broken(
        DrawsUniformNoise,
        "Draws follow the softmax of the logits.",
        "draws_follow_the_distribution",
        honest=Plain,
    ),
    Broken(
        NeverDrawsTheLastToken,
        "Every token can be drawn.",
        "flat_logits_leave_all_to_chance",
        honest=Plain,
    ),
    Broken(
        ReplacesFilteredDrawsByTheLikeliest,
        "Tokens that filters keep are drawn by their logits.",
        "filtered_tokens_are_drawn_by_their_logits",
        honest=Plain,
    ),
    Broken(
        AddsBiasAfterTheTemperature,
        "A bias is added before the temperature divides.",
        "a_bias_changes_the_odds",
        honest=Plain,
    ),
    Broken(
        ChoosesTheLikeliestAfterDrafts,
        "Rows of drafts draw like any other row.",
        "drafts_do_not_change_how_often_a_token_comes",
        honest=Plain,
    ),
    *OF_PARAMETERS,
)
TABLE = Table(
    SamplerContract,
    on,
    ArraySampler,
    BROKEN,
)
