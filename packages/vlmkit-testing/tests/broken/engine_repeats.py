"""Engines that are wrong when something is asked again: a step, a plan, an admission, a room."""

import itertools
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from honest.engine import AttentionEngine, Floats
from msgspec.structs import replace

from broken.broken import Broken
from broken.engine_events import Changed, EmitsChanged
from broken.engine_numbers import claiming
from broken.engine_subjects import OnMock
from vlmkit.errors import EngineError
from vlmkit.interfaces.cache_events import CacheBlock
from vlmkit.interfaces.engine import Admission
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.block_pool import BlockPool, _Table
from vlmkit_mock.engine import MockEngine


class RoundsMixedSteps(AttentionEngine):
    """Computes chunks beside answers with another kernel, which rounds differently."""

    def rows(self, item: WorkItem, hidden: Floats) -> Floats:
        return super().rows(item, hidden) * (1 + 1e-15 * self.num_items)

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        self.num_items = len(items) if any(not item.num_rows for item in items) else 0
        return super().forward(items)


class CountsDraftsOfAFailedStep(AttentionEngine):
    """Goes on behind drafts until they are truncated, which drafts of a failed step never are."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead: dict[SequenceView, int] = {}

    def positions(self, item: WorkItem) -> Floats:
        known, end = self.ahead.get(item.sequence, 0), item.start + item.num_tokens
        if item.drafts:
            self.ahead[item.sequence] = end
        return super().positions(item) + (known - end if known > end and not item.drafts else 0)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        super().truncate(sequence, num_tokens)
        self.ahead[sequence] = num_tokens


class CountsInItsPlan(AttentionEngine):
    """Keeps the next position of a sequence in the plan of its prompt."""

    def read(self, prompt: Prompt) -> PromptPlan:
        return PromptPlan(super().read(prompt).spans, {})

    def positions(self, item: WorkItem) -> Floats:
        state = item.sequence.plan.state
        start = state.get("next", item.start)
        state["next"] = start + item.num_tokens
        return np.arange(start, start + item.num_tokens)


class UsesBlocksOfARefusedPrefix(AttentionEngine):
    """Pins the blocks that it finds of a sequence, also if it then refuses the sequence."""

    class Pool(BlockPool):
        def admit(self, sequence: SequenceView, usable: Any = None) -> Admission | None:
            admission = super().admit(sequence, usable)
            if admission is None:
                for block in self._find_prefix(sequence, _Table([]), usable):
                    self._use(block)
            return admission


class EvictsForARefusedSequence(AttentionEngine):
    """Evicts all that is cached before it finds out that this does not suffice."""

    def admit(self, sequence: SequenceView) -> Admission | None:
        admission = super().admit(sequence)
        if admission is None:
            for block in [b for b in range(self.pool.num_blocks) if self.pool.is_cached(b)]:
                self.pool.forget(block)
        return admission


class TakesABlockForEachReservation(AttentionEngine):
    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        blocks, size = self.pool.blocks(sequence), self.pool.block_tokens
        is_known = num_tokens <= len(blocks) * size
        is_granted = super().reserve(sequence, num_tokens)
        if is_granted and is_known and num_tokens % size == 1 and self.pool.num_free_blocks:
            super().reserve(sequence, len(blocks) * size + 1)
        return is_granted


class HasBuffersForOneChunk(AttentionEngine):
    """Has positions for a chunk and the tokens of answers, over all items of a step."""

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        starts = itertools.accumulate((item.num_tokens for item in items), initial=0)
        self.places = dict(zip((item.sequence for item in items), starts, strict=False))
        return super().forward(items)

    def positions(self, item: WorkItem) -> Floats:
        most = self.limits.max_chunk_tokens + self.limits.max_sequences
        place = self.places[item.sequence] + np.arange(item.num_tokens)
        return np.where(place < most, super().positions(item), item.start)


class HasBuffersForOneDraftedItem(AttentionEngine):
    """Returns the last rows that its buffer holds."""

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        output = super().forward(items)
        most = self.limits.max_item_rows + self.limits.max_sequences
        if output.logits is None or len(np.asarray(output.logits)) <= most:
            return output
        rows = np.asarray(output.logits)
        return StepOutput(
            np.concatenate([rows[:most], rows[most - 1 : most].repeat(len(rows) - most, axis=0)]),
            output.hidden,
        )


class CentresFeatures(AttentionEngine):
    """Centres the rows of an image in the memory of its features."""

    def image_rows(self, item: WorkItem, index: int, first: int, num_rows: int) -> Floats:
        rows = np.asarray(item.sequence.features[index].embeddings)
        rows -= rows.mean(axis=0)
        return super().image_rows(item, index, first, num_rows)


class ReversesPairsOfStates(AttentionEngine):
    """Returns two hidden states of a later chunk in the wrong order."""

    def rows(self, item: WorkItem, hidden: Floats) -> Floats:
        is_pair = item.output == "hidden" and item.start > 0 and len(hidden) == 2
        return super().rows(item, hidden[::-1] if is_pair else hidden)


class CommitsAnUnfinishedBlock(AttentionEngine):
    """Commits a block whose last token is not computed."""

    class Pool(BlockPool):
        def commit(self, sequence: SequenceView, num_tokens: int) -> None:
            is_nearly_full = num_tokens % self.block_tokens == self.block_tokens - 1
            super().commit(sequence, min(num_tokens + is_nearly_full, len(sequence)))


class SharesNothingWithoutAScope(AttentionEngine):
    """Takes an empty scope for one that shares nothing."""

    class Pool(BlockPool):
        def _find_prefix(self, sequence: SequenceView, table: _Table, usable: Any) -> list[int]:
            return super()._find_prefix(sequence, table, usable) if sequence.scope else []


class ShortensScopes(AttentionEngine):
    """Keys blocks by the first eight bytes of a scope."""

    class Pool(BlockPool):
        def _key(self, sequence: SequenceView, table: _Table, index: int) -> bytes:
            shown: Any = _WithScope(sequence, sequence.scope[:8])
            return super()._key(shown, table, index)


class _WithScope:
    def __init__(self, sequence: SequenceView, scope: bytes) -> None:
        self._sequence, self.scope = sequence, scope

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sequence, name)


class ShortensDigests(AttentionEngine):
    """Compares the first half of the digests of media."""

    class Pool(BlockPool):
        def _key(self, sequence: SequenceView, table: _Table, index: int) -> bytes:
            shown: Any = _WithDigests(sequence)
            return super()._key(shown, table, index)


class _WithDigests(_WithScope):
    def __init__(self, sequence: SequenceView) -> None:
        super().__init__(sequence, sequence.scope)
        media = tuple(
            type(slot)(slot.start, slot.stop, slot.digest[:16], {}, slot.num_features)
            for slot in sequence.prompt.media
        )
        self.prompt = Prompt(sequence.prompt.token_ids, media)


class KeepsItemsWithDrafts(AttentionEngine):
    """Keeps the last items with drafts, to compare their rows with those of the drafts."""

    drafted: tuple[WorkItem, ...] = ()

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        self.drafted = tuple(item for item in items if item.drafts) or self.drafted
        return super().forward(items)


class ReportsBlocksOfTwiceTheSize(EmitsChanged):
    limits = claiming(event_block_tokens=8)

    class Events(Changed):
        def stored(self, block: CacheBlock) -> None:
            self.listener.stored(replace(block, tokens=block.tokens))


class SharesWithheldTokens(AttentionEngine):
    """Withholds tokens from others in its plans, and shares them."""

    class Pool(BlockPool):
        def commit(self, sequence: SequenceView, num_tokens: int) -> None:
            shown: Any = _WithPlan(sequence)
            self._tables[shown] = self._tables[sequence]
            super().commit(shown, num_tokens)
            del self._tables[shown]

        def _find_prefix(self, sequence: Any, table: _Table, usable: Any) -> list[int]:
            return super()._find_prefix(_WithPlan(sequence), table, usable)  # type: ignore[arg-type]

    def read(self, prompt: Prompt) -> PromptPlan:
        return PromptPlan(super().read(prompt).spans, "read", max_shared_tokens=len(prompt) // 2)


class _WithPlan(_WithScope):
    def __init__(self, sequence: SequenceView) -> None:
        super().__init__(sequence, sequence.scope)
        self.plan = PromptPlan(sequence.plan.spans)

    def __len__(self) -> int:
        return len(self._sequence)


class TakesOnlyWideTokens(MockEngine):
    """Reads the tokens of a step ahead as 64-bit integers."""

    def forward_next(self, items: Seq[WorkItem], token_ids: Any) -> StepOutput:
        wide = np.frombuffer(token_ids.tobytes().ljust(8 * len(items), b"\0"), np.int64)
        return super().forward_next(items, wide[: len(items)] % self.limits.vocab_size)


class KeepsADiscardedToken(MockEngine):
    """Leaves the token of a step ahead in the cache when no step repeats the last one."""

    num_ahead = 0

    def forward_next(self, items: Seq[WorkItem], token_ids: Any) -> StepOutput:
        self.num_ahead += 1
        return super().forward_next(items, token_ids)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        if self.num_ahead > 1:
            raise EngineError("a step ahead follows a step that was read")
        super().truncate(sequence, num_tokens)


REPEATED = "a_step_of_any_kind_may_be_repeated"
REFUSED = "a_refused_admission_takes_no_room_and_evicts_nothing"

REPEATS = (
    Broken(
        RoundsMixedSteps, "Batch invariance holds for every row, also beside a chunk.", REPEATED
    ),
    Broken(
        CountsDraftsOfAFailedStep,
        "The same items may be passed again, without their drafts.",
        "a_step_without_its_drafts_may_follow_it",
    ),
    Broken(
        CountsInItsPlan,
        "The state of a plan is never changed.",
        "answers_to_one_prompt_share_its_plan",
        raises=(IndexError,),
    ),
    Broken(UsesBlocksOfARefusedPrefix, "A refused sequence takes no room.", REFUSED),
    Broken(EvictsForARefusedSequence, "A refused sequence evicts nothing.", REFUSED),
    Broken(
        TakesABlockForEachReservation,
        "If the room is allocated already, the call has no effect.",
        "reserving_reserved_tokens_changes_nothing",
    ),
    Broken(
        HasBuffersForOneChunk,
        "max_chunk_tokens is the maximum of one sequence, not of a step.",
        "every_item_of_a_step_may_be_a_longest_chunk",
    ),
    Broken(
        HasBuffersForOneDraftedItem,
        "Each item of a step may have max_draft_tokens.",
        "every_item_of_a_step_may_have_all_its_drafts",
    ),
    Broken(
        CentresFeatures,
        "The features of a medium are not modified.",
        "features_stay_as_they_are",
    ),
    Broken(
        ReversesPairsOfStates,
        "The rows of an item are ordered by token, however many it wants.",
        "each_token_of_a_chunk_may_have_its_hidden_state",
    ),
    Broken(
        CommitsAnUnfinishedBlock,
        "Computed tokens that are not committed are never shared.",
        "nothing_is_found_before_it_is_computed",
    ),
    Broken(
        SharesNothingWithoutAScope,
        "Sequences of one scope share prefixes, also of the empty one.",
        "a_cached_prefix_is_used_and_changes_nothing",
    ),
    Broken(
        ShortensScopes,
        "Sequences of different scopes share nothing, however alike these are.",
        "another_scope_shares_nothing",
    ),
    Broken(
        ShortensDigests,
        "Media of different digests are different, however alike these are.",
        "every_byte_of_a_digest_counts",
    ),
    Broken(
        KeepsItemsWithDrafts,
        "A released sequence is not referenced, whatever its items were.",
        "a_released_sequence_is_forgotten",
    ),
    Broken(
        ReportsBlocksOfTwiceTheSize,
        "event_block_tokens is the size of the blocks in events.",
        "reported_blocks_are_those_of_the_sequence",
    ),
    Broken(
        SharesWithheldTokens,
        "At most max_shared_tokens are shared.",
        "a_cached_prefix_is_used_and_changes_nothing",
    ),
    Broken(
        TakesOnlyWideTokens,
        "token_ids are integers, of any size.",
        "many_steps_ahead_may_follow_each_other",
        raises=(EngineError,),
        honest=MockEngine,
        on=OnMock,
    ),
    Broken(
        KeepsADiscardedToken,
        "The loop may discard a step, and pass its items to forward.",
        "the_right_token_may_follow_a_discarded_one",
        raises=(EngineError,),
        honest=MockEngine,
        on=OnMock,
    ),
)
