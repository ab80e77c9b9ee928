"""Engines that compute wrong numbers, or say wrong things of themselves."""

import dataclasses
import itertools
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from honest.engine import VOCAB_SIZE, AttentionEngine, Floats

from broken.broken import Broken
from broken.engine_subjects import (
    GivesPromptsOfOneLength,
    GivesThreeTokens,
    GivesTwoPrompts,
    OnAttention,
    on_itself,
)
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.prompt import Prompt, PromptPlan, Span
from vlmkit.interfaces.step import StepOutput, WorkItem


def claiming(**claims: Any) -> EngineLimits:
    """Return limits with other claims."""
    return dataclasses.replace(AttentionEngine.limits, **claims)


# What it says of itself


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


class SpansMoreThanAChunk(AttentionEngine):
    def read(self, prompt: Prompt) -> PromptPlan:
        return PromptPlan((Span(0, len(prompt)),))


# Steps


class NeedsAnItem(AttentionEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        return super().forward([items[0], *items[1:]])


class SaysProbabilities(AttentionEngine):
    def rows(self, item: WorkItem, hidden: Floats) -> Floats:
        made = np.exp(super().rows(item, hidden))
        return made / made.sum(axis=1, keepdims=True)


class SaysWholeNumbers(AttentionEngine):
    def rows(self, item: WorkItem, hidden: Floats) -> Floats:
        return (1000 * super().rows(item, hidden)).astype(np.int64)


class StartsAtRandom(AttentionEngine):
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.weights.embedding = self.weights.embedding + 0.001 * next(self.numbers)


class KnowsNoPositions(AttentionEngine):
    def positions(self, item: WorkItem) -> Floats:
        return np.zeros(item.num_tokens, np.int64)


class ReadsPicturesFromTheEnd(AttentionEngine):
    def image_rows(self, item: WorkItem, index: int, first: int, num_rows: int) -> Floats:
        return item.sequence.features[index].embeddings[::-1][first : first + num_rows]


class BeginsPicturesAnew(AttentionEngine):
    def image_rows(self, item: WorkItem, index: int, first: int, num_rows: int) -> Floats:
        return super().image_rows(item, index, 0, num_rows)


class TakesMarksForRows(AttentionEngine):
    """Counts the mark before an image as one of its rows, where a chunk begins behind it."""

    def image_rows(self, item: WorkItem, index: int, first: int, num_rows: int) -> Floats:
        return super().image_rows(item, index, first - bool(first), num_rows)


class CountsPositionsInEachChunk(AttentionEngine):
    def positions(self, item: WorkItem) -> Floats:
        is_prompt = item.start < item.sequence.num_prompt_tokens
        return super().positions(item) - (item.start if is_prompt else 0)


class SeesItsChunkAlone(AttentionEngine):
    def unseen(self, item: WorkItem) -> Floats:
        return super().unseen(item) | (np.arange(item.stop) < item.start)


class LosesTheLastTokenOfAChunk(AttentionEngine):
    def write(self, places: Floats, made: Floats) -> None:
        if len(places) > 1:
            made[:, -1] = 0.0
        super().write(places, made)


class ForgetsItsAnswer(AttentionEngine):
    def unseen(self, item: WorkItem) -> Floats:
        seen, num_prompt = np.arange(item.stop), item.sequence.num_prompt_tokens
        return super().unseen(item) | ((seen >= num_prompt) & (seen < item.start))


class WantsFeaturesForEver(AttentionEngine):
    def inputs(self, item: WorkItem) -> Floats:
        for index in range(len(item.sequence.prompt.media)):
            assert item.sequence.features[index]
        return super().inputs(item)


class FeelsItsNeighboursABit(AttentionEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        output = super().forward(items)
        if output.logits is None:
            return output
        return dataclasses.replace(output, logits=output.logits + 1e-12 * len(items))


class FeelsItsPlaceInAStep(AttentionEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        output = super().forward(items)
        if output.logits is None:
            return output
        places = np.arange(len(output.logits))[:, None] // 2
        return dataclasses.replace(output, logits=output.logits + 0.01 * places)


class MixesUpPositions(AttentionEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        self.offset = 0
        if len(items) > 1 and items[0].num_tokens > 1 and items[-1].num_tokens == 1:
            self.offset = 1
        return super().forward(items)

    def positions(self, item: WorkItem) -> Floats:
        return super().positions(item) + self.offset


class AddsToItsCells(AttentionEngine):
    def write(self, places: Floats, made: Floats) -> None:
        super().write(places, made + np.nan_to_num(self.cells[:, places]))


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
        GivesTwoPrompts,
        "prompts() returns at least three prompts.",
        "there_are_prompts_and_answers_to_check_with",
        honest=OnAttention,
        on=on_itself,
    ),
    Broken(
        GivesPromptsOfOneLength,
        "prompts() returns prompts of different lengths.",
        "there_are_prompts_and_answers_to_check_with",
        honest=OnAttention,
        on=on_itself,
    ),
    Broken(
        GivesThreeTokens,
        "answer_ids() returns at least four tokens.",
        "there_are_prompts_and_answers_to_check_with",
        honest=OnAttention,
        on=on_itself,
    ),
    Broken(
        NamesNoPrecision,
        "precision is a text, and empty where the engine does not say.",
        "the_limits_are_positive",
    ),
    Broken(
        ClaimsSequencesLongerThanItsCache,
        "A sequence fits into the cache.",
        "the_limits_are_positive",
    ),
    Broken(ClaimsAsManyDraftsAsRows, "Each draft wants a row.", "the_limits_are_positive"),
    Broken(ChangesItsLimits, "The limits are constant.", "the_limits_never_change"),
    Broken(
        ClaimsALargerVocabulary,
        "vocab_size is the number of columns of the logits.",
        "rows_come_in_the_order_of_their_items",
    ),
    Broken(
        SpansMoreThanAChunk,
        "What may not be cut fits into one work item.",
        "spans_are_ordered_disjoint_and_within_the_prompt",
    ),
    Broken(
        NeedsAnItem,
        "A step without items has no rows.",
        "a_step_without_items_has_no_rows",
        raises=(IndexError,),
    ),
    Broken(SaysProbabilities, "Logits are unnormalised.", "rows_are_no_probabilities"),
    Broken(
        SaysWholeNumbers,
        "Rows are floating-point numbers.",
        "rows_come_in_the_order_of_their_items",
    ),
    Broken(StartsAtRandom, "Two engines of one model agree.", "two_engines_agree"),
    Broken(
        KnowsNoPositions,
        "Positions are the engine's business, and it minds them.",
        "the_reference_is_met",
    ),
    Broken(
        ReadsPicturesFromTheEnd,
        "The rows of features stand in the order of a medium's placeholders.",
        "the_reference_is_met",
    ),
    Broken(
        BeginsPicturesAnew,
        "A chunk that begins inside an image goes on with the row where the last one ended.",
        "a_chunked_prefill_agrees_with_a_whole_one",
    ),
    Broken(
        TakesMarksForRows,
        "An image's range may hold marks, which have no rows.",
        "a_chunked_prefill_agrees_with_a_whole_one",
    ),
    Broken(
        CountsPositionsInEachChunk,
        "A work item's tokens stand from its start on.",
        "a_chunked_prefill_agrees_with_a_whole_one",
    ),
    Broken(
        SeesItsChunkAlone,
        "The cache holds what earlier chunks computed.",
        "a_chunked_prefill_agrees_with_a_whole_one",
    ),
    Broken(
        LosesTheLastTokenOfAChunk,
        "Every token of a chunk is in the cache.",
        "a_chunked_prefill_agrees_with_a_whole_one",
    ),
    Broken(
        ForgetsItsAnswer,
        "The tokens of an answer are in the cache, too.",
        "decoding_agrees_with_a_prefill_of_the_same_tokens",
    ),
    Broken(
        WantsFeaturesForEver,
        "Features are there while items touch their slot.",
        "decoding_agrees_with_a_prefill_of_the_same_tokens",
        raises=(KeyError,),
    ),
    Broken(
        FeelsItsNeighboursABit,
        "Of an engine that is batch-invariant, what else is in a step changes not one bit.",
        "a_sequence_alone_agrees_with_the_same_in_a_batch",
    ),
    Broken(
        FeelsItsPlaceInAStep,
        "A row does not depend on the place of its item.",
        "a_sequence_alone_agrees_with_the_same_in_a_batch",
    ),
    Broken(
        MixesUpPositions,
        "Who claims to mix computes chunks beside answers as one after the other.",
        "a_step_may_mix_prefill_and_decode",
    ),
    Broken(
        AddsToItsCells,
        "The same items may be given again, with the same result.",
        "a_step_may_be_repeated",
    ),
    Broken(
        CountsItsOwnTokens,
        "Where tokens stand is what their item says.",
        "a_step_may_be_repeated",
    ),
)
