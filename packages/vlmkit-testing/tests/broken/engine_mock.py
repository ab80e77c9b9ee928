"""Broken engines derived from the mock engine, which detects many errors of its caller."""

import dataclasses
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from msgspec import structs

from broken.broken import Broken
from broken.engine_subjects import OnMock
from vlmkit.errors import EngineError
from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.prompt import Prompt, PromptPlan, Span
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit_mock.engine import MockEngine


class LeaksToOtherScopes(MockEngine):
    def admit(self, sequence: Any) -> Admission | None:
        sequence.scope = b"everyone"
        return super().admit(sequence)


class KeepsReleasedRoom(MockEngine):
    def release(self, sequence: SequenceView) -> None:
        del self._states[sequence]


class ReservesMoreThanItHas(MockEngine):
    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        return super().reserve(sequence, num_tokens) or True


class NeverShares(MockEngine):
    def admit(self, sequence: SequenceView) -> Admission | None:
        return None if super().admit(sequence) is None else Admission(0)


class CountsTheNewestTokenAsCached(MockEngine):
    def admit(self, sequence: SequenceView) -> Admission | None:
        return None if super().admit(sequence) is None else Admission(len(sequence))


class SharesUncommittedBlocks(MockEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        output = super().forward(items)
        for item in items:
            self._pool.commit(item.sequence, min(item.stop, len(item.sequence)))
        return output


class IgnoresCommits(MockEngine):
    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        pass


class TruncatesTooMuch(MockEngine):
    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        del self._states[sequence].fingerprints[num_tokens - 1 :]


class ReadsSchedulerState(MockEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        assert all(item.start >= item.sequence.num_computed_tokens for item in items)
        return super().forward(items)


class IgnoresDrafts(MockEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        cut = [
            structs.replace(i, num_tokens=i.num_tokens - len(i.drafts), num_rows=1, drafts=())
            for i in items
        ]
        return super().forward(cut)


class RepeatsTheLastRow(MockEngine):
    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        rows = [super(RepeatsTheLastRow, self)._logits([item])[-1] for item in wanted]
        return np.repeat(rows, [item.num_rows for item in wanted], axis=0)


class CachesPastTheFirstRow(MockEngine):
    def admit(self, sequence: Any) -> Admission | None:
        wanted, sequence.wants_from = sequence.wants_from, None
        admission = super().admit(sequence)
        sequence.wants_from = wanted
        return admission


class RepeatsTheLastState(MockEngine):
    def _hidden(self, wanted: Seq[WorkItem]) -> Any:
        rows = [super(RepeatsTheLastState, self)._hidden([item])[-1] for item in wanted]
        return np.repeat(rows, [item.num_rows for item in wanted], axis=0)


class MixesUpHiddenStates(MockEngine):
    def _hidden(self, wanted: Seq[WorkItem]) -> Any:
        return super()._hidden(wanted)[::-1]


class ClaimsDraftsWithoutRows(MockEngine):
    @property
    def limits(self) -> EngineLimits:
        return dataclasses.replace(super().limits, max_item_rows=1)


class ReversesRows(MockEngine):
    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        return super()._logits(wanted)[::-1]


class ReturnsRowsForEveryItem(MockEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        return super().forward([structs.replace(i, num_rows=1) for i in items])


class DependsOnItsNeighbours(MockEngine):
    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        return super()._logits(wanted) + 0.01 * len(wanted)


class DependsOnItsChunks(MockEngine):
    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        return super()._logits(wanted) + 0.01 * sum(item.num_tokens for item in wanted)


class ReturnsDifferentRowsEachTime(MockEngine):
    num_steps = 0

    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        self.num_steps += 1
        return super()._logits(wanted) + 0.01 * self.num_steps


class IgnoresImages(MockEngine):
    def _logits(self, wanted: Seq[WorkItem]) -> Any:
        return np.zeros((sum(item.num_rows for item in wanted), self.limits.vocab_size))


class ReversesSpans(MockEngine):
    def read(self, prompt: Prompt) -> PromptPlan:
        spans = reversed([Span(slot.start, slot.stop) for slot in prompt.media])
        return dataclasses.replace(super().read(prompt), spans=tuple(spans))


MOCKS = (
    Broken(
        LeaksToOtherScopes,
        "Sequences of different scopes share nothing.",
        "another_scope_shares_nothing",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        KeepsReleasedRoom,
        "A release frees the room of a sequence.",
        "all_room_comes_back",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        ReservesMoreThanItHas,
        "A reservation is refused if the cache is full.",
        "room_beyond_the_capacity_is_refused",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        NeverShares,
        "A cached prefix is shared in multiples of prefix_block_tokens.",
        "a_cached_prefix_is_used_and_changes_nothing",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        CountsTheNewestTokenAsCached,
        "num_cached never exceeds the sequence's first_row.",
        "a_cached_prefix_is_used_and_changes_nothing",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        ReversesRows,
        "Rows come in the order of the items.",
        "rows_come_in_the_order_of_their_items",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        ReturnsRowsForEveryItem,
        "An item gets exactly as many rows as it wants.",
        "a_chunk_that_wants_no_logits_gets_none",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        DependsOnItsNeighbours,
        "In a batch-invariant engine, other items of a step change no row.",
        "a_sequence_alone_agrees_with_the_same_in_a_batch",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        DependsOnItsChunks,
        "A prompt may be cut anywhere except inside an atomic span.",
        "a_chunked_prefill_agrees_with_a_whole_one",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        DependsOnItsChunks,
        "The cache holds the values of a fresh computation.",
        "decoding_agrees_with_a_prefill_of_the_same_tokens",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        ReturnsDifferentRowsEachTime,
        "Repeating a step gives the same result.",
        "a_step_may_be_repeated",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        ReturnsDifferentRowsEachTime,
        "A released sequence may be admitted again later.",
        "a_preempted_sequence_goes_on_where_it_was",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        IgnoresImages,
        "Image tokens get their embeddings from the features.",
        "another_picture_changes_the_logits",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        ReversesSpans,
        "The spans of a plan are ordered and disjoint.",
        "spans_are_ordered_disjoint_and_within_the_prompt",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        SharesUncommittedBlocks,
        "Computed but uncommitted tokens belong to one sequence.",
        "uncommitted_tokens_are_never_shared",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        IgnoresCommits,
        "Committed tokens may be shared.",
        "a_cached_prefix_is_used_and_changes_nothing",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        TruncatesTooMuch,
        "truncate() keeps the first num_tokens.",
        "drafts_that_are_refused_leave_nothing_behind",
        raises=(EngineError,),
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        ReadsSchedulerState,
        "An engine reads only the attributes of SequenceView.",
        "decoding_agrees_with_a_prefill_of_the_same_tokens",
        raises=(AttributeError,),
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        IgnoresDrafts,
        "Drafts are computed with the tokens that they follow.",
        "drafts_get_the_rows_of_an_answer_that_holds_them",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        RepeatsTheLastRow,
        "Each draft has the row of its token.",
        "drafts_get_the_rows_of_an_answer_that_holds_them",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        RepeatsTheLastRow,
        "Each of the last num_rows tokens gets a row.",
        "each_row_of_an_item_is_that_of_its_token",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        ReversesRows,
        "Rows come in the order of the items, whatever their number.",
        "drafts_run_beside_other_items_of_a_step",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        MixesUpHiddenStates,
        "Hidden states come in the order of the items.",
        "hidden_states_are_a_function_of_the_tokens",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        RepeatsTheLastState,
        "Every token may have a row of hidden states.",
        "each_token_of_a_chunk_may_have_its_hidden_state",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        CachesPastTheFirstRow,
        "The cache may replace only positions before the first wanted row.",
        "a_cached_prefix_ends_before_the_first_wanted_row",
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        ClaimsDraftsWithoutRows,
        "Each draft needs a row.",
        "the_limits_are_positive",
        honest=MockEngine,
        on=OnMock,
    ),
)
