"""Engines that compute wrong values or state wrong limits."""

import dataclasses
import itertools
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from honest.engine import VOCAB_SIZE, AttentionEngine, Floats

from broken.broken import Broken
from broken.engine_subjects import (
    OnAttention,
    ReturnsPromptsOfOneLength,
    ReturnsThreeTokens,
    ReturnsTwoPrompts,
    on_itself,
)
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.prompt import Prompt, PromptPlan, Span
from vlmkit.interfaces.step import StepOutput, WorkItem


def claiming(**claims: Any) -> EngineLimits:
    """Return limits with changed fields."""
    return dataclasses.replace(AttentionEngine.limits, **claims)


# Stated limits


class NamesNoPrecision(AttentionEngine):
    limits = claiming(precision=None)


class ClaimsSequencesLongerThanItsCache(AttentionEngine):
    limits = claiming(max_sequence_tokens=300)


class ClaimsAsManyDraftsAsRows(AttentionEngine):
    limits = claiming(max_draft_tokens=10)


class ChangesItsLimits(AttentionEngine):
    @property
    def limits(self) -> EngineLimits:
        return claiming(max_chunk_tokens=24 - self.pool.num_sequences)


class ClaimsALargerVocabulary(AttentionEngine):
    limits = claiming(vocab_size=VOCAB_SIZE + 1)


class ReturnsSpansLongerThanAChunk(AttentionEngine):
    def read(self, prompt: Prompt) -> PromptPlan:
        return PromptPlan((Span(0, len(prompt)),))


# Steps


class NeedsAnItem(AttentionEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        return super().forward([items[0], *items[1:]])


class ReturnsProbabilities(AttentionEngine):
    def rows(self, item: WorkItem, hidden: Floats) -> Floats:
        made = np.exp(super().rows(item, hidden))
        return made / made.sum(axis=1, keepdims=True)


class ReturnsIntegers(AttentionEngine):
    def rows(self, item: WorkItem, hidden: Floats) -> Floats:
        return (1000 * super().rows(item, hidden)).astype(np.int64)


class StartsWithRandomWeights(AttentionEngine):
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.weights.embedding = self.weights.embedding + 0.001 * next(self.numbers)


class IgnoresPositions(AttentionEngine):
    def positions(self, item: WorkItem) -> Floats:
        return np.zeros(item.num_tokens, np.int64)


class ReadsFeatureRowsFromTheEnd(AttentionEngine):
    def image_rows(self, item: WorkItem, index: int, first: int, num_rows: int) -> Floats:
        return item.sequence.features[index].embeddings[::-1][first : first + num_rows]


class RestartsImagesInEachChunk(AttentionEngine):
    def image_rows(self, item: WorkItem, index: int, first: int, num_rows: int) -> Floats:
        return super().image_rows(item, index, 0, num_rows)


class CountsMarksAsRows(AttentionEngine):
    """Counts the mark before an image as a row if a chunk starts after the mark."""

    def image_rows(self, item: WorkItem, index: int, first: int, num_rows: int) -> Floats:
        return super().image_rows(item, index, first - bool(first), num_rows)


class CountsPositionsInEachChunk(AttentionEngine):
    def positions(self, item: WorkItem) -> Floats:
        is_prompt = item.start < item.sequence.num_prompt_tokens
        return super().positions(item) - (item.start if is_prompt else 0)


class AttendsOnlyToItsChunk(AttentionEngine):
    def unseen(self, item: WorkItem) -> Floats:
        return super().unseen(item) | (np.arange(item.stop) < item.start)


class DropsTheLastTokenOfAChunk(AttentionEngine):
    def write(self, cell_ids: Floats, made: Floats) -> None:
        if len(cell_ids) > 1:
            made[:, -1] = 0.0
        super().write(cell_ids, made)


class DropsTheTokensOfItsAnswer(AttentionEngine):
    def unseen(self, item: WorkItem) -> Floats:
        seen, num_prompt = np.arange(item.stop), item.sequence.num_prompt_tokens
        return super().unseen(item) | ((seen >= num_prompt) & (seen < item.start))


class NeedsFeaturesForever(AttentionEngine):
    def inputs(self, item: WorkItem) -> Floats:
        for index in range(len(item.sequence.prompt.media)):
            assert item.sequence.features[index]
        return super().inputs(item)


class RoundsByTheRestOfTheStep(AttentionEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        output = super().forward(items)
        if output.logits is None:
            return output
        return dataclasses.replace(output, logits=output.logits + 1e-12 * len(items))


class DependsOnThePositionInAStep(AttentionEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        output = super().forward(items)
        if output.logits is None:
            return output
        pairs = np.arange(len(output.logits))[:, None] // 2
        return dataclasses.replace(output, logits=output.logits + 0.01 * pairs)


class MixesUpPositionsInMixedSteps(AttentionEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        self.offset = 0
        if len(items) > 1 and items[0].num_tokens > 1 and items[-1].num_tokens == 1:
            self.offset = 1
        return super().forward(items)

    def positions(self, item: WorkItem) -> Floats:
        return super().positions(item) + self.offset


class AccumulatesInItsCells(AttentionEngine):
    def write(self, cell_ids: Floats, made: Floats) -> None:
        super().write(cell_ids, made + np.nan_to_num(self.cells[:, cell_ids]))


class CountsItsOwnTokens(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[Any, int] = {}

    def positions(self, item: WorkItem) -> Floats:
        start = self.counts.get(item.sequence, item.start)
        self.counts[item.sequence] = start + item.num_tokens
        return np.arange(start, start + item.num_tokens)


NUMBERS = (
    Broken(
        ReturnsTwoPrompts,
        "prompts() returns at least three prompts.",
        "there_are_prompts_and_answers_to_check_with",
        honest=OnAttention,
        on=on_itself,
    ),
    Broken(
        ReturnsPromptsOfOneLength,
        "prompts() returns prompts of different lengths.",
        "there_are_prompts_and_answers_to_check_with",
        honest=OnAttention,
        on=on_itself,
    ),
    Broken(
        ReturnsThreeTokens,
        "answer_ids() returns at least four tokens.",
        "there_are_prompts_and_answers_to_check_with",
        honest=OnAttention,
        on=on_itself,
    ),
    Broken(
        NamesNoPrecision,
        "precision is a string, empty if the engine does not state it.",
        "the_limits_are_positive",
    ),
    Broken(
        ClaimsSequencesLongerThanItsCache,
        "A sequence of the stated maximum fits into the cache.",
        "the_limits_are_positive",
    ),
    Broken(ClaimsAsManyDraftsAsRows, "Each draft needs a row.", "the_limits_are_positive"),
    Broken(ChangesItsLimits, "The limits are constant.", "the_limits_never_change"),
    Broken(
        ClaimsALargerVocabulary,
        "vocab_size is the number of columns of the logits.",
        "rows_come_in_the_order_of_their_items",
    ),
    Broken(
        ReturnsSpansLongerThanAChunk,
        "An atomic span fits into one work item.",
        "spans_are_ordered_disjoint_and_within_the_prompt",
    ),
    Broken(
        NeedsAnItem,
        "A step without items has no rows.",
        "a_step_without_items_has_no_rows",
        raises=(IndexError,),
    ),
    Broken(ReturnsProbabilities, "Logits are unnormalised.", "rows_are_no_probabilities"),
    Broken(
        ReturnsIntegers,
        "Rows are floating-point numbers.",
        "rows_come_in_the_order_of_their_items",
    ),
    Broken(StartsWithRandomWeights, "Two engines of one model agree.", "two_engines_agree"),
    Broken(
        IgnoresPositions,
        "The engine computes positions and uses them.",
        "the_reference_is_met",
    ),
    Broken(
        ReadsFeatureRowsFromTheEnd,
        "Feature rows are in the order of the medium's placeholders.",
        "the_reference_is_met",
    ),
    Broken(
        RestartsImagesInEachChunk,
        "A chunk that starts inside an image continues with the next feature row.",
        "a_chunked_prefill_agrees_with_a_whole_one",
    ),
    Broken(
        CountsMarksAsRows,
        "The range of an image may contain marks, which have no feature rows.",
        "a_chunked_prefill_agrees_with_a_whole_one",
    ),
    Broken(
        CountsPositionsInEachChunk,
        "The tokens of a work item begin at its start.",
        "a_chunked_prefill_agrees_with_a_whole_one",
    ),
    Broken(
        AttendsOnlyToItsChunk,
        "The cache holds what earlier chunks computed.",
        "a_chunked_prefill_agrees_with_a_whole_one",
    ),
    Broken(
        DropsTheLastTokenOfAChunk,
        "Every token of a chunk is in the cache.",
        "a_chunked_prefill_agrees_with_a_whole_one",
    ),
    Broken(
        DropsTheTokensOfItsAnswer,
        "The cache also holds the tokens of the answer.",
        "decoding_agrees_with_a_prefill_of_the_same_tokens",
    ),
    Broken(
        NeedsFeaturesForever,
        "Features are available only while items touch their slot.",
        "decoding_agrees_with_a_prefill_of_the_same_tokens",
        raises=(KeyError,),
    ),
    Broken(
        RoundsByTheRestOfTheStep,
        "In a batch-invariant engine, other items of a step change no bit of a row.",
        "a_sequence_alone_agrees_with_the_same_in_a_batch",
    ),
    Broken(
        DependsOnThePositionInAStep,
        "A row does not depend on the position of its item in the step.",
        "a_sequence_alone_agrees_with_the_same_in_a_batch",
    ),
    Broken(
        MixesUpPositionsInMixedSteps,
        "An engine that claims mixing computes mixed steps as separate ones.",
        "a_step_may_mix_prefill_and_decode",
    ),
    Broken(
        AccumulatesInItsCells,
        "Repeating a step gives the same result.",
        "a_step_may_be_repeated",
    ),
    Broken(
        CountsItsOwnTokens,
        "The item states the positions of its tokens.",
        "a_step_may_be_repeated",
    ),
)
