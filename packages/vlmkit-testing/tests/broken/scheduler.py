"""Schedulers that break one promise each, derived from the built-in scheduler."""

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
from vlmkit.running.scheduling.prefill_budget import MIN_CHUNK_TOKENS
from vlmkit.running.scheduling.prefix_sharing import PrefixSharing
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.running.scheduling.waiting_queue import WaitingQueue
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit_testing import SchedulerContract


class KeepsTheSlotOfARemovedSequence(ContinuousScheduler):
    def remove(self, sequence: Sequence, cache: Cache) -> None:
        self._queue.ranks.pop(sequence, None)


class KeepsHeldSequencesThatEnded(ContinuousScheduler):
    def remove(self, sequence: Sequence, cache: Cache) -> None:
        is_paused = sequence in self._queue._paused
        super().remove(sequence, cache)
        if is_paused:
            self._queue._paused[sequence] = None


class RunsOneSequenceAtATime(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        return dataclasses.replace(step, items=step.items[:1])


class CommitsOnlyPlannedItems(ContinuousScheduler):
    """Records the stops of a step when it plans them."""

    stops: dict[Sequence, int]

    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        self.stops = {item.sequence: item.stop for item in step.items}
        return step

    def commit(self, step: Step, duration_s: float) -> None:
        super().commit(step, duration_s)
        for item in step.items:
            stop = self.stops[item.sequence]
            item.sequence.num_computed_tokens = min(stop, item.stop)


class LetsOthersPassAPromptWithoutRoom(ContinuousScheduler):
    """Puts the head of the queue one place back if it is not admitted."""

    def plan(self, cache: Cache) -> Step:
        num_running, heap = self.num_running, self._queue._heap
        step = super().plan(cache)
        if len(heap) > 1 and self.num_running <= num_running:
            first, second = sorted(heap)[:2]
            ranks = self._queue.ranks
            if first[1] in ranks and second[1] in ranks and not step.preempted:
                ranks[first[1]], ranks[second[1]] = second[0], first[0]
                heap[:] = sorted((ranks.get(each, rank), each) for rank, each in heap)
        return step


class PreemptsTheFirstComer(ContinuousScheduler):
    """Preempts the oldest sequence that is not held."""

    def _victim(self) -> Sequence | None:
        victim = super()._victim()
        return victim if victim is None or victim.is_held else self._running[0]


class RaisesThePriorityOfRunningSequences(ContinuousScheduler):
    """Marks committed sequences as more urgent, so that nothing preempts them."""

    def commit(self, step: Step, duration_s: float) -> None:
        super().commit(step, duration_s)
        for item in step.items:
            item.sequence.priority -= 1


class NeverEncodes(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        return dataclasses.replace(super().plan(cache), encodes=())


class WaitsForImages(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        if any(sequence.encoding for sequence in self._running):
            return Step((), ())
        return super().plan(cache)


class IgnoresHoldsOfSequences(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        for sequence in self._running:
            sequence.is_held = False
        return super().plan(cache)


class ComputesCachedPrefixesAgain(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        whole = [WorkItem(i.sequence, 0, len(i.sequence), num_rows=1) for i in step.items]
        return dataclasses.replace(step, items=tuple(whole))


class TakesEveryDraft(ContinuousScheduler):
    def _with_drafts(self, item: WorkItem, plan: Any, cache: Cache) -> WorkItem:
        drafts = item.sequence.drafts
        return WorkItem(item.sequence, item.start, 1 + len(drafts), 1 + len(drafts), drafts)


class ComputesSharedPrefixesTwice(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self._prefix_sharing.follow = lambda *_: False  # type: ignore[method-assign]


class WaitsForeverToShare(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self._prefix_sharing.release_ready = list  # type: ignore[method-assign]


class KeepsLeaders(ContinuousScheduler):
    """Keeps a sequence after those that waited to share its prefix have left."""

    def __init__(self) -> None:
        super().__init__()
        self._prefix_sharing = SharingWithEmptyGroups()
        self._queue = WaitingQueue(self._prefix_sharing)


class SharingWithEmptyGroups(PrefixSharing):
    def unfollow(self, sequence: Sequence) -> bool:
        leader = self._leaders.get(sequence)
        found = super().unfollow(sequence)
        if leader is not None:
            self._followers.setdefault(leader, {})
        return found


class KeepsFollowers(ContinuousScheduler):
    """Keeps a sequence that ended while it waited for another one's prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Sequence | None = None

    def remove(self, sequence: Sequence, cache: Cache) -> None:
        if sequence in self._prefix_sharing._leaders:
            self.last = sequence
        super().remove(sequence, cache)


class QueuesBehindSequencesThatWaitToShare(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self._queue = QueueThatFollowersBlock(self._prefix_sharing)


class QueueThatFollowersBlock(WaitingQueue):
    def head(self, limits: EngineLimits, max_followers: int = 1) -> Sequence | None:
        head = super().head(limits, max_followers)
        return None if self._prefix_sharing._leaders else head


class IgnoresTheTimeBudget(ContinuousScheduler):
    def commit(self, step: Step, duration_s: float) -> None:
        super().commit(step, 0.0)


class RequestsOnlyTheLastRow(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        items = [structs.replace(i, num_rows=min(i.num_rows, 1)) for i in step.items]
        return dataclasses.replace(step, items=tuple(items))


class RequestsTooManyRows(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        limits = dataclasses.replace(cache.limits, max_item_rows=64)
        return super().plan(WithLimits(cache, limits))


class WithLimits:
    """A cache with changed limits."""

    def __init__(self, cache: Cache, limits: EngineLimits) -> None:
        self._cache, self.limits = cache, limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


class PreemptsForDrafts(ContinuousScheduler):
    def _with_drafts(self, item: WorkItem, plan: Any, cache: Cache) -> WorkItem:
        made = super()._with_drafts(item, plan, cache)
        if made is item and self._running[-1] is not item.sequence:
            self._preempt(self._running[-1], plan, cache)
            plan.items = [i for i in plan.items if i.sequence not in plan.preempted]
        return made

    def _plan_decodes(self, plan: Any, cache: Cache) -> None:
        super()._plan_decodes(plan, cache)
        plan.items = [i for i in plan.items if i.sequence not in plan.preempted]


class InventsDrafts(ContinuousScheduler):
    def _with_drafts(self, item: WorkItem, plan: Any, cache: Cache) -> WorkItem:
        made = super()._with_drafts(item, plan, cache)
        return structs.replace(made, drafts=(1,) * len(made.drafts))


class DropsDrafts(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        for sequence in self._running:
            sequence.drafts = ()
        return super().plan(cache)


class RequestsLogitsForEmbeddings(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        items = [structs.replace(item, output="logits") for item in step.items]
        return dataclasses.replace(step, items=tuple(items))


class ChangedPriorities(ContinuousScheduler):
    """Changes the priority of every sequence."""

    def rank(self, sequence: Sequence, number: int) -> tuple[float, float]:
        raise NotImplementedError

    def add(self, sequence: Sequence) -> None:
        super().add(sequence)
        queue = self._queue
        queue._heap.remove((queue.ranks[sequence], sequence))
        number = queue.ranks[sequence][1]
        queue.ranks[sequence] = self.rank(sequence, number)  # type: ignore[assignment]
        queue._push(sequence)


class RunsTheLastFirst(ChangedPriorities):
    def rank(self, sequence: Sequence, number: int) -> tuple[float, float]:
        return sequence.priority, -number


class RunsTheLeastUrgentFirst(ChangedPriorities):
    def rank(self, sequence: Sequence, number: int) -> tuple[float, float]:
        return -sequence.priority, number


class ClaimsToIgnorePriority(ContinuousScheduler):
    ignores = frozenset({"priority"})


class ClaimsToIgnoreHolds(ContinuousScheduler):
    ignores = frozenset({"is_held"})


class OrdersAtRandom(ChangedPriorities):
    def rank(self, sequence: Sequence, number: int) -> tuple[float, float]:
        return random.random(), number


class ReadsTheClock(ChangedPriorities):
    """Lets sequences that arrive an hour later overtake."""

    def rank(self, sequence: Sequence, number: int) -> tuple[float, float]:
        return sequence.priority - time.monotonic() // 3600, number


class KeepsRemovedSequences(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self._queue._compact = lambda: None  # type: ignore[method-assign]


class KeepsEndedSequences(ContinuousScheduler):
    def __init__(self) -> None:
        super().__init__()
        self.ended: list[Sequence] = []

    def remove(self, sequence: Sequence, cache: Cache) -> None:
        super().remove(sequence, cache)
        self.ended.append(sequence)


class KeepsRefusedSequences(ContinuousScheduler):
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
    """Relies on the loop to skip media that are encoded already."""

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


class ReportsNoPreemptions(ContinuousScheduler):
    def plan(self, cache: Cache) -> Step:
        return dataclasses.replace(super().plan(cache), preempted=())


class KeepsFeatures(ContinuousScheduler):
    def _preempt(self, sequence: Sequence, plan: Any, cache: Cache) -> None:
        kept = dict(sequence.features)
        super()._preempt(sequence, plan, cache)
        sequence.features.update(kept)


class KeepsFeaturesOfHeldSequences(KeepsFeatures):
    def _preempt(self, sequence: Sequence, plan: Any, cache: Cache) -> None:
        kind = KeepsFeatures if sequence.is_held else ContinuousScheduler
        kind._preempt(self, sequence, plan, cache)


class KeepsTheCountAfterPreemptions(ContinuousScheduler):
    def _preempt(self, sequence: Sequence, plan: Any, cache: Cache) -> None:
        num_computed = sequence.num_computed_tokens
        super()._preempt(sequence, plan, cache)
        sequence.num_computed_tokens = num_computed


class CountsCachedTokensOfEveryAdmission(ContinuousScheduler):
    def _try_admit(self, sequence: Sequence, plan: Any, cache: Cache) -> bool:
        is_admitted = super()._try_admit(sequence, plan, cache)
        if is_admitted:
            sequence.num_cached_tokens = sequence.num_computed_tokens
        return is_admitted


class KeepsSlotsOfHeldSequences(ContinuousScheduler):
    def _victim(self) -> Sequence | None:
        victim = super()._victim()
        return None if victim is not None and victim.is_held else victim


class IgnoresItsTokenLimit(ContinuousScheduler):
    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        super().__init__()


class DraftsWithAllTokensOfAStep(ContinuousScheduler):
    """Gives answers all drafts before prompts get a token."""

    def _with_drafts(self, item: WorkItem, plan: Any, cache: Cache) -> WorkItem:
        num_kept = MIN_CHUNK_TOKENS if self.num_waiting else 0
        plan.num_tokens_left += num_kept
        made = super()._with_drafts(item, plan, cache)
        plan.num_tokens_left -= num_kept
        return made


class CountsNoDrafts(ContinuousScheduler):
    """Counts one token for an answer, however many drafts it has."""

    def _with_drafts(self, item: WorkItem, plan: Any, cache: Cache) -> WorkItem:
        made = super()._with_drafts(item, plan, cache)
        plan.num_tokens_left += len(made.drafts)
        return made


def on(kind: Callable[[], Any]) -> SchedulerContract:
    """Return the contract on a scheduler."""
    contract = SchedulerContract()
    contract.make = kind  # type: ignore[method-assign]
    return contract


def in_time(kind: Callable[[], Any]) -> SchedulerContract:
    """Return the contract on a scheduler that limits the time of a step."""
    contract = on(kind)
    contract.step_budget_s = 0.2
    return contract


class QueuesPreemptedSequencesLast(ContinuousScheduler):
    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        super().__init__(settings)
        self._queue = LastComesLast(self._prefix_sharing)


class LastComesLast(WaitingQueue):
    def put_back(self, sequence: Sequence) -> None:
        self.ranks[sequence] = sequence.priority, next(self._arrivals)
        super().put_back(sequence)


class TrustsTheFastestStep(ContinuousScheduler):
    """Takes the least time per token that it ever saw."""

    least_s = 1.0

    def commit(self, step: Step, duration_s: float) -> None:
        chunks = [item for item in step.items if item.sequence.is_prefilling]
        num_tokens = sum(item.num_tokens for item in chunks)
        if num_tokens:
            self.least_s = min(self.least_s, duration_s / num_tokens)
        super().commit(step, self.least_s * num_tokens if num_tokens else duration_s)


class NamesEveryMedium(ContinuousScheduler):
    """Has no budget for media."""

    def plan(self, cache: Cache) -> Step:
        self.settings = structs.replace(self.settings, encoder_budget_tokens=10**6)
        return super().plan(cache)


class RemembersEverySequence(ContinuousScheduler):
    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        super().__init__(settings)
        self.known: dict[tuple[int, ...], int] = {}

    def add(self, sequence: Sequence) -> None:
        self.known[tuple(sequence.tokens(0, 16))] = len(sequence)
        super().add(sequence)


def within_five(kind: Callable[..., Any]) -> SchedulerContract:
    """Return the contract on a scheduler with a budget of five media tokens."""
    contract = on(lambda: kind(SchedulerSettings(encoder_budget_tokens=5)))
    contract.max_encoder_tokens = 5
    return contract


def within_a_fifth(kind: Callable[..., Any]) -> SchedulerContract:
    """Return the contract on a scheduler whose steps take a fifth of a second."""
    contract = on(lambda: kind(SchedulerSettings(step_budget_ms=200)))
    contract.step_budget_s = 0.2
    return contract


def within_eleven(kind: Callable[..., Any]) -> SchedulerContract:
    """Return the contract on a scheduler with a limit of eleven tokens for each step."""
    contract = on(lambda: kind(SchedulerSettings(max_step_tokens=11)))
    contract.max_step_tokens = 11
    return contract


TABLE = Table(
    SchedulerContract,
    on,
    ContinuousScheduler,
    (
        Broken(
            CommitsOnlyPlannedItems,
            "The loop may repeat a step without a plan.",
            "a_step_may_be_repeated_without_a_plan",
        ),
        Broken(
            LetsOthersPassAPromptWithoutRoom,
            "Sequences run in order of arrival, whatever their sizes.",
            "a_sequence_without_room_is_not_overtaken",
        ),
        Broken(
            PreemptsTheFirstComer,
            "A sequence keeps its room while later ones do.",
            "a_sequence_without_room_is_not_overtaken",
        ),
        Broken(
            RaisesThePriorityOfRunningSequences,
            "A scheduler sets the priority of a sequence only when it queues it.",
            "every_sequence_finishes",
        ),
        Broken(
            KeepsTheSlotOfARemovedSequence,
            "A removed sequence frees its slot.",
            "a_full_cache_delays_but_loses_no_sequence",
        ),
        Broken(
            RunsOneSequenceAtATime,
            "Sequences that have room run together.",
            "sequences_are_batched",
        ),
        Broken(
            DraftsWithAllTokensOfAStep,
            "New sequences join while answers progress, and drafts leave tokens for them.",
            "a_newcomer_does_not_wait_for_answers_that_draft",
            on=within_eleven,
        ),
        Broken(
            CountsNoDrafts,
            "Drafts count as tokens of a step.",
            "a_step_keeps_to_its_budget",
            on=within_eleven,
        ),
        Broken(
            RunsOneSequenceAtATime,
            "A new sequence does not wait for others to finish.",
            "a_newcomer_does_not_wait_for_the_others_to_finish",
        ),
        Broken(
            WaitsForImages,
            "An image that is being encoded delays no other sequence.",
            "an_encoding_delays_no_other_sequence",
        ),
        Broken(
            KeepsFeaturesOfHeldSequences,
            "A preempted sequence has no features, held or not.",
            "sequences_may_be_held_in_any_step",
        ),
        Broken(
            IgnoresHoldsOfSequences,
            "A held sequence does not run.",
            "a_held_sequence_does_not_run_until_it_is_released",
        ),
        Broken(
            ComputesCachedPrefixesAgain,
            "A cached prefix is not computed again.",
            "a_cached_prefix_is_not_computed_again",
        ),
        Broken(
            TakesEveryDraft,
            "A scheduler takes only drafts for which the engine has room and rows.",
            "drafts_displace_no_sequence",
        ),
        Broken(
            ComputesSharedPrefixesTwice,
            "A shared prefix is computed once.",
            "a_common_beginning_is_computed_once",
        ),
        Broken(
            QueuesBehindSequencesThatWaitToShare,
            "Others overtake sequences that wait to share a prefix.",
            "others_overtake_sequences_that_wait_to_share",
        ),
        Broken(
            RequestsOnlyTheLastRow,
            "Each wanted row is requested once.",
            "a_sequence_without_an_answer_gets_each_wanted_row_once",
        ),
        Broken(
            RequestsTooManyRows,
            "No item wants more than max_item_rows.",
            "a_sequence_without_an_answer_gets_each_wanted_row_once",
        ),
        Broken(
            WaitsForeverToShare,
            "Sequences that wait to share continue when the computing one ends.",
            "waiting_to_share_ends_with_the_computing_sequence",
        ),
        Broken(
            IgnoresTheTimeBudget,
            "A step takes no longer than its budget.",
            "a_long_prompt_stops_no_answer",
            on=in_time,
        ),
        Broken(
            NeverEncodes,
            "A medium is encoded before its tokens are computed.",
            "every_sequence_finishes",
        ),
        Broken(
            PreemptsForDrafts,
            "Drafts preempt no sequence.",
            "drafts_preempt_no_sequence",
        ),
        Broken(
            InventsDrafts,
            "Drafts belong to their sequence.",
            "drafts_displace_no_sequence",
        ),
        Broken(
            DropsDrafts,
            "A scheduler changes only its own fields of a sequence.",
            "drafts_displace_no_sequence",
        ),
        Broken(
            RequestsLogitsForEmbeddings,
            "An embedding request needs hidden states.",
            "a_sequence_without_an_answer_gets_each_wanted_row_once",
        ),
        Broken(
            RunsTheLastFirst,
            "Sequences of equal priority run in order of arrival by default.",
            "equal_priorities_run_in_order_of_arrival",
        ),
        Broken(
            RunsTheLeastUrgentFirst,
            "Smaller priority values run first by default.",
            "higher_priority_runs_first",
        ),
        Broken(
            ClaimsToIgnorePriority,
            "An ignored priority changes nothing.",
            "priorities_that_it_says_it_ignores_change_nothing",
            honest=ShortestPromptFirst,
        ),
        Broken(
            ClaimsToIgnoreHolds,
            "Only the order may be ignored.",
            "only_order_is_ignored",
        ),
        Broken(
            OrdersAtRandom,
            "A scheduler is pure: the same arrivals give the same steps.",
            "a_plan_is_a_function_of_what_was_added",
            raises=(ValueError,),  # the priority changes, so an admitted sequence is admitted again
        ),
        Broken(
            ReadsTheClock,
            "A scheduler does not read a clock.",
            "plans_do_not_read_a_clock",
        ),
        Broken(
            KeepsLeaders,
            "A sequence whose prefix others waited for is not referenced after its end.",
            "sequences_that_share_are_released",
        ),
        Broken(
            KeepsFollowers,
            "A sequence that ended before its prefix was computed is not referenced.",
            "sequences_that_share_are_released",
        ),
        Broken(
            KeepsEndedSequences,
            "A sequence that ended is not referenced.",
            "an_ended_sequence_is_released",
        ),
        Broken(
            KeepsRefusedSequences,
            "A refused sequence is not referenced.",
            "an_ended_sequence_is_released",
        ),
        Broken(
            KeepsRemovedSequences,
            "A queue does not reference removed sequences.",
            "removed_sequences_do_not_accumulate",
        ),
        Broken(
            NamesMediaTwice,
            "A step names each medium once.",
            "every_sequence_finishes",
        ),
        Broken(
            NamesAllMediaAtEveryStep,
            "A step names a medium only when its tokens first enter the cache.",
            "every_sequence_finishes",
        ),
        Broken(
            NamesMediaOfTheQueue,
            "A step does not name media of queued sequences.",
            "every_sequence_finishes",
        ),
        Broken(
            ReportsNoPreemptions,
            "A step names every preempted sequence.",
            "every_sequence_finishes",
        ),
        Broken(
            KeepsFeatures,
            "A preempted sequence has no features.",
            "a_preempted_sequence_starts_again",
        ),
        Broken(
            KeepsTheCountAfterPreemptions,
            "A preempted sequence has no computed tokens.",
            "every_sequence_finishes",
        ),
        Broken(
            CountsCachedTokensOfEveryAdmission,
            "num_cached_tokens is what the first admission found.",
            "every_sequence_finishes",
        ),
        Broken(
            KeepsSlotsOfHeldSequences,
            "A held sequence gives its slot to a sequence that needs it.",
            "a_held_sequence_gives_up_its_slot_when_needed",
        ),
        Broken(
            KeepsHeldSequencesThatEnded,
            "A held sequence may end without a slot.",
            "a_held_sequence_may_end_without_its_slot",
            raises=(KeyError,),
        ),
        Broken(
            IgnoresItsTokenLimit,
            "A step stays within its token limit.",
            "a_step_keeps_to_its_budget",
            on=within_eleven,
        ),
        Broken(
            QueuesPreemptedSequencesLast,
            "A preempted sequence keeps its arrival.",
            "a_preempted_sequence_keeps_its_rank",
        ),
        Broken(
            TrustsTheFastestStep,
            "The time of steps follows an engine that becomes slower.",
            "answers_keep_their_pace_when_an_engine_changes_its_speed",
            on=within_a_fifth,
        ),
        Broken(
            NamesEveryMedium,
            "Media that are encoded at once keep to their budget.",
            "media_keep_to_the_budget_of_the_encoder",
            on=within_five,
        ),
        Broken(
            RemembersEverySequence,
            "An ended sequence leaves nothing in memory.",
            "memory_does_not_grow_with_the_sequences",
        ),
        *FROM_NOTHING,
    ),
)
