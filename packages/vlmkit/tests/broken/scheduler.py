"""Schedulers that break one promise each, made of the built-in one."""

import dataclasses
from typing import Any

from msgspec import structs

from broken.broken import Broken, Table
from vlmkit.running.scheduler import ContinuousScheduler
from vlmkit.seams.engine import Cache, EngineLimits
from vlmkit.seams.sequence import Sequence
from vlmkit.seams.step import Step, WorkItem
from vlmkit.testing import SchedulerContract


class KeepsThePlace(ContinuousScheduler):
    def remove(self, sequence: Sequence, cache: Cache) -> None:
        self._ranks.pop(sequence, None)


class ServesOneAtATime(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        return dataclasses.replace(step, items=step.items[:1])


class ForgetsToEncode(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        return dataclasses.replace(super().plan(cache), encodes=())


class WaitsForImages(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        if any(sequence.encoding for sequence in self._running):
            return Step((), ())
        return super().plan(cache)


class NeverHolds(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        for sequence in self._running:
            sequence.is_held = False
        return super().plan(cache)


class ReadsAgain(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        whole = [WorkItem(i.sequence, 0, len(i.sequence), num_rows=1) for i in step.items]
        return dataclasses.replace(step, items=tuple(whole))


class TakesEveryDraft(ContinuousScheduler):
    def _with_drafts(self, item: WorkItem, draft: Any, cache: Cache) -> WorkItem:
        drafts = item.sequence.drafts
        return WorkItem(item.sequence, item.start, 1 + len(drafts), 1 + len(drafts), drafts)


class SharesNothing(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self._beginnings.follow = lambda *_: False  # type: ignore[method-assign]


class NeverLetsGo(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self._beginnings.let_go = list  # type: ignore[method-assign]


class QueuesBehindThoseWhoShare(ContinuousScheduler):
    def _head(self, limits: EngineLimits, most_followers: int = 1) -> Sequence | None:
        head = super()._head(limits, most_followers)
        return None if self._beginnings._leaders else head


class KnowsNoTime(ContinuousScheduler):
    def commit(self, step: Step, duration_s: float) -> None:
        super().commit(step, 0.0)


class WantsTheLastRowOnly(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        items = [structs.replace(i, num_rows=min(i.num_rows, 1)) for i in step.items]
        return dataclasses.replace(step, items=tuple(items))


class AsksForTooManyRows(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        limits = dataclasses.replace(cache.limits, max_item_rows=64)
        return super().plan(WithLimits(cache, limits))


class WithLimits:
    """A cache that says something else of itself."""

    def __init__(self, cache: Cache, limits: EngineLimits) -> None:
        self._cache, self.limits = cache, limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


class OnScheduler(SchedulerContract):
    step_budget_s = 0.2

    def __init__(self, kind: type[ContinuousScheduler]) -> None:
        self._kind = kind

    def make(self) -> ContinuousScheduler:
        return self._kind()


TABLE = Table(
    SchedulerContract,
    OnScheduler,
    ContinuousScheduler,
    (
        Broken(
            KeepsThePlace,
            "A sequence that is removed gives up its room.",
            "a_full_cache_delays_but_loses_nobody",
        ),
        Broken(
            ServesOneAtATime,
            "Sequences that have room run together.",
            "several_sequences_run_together",
        ),
        Broken(
            ServesOneAtATime,
            "A newcomer does not wait for the others to finish.",
            "a_newcomer_does_not_wait_for_the_others_to_finish",
        ),
        Broken(
            WaitsForImages,
            "What is being encoded keeps nobody else waiting.",
            "an_image_that_is_being_encoded_keeps_nobody_waiting",
        ),
        Broken(
            NeverHolds,
            "A held sequence does not run.",
            "a_held_sequence_rests_until_it_is_let_go",
        ),
        Broken(
            ReadsAgain,
            "What was found in the cache is not computed again.",
            "a_cached_prefix_is_not_computed_again",
        ),
        Broken(
            TakesEveryDraft,
            "Drafts take the place of nobody.",
            "drafts_take_nobodys_place",
        ),
        Broken(
            SharesNothing,
            "A beginning that several share is computed once.",
            "a_common_beginning_is_computed_once",
        ),
        Broken(
            QueuesBehindThoseWhoShare,
            "Others overtake those who wait to share.",
            "others_overtake_those_who_wait_to_share",
        ),
        Broken(
            WantsTheLastRowOnly,
            "Each wanted row is asked for once.",
            "who_ends_with_the_prefill_gets_each_wanted_row_once",
        ),
        Broken(
            AsksForTooManyRows,
            "No item wants more than max_item_rows.",
            "who_ends_with_the_prefill_gets_each_wanted_row_once",
        ),
        Broken(
            NeverLetsGo,
            "Who waits to share outlives the one who computes.",
            "who_waits_to_share_outlives_the_one_who_computes",
        ),
        Broken(
            KnowsNoTime,
            "A step takes no longer than its budget.",
            "a_long_prompt_stops_no_answer",
        ),
        Broken(
            ForgetsToEncode,
            "A medium is encoded before its tokens are computed.",
            "every_sequence_finishes",
        ),
    ),
    is_whole=False,
)
