"""Schedulers that break one promise each, made of the built-in one."""

import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

from honest.scheduler import ShortestPromptFirst
from msgspec import structs

from broken.broken import Broken, Table
from broken.scheduler_from_nothing import BROKEN as FROM_NOTHING
from vlmkit.interfaces.engine import Cache, EngineLimits
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import EncodeItem, Step, WorkItem
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.running.scheduling.waiting_queue import WaitingQueue
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit_testing import SchedulerContract


class KeepsThePlace(ContinuousScheduler):
    def remove(self, sequence: Sequence, cache: Cache) -> None:
        self._queue.ranks.pop(sequence, None)


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
    def _with_drafts(self, item: WorkItem, plan: Any, cache: Cache) -> WorkItem:
        drafts = item.sequence.drafts
        return WorkItem(item.sequence, item.start, 1 + len(drafts), 1 + len(drafts), drafts)


class SharesNothing(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self._prefix_sharing.follow = lambda *_: False  # type: ignore[method-assign]


class NeverLetsGo(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self._prefix_sharing.release_ready = list  # type: ignore[method-assign]


class QueuesBehindThoseWhoShare(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self._queue = QueueThatFollowersBlock(self._prefix_sharing)


class QueueThatFollowersBlock(WaitingQueue):
    def head(self, limits: EngineLimits, max_followers: int = 1) -> Sequence | None:
        head = super().head(limits, max_followers)
        return None if self._prefix_sharing._leaders else head


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


class SendsOthersAwayForDrafts(ContinuousScheduler):
    def _with_drafts(self, item: WorkItem, plan: Any, cache: Cache) -> WorkItem:
        made = super()._with_drafts(item, plan, cache)
        if made is item and self._running[-1] is not item.sequence:
            self._preempt(self._running[-1], plan, cache)
            plan.items = [i for i in plan.items if i.sequence not in plan.preempted]
        return made

    def _plan_decodes(self, plan: Any, cache: Cache) -> None:
        super()._plan_decodes(plan, cache)
        plan.items = [i for i in plan.items if i.sequence not in plan.preempted]


class MakesDraftsUp(ContinuousScheduler):
    def _with_drafts(self, item: WorkItem, plan: Any, cache: Cache) -> WorkItem:
        made = super()._with_drafts(item, plan, cache)
        return structs.replace(made, drafts=(1,) * len(made.drafts))


class DropsDrafts(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        for sequence in self._running:
            sequence.drafts = ()
        return super().plan(cache)


class EmbedsByLogits(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        items = [structs.replace(item, output="logits") for item in step.items]
        return dataclasses.replace(step, items=tuple(items))


class Ranks(ContinuousScheduler):
    """Gives every sequence another rank."""

    def rank(self, sequence: Sequence, number: int) -> tuple[float, float]:
        raise NotImplementedError

    def add(self, sequence: Sequence) -> None:
        super().add(sequence)
        queue = self._queue
        queue._heap.remove((queue.ranks[sequence], sequence))
        number = queue.ranks[sequence][1]
        queue.ranks[sequence] = self.rank(sequence, number)  # type: ignore[assignment]
        queue._push(sequence)


class ServesTheLastFirst(Ranks):
    def rank(self, sequence: Sequence, number: int) -> tuple[float, float]:
        return sequence.priority, -number


class ServesTheLeastUrgentFirst(Ranks):
    def rank(self, sequence: Sequence, number: int) -> tuple[float, float]:
        return -sequence.priority, number


class IgnoresPriorityInWordsOnly(ContinuousScheduler):
    ignores = frozenset({"priority"})


class IgnoresHolds(ContinuousScheduler):
    ignores = frozenset({"is_held"})


class ThrowsDice(Ranks):
    def rank(self, sequence: Sequence, number: int) -> tuple[float, float]:
        return random.random(), number


class LooksAtTheClock(Ranks):
    """Lets who came an hour later overtake."""

    def rank(self, sequence: Sequence, number: int) -> tuple[float, float]:
        return sequence.priority - time.monotonic() // 3600, number


class KeepsWhoLeft(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self._queue._compact = lambda: None  # type: ignore[method-assign]


class KeepsWhoEnded(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self.ended: list[Sequence] = []

    def remove(self, sequence: Sequence, cache: Cache) -> None:
        super().remove(sequence, cache)
        self.ended.append(sequence)


class KeepsWhoWasRefused(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        self.asked.append(sequence)
        super().add(sequence)
        self.asked.pop()


class NamesMediaTwice(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        return dataclasses.replace(step, encodes=step.encodes * 2)


class NamesAllMediaAtEveryStep(ContinuousScheduler):
    """Leaves it to the loop what is there already."""

    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        media = [
            EncodeItem(sequence, index)
            for sequence in self._running
            for index in range(len(sequence.prompt.media))
        ]
        return dataclasses.replace(step, encodes=tuple(media))


class NamesMediaOfTheQueue(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        ahead = [
            EncodeItem(sequence, 0)
            for _, sequence in self._queue._heap
            if sequence in self._queue.ranks and sequence.prompt.media and not sequence.encoding
        ]
        return dataclasses.replace(step, encodes=(*step.encodes, *ahead))


class HidesPreemptions(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        return dataclasses.replace(super().plan(cache), preempted=())


class KeepsFeatures(ContinuousScheduler):
    def _preempt(self, sequence: Sequence, plan: Any, cache: Cache) -> None:
        kept = dict(sequence.features)
        super()._preempt(sequence, plan, cache)
        sequence.features.update(kept)


class CountsOnAfterPreemptions(ContinuousScheduler):
    def _preempt(self, sequence: Sequence, plan: Any, cache: Cache) -> None:
        num_computed = sequence.num_computed_tokens
        super()._preempt(sequence, plan, cache)
        sequence.num_computed_tokens = num_computed


class CountsEveryAdmission(ContinuousScheduler):
    def _try_admit(self, sequence: Sequence, plan: Any, cache: Cache) -> bool:
        is_admitted = super()._try_admit(sequence, plan, cache)
        if is_admitted:
            sequence.num_cached_tokens = sequence.num_computed_tokens
        return is_admitted


class KeepsPlacesForTheHeld(ContinuousScheduler):
    def _victim(self) -> Sequence | None:
        victim = super()._victim()
        return None if victim is not None and victim.is_held else victim


class OverlooksItsBudget(ContinuousScheduler):
    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        super().__init__()


def on(kind: Callable[[], Any]) -> SchedulerContract:
    """Return the contract on a scheduler."""
    contract = SchedulerContract()
    contract.make = kind  # type: ignore[method-assign]
    return contract


def in_time(kind: Callable[[], Any]) -> SchedulerContract:
    """Return the contract on a scheduler that bounds the time of a step."""
    contract = on(kind)
    contract.step_budget_s = 0.2
    return contract


def within_eleven(kind: Callable[..., Any]) -> SchedulerContract:
    """Return the contract on a scheduler that was told to compute eleven tokens at most."""
    contract = on(lambda: kind(SchedulerSettings(max_step_tokens=11)))
    contract.max_step_tokens = 11
    return contract


TABLE = Table(
    SchedulerContract,
    on,
    ContinuousScheduler,
    (
        Broken(
            KeepsThePlace,
            "A sequence that is removed gives up its room.",
            "a_full_cache_delays_but_loses_no_sequence",
        ),
        Broken(
            ServesOneAtATime,
            "Sequences that have room run together.",
            "sequences_are_batched",
        ),
        Broken(
            ServesOneAtATime,
            "A newcomer does not wait for the others to finish.",
            "a_newcomer_does_not_wait_for_the_others_to_finish",
        ),
        Broken(
            WaitsForImages,
            "An image that is being encoded delays no other sequence.",
            "an_encoding_delays_no_other_sequence",
        ),
        Broken(
            NeverHolds,
            "A held sequence does not run.",
            "a_held_sequence_does_not_run_until_it_is_released",
        ),
        Broken(
            ReadsAgain,
            "What was found in the cache is not computed again.",
            "a_cached_prefix_is_not_computed_again",
        ),
        Broken(
            TakesEveryDraft,
            "A scheduler takes as many drafts as the engine has room and rows for.",
            "drafts_displace_no_sequence",
        ),
        Broken(
            SharesNothing,
            "A beginning that several share is computed once.",
            "a_common_beginning_is_computed_once",
        ),
        Broken(
            QueuesBehindThoseWhoShare,
            "Others overtake those who wait to share.",
            "others_overtake_sequences_that_wait_to_share",
        ),
        Broken(
            WantsTheLastRowOnly,
            "Each wanted row is asked for once.",
            "a_sequence_without_an_answer_gets_each_wanted_row_once",
        ),
        Broken(
            AsksForTooManyRows,
            "No item wants more than max_item_rows.",
            "a_sequence_without_an_answer_gets_each_wanted_row_once",
        ),
        Broken(
            NeverLetsGo,
            "Who waits to share outlives the one who computes.",
            "waiting_to_share_ends_with_the_computing_sequence",
        ),
        Broken(
            KnowsNoTime,
            "A step takes no longer than its budget.",
            "a_long_prompt_stops_no_answer",
            on=in_time,
        ),
        Broken(
            ForgetsToEncode,
            "A medium is encoded before its tokens are computed.",
            "every_sequence_finishes",
        ),
        Broken(
            SendsOthersAwayForDrafts,
            "Drafts preempt no sequence.",
            "drafts_preempt_no_sequence",
        ),
        Broken(
            MakesDraftsUp,
            "Drafts are the sequence's own.",
            "drafts_displace_no_sequence",
        ),
        Broken(
            DropsDrafts,
            "A scheduler changes nothing of a sequence but its books.",
            "drafts_displace_no_sequence",
        ),
        Broken(
            EmbedsByLogits,
            "Who embeds wants hidden states.",
            "a_sequence_without_an_answer_gets_each_wanted_row_once",
        ),
        Broken(
            ServesTheLastFirst,
            "Of equals the first to come is served first, where nothing is claimed.",
            "equal_priorities_run_in_order_of_arrival",
        ),
        Broken(
            ServesTheLeastUrgentFirst,
            "Smaller priorities run first, where nothing is claimed.",
            "higher_priority_runs_first",
        ),
        Broken(
            IgnoresPriorityInWordsOnly,
            "A priority that a scheduler says it ignores changes nothing.",
            "priorities_that_it_says_it_ignores_change_nothing",
            honest=ShortestPromptFirst,
        ),
        Broken(
            IgnoresHolds,
            "Nothing but the order may be ignored.",
            "only_order_is_ignored",
        ),
        Broken(
            ThrowsDice,
            "A scheduler is pure: the same arrivals give the same steps.",
            "a_plan_is_a_function_of_what_was_added",
            raises=(ValueError,),  # of a rank that changes: what is admitted is admitted again
        ),
        Broken(
            LooksAtTheClock,
            "A scheduler knows no clock.",
            "plans_do_not_read_a_clock",
        ),
        Broken(
            KeepsWhoEnded,
            "A sequence that ended is forgotten.",
            "an_ended_sequence_is_released",
        ),
        Broken(
            KeepsWhoWasRefused,
            "A sequence that was refused is forgotten.",
            "an_ended_sequence_is_released",
        ),
        Broken(
            KeepsWhoLeft,
            "A queue keeps no sequence that left it.",
            "removed_sequences_do_not_accumulate",
        ),
        Broken(
            NamesMediaTwice,
            "A step names a medium once.",
            "every_sequence_finishes",
        ),
        Broken(
            NamesAllMediaAtEveryStep,
            "A step names media whose tokens enter the cache for the first time.",
            "every_sequence_finishes",
        ),
        Broken(
            NamesMediaOfTheQueue,
            "A step names media whose tokens are about to enter the cache.",
            "every_sequence_finishes",
        ),
        Broken(
            HidesPreemptions,
            "A step names every sequence whose cache was given up.",
            "every_sequence_finishes",
        ),
        Broken(
            KeepsFeatures,
            "A preempted sequence has no features.",
            "a_preempted_sequence_starts_again",
        ),
        Broken(
            CountsOnAfterPreemptions,
            "A preempted sequence has no computed tokens.",
            "every_sequence_finishes",
        ),
        Broken(
            CountsEveryAdmission,
            "num_cached_tokens is what the first admission found.",
            "every_sequence_finishes",
        ),
        Broken(
            KeepsPlacesForTheHeld,
            "A held sequence gives its room to a sequence that needs it.",
            "a_held_sequence_gives_up_its_slot_when_needed",
        ),
        Broken(
            OverlooksItsBudget,
            "A step keeps to the bound on its tokens.",
            "a_step_keeps_to_its_budget",
            on=within_eleven,
        ),
        *FROM_NOTHING,
    ),
)
