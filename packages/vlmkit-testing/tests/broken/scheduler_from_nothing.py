"""Schedulers that break one promise each, derived from one that shares no code with ours."""

from honest.scheduler import ShortestPromptFirst

from broken.broken import Broken
from vlmkit.errors import QueueFull
from vlmkit.interfaces.engine import Cache
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import EncodeItem, Step, WorkItem

# Queues.


class FailsWithoutWork(ShortestPromptFirst):
    def plan(self, cache: Cache) -> Step:
        min(len(sequence) for sequence in [*self._running, *self._waiting])
        return super().plan(cache)


class QueuesOneTooMany(ShortestPromptFirst):
    def add(self, sequence: Sequence) -> None:
        self.max_waiting += 1
        try:
            super().add(sequence)
        finally:
            self.max_waiting -= 1


class QueuesRefusedSequences(ShortestPromptFirst):
    def add(self, sequence: Sequence) -> None:
        try:
            super().add(sequence)
        except QueueFull:
            self._waiting.append(sequence)
            raise


class RefusesPreemptedSequences(ShortestPromptFirst):
    """Queues preempted sequences as if they were new."""

    def _preempt(self, sequence: Sequence, cache: Cache, preempted: list[Sequence]) -> None:
        super()._preempt(sequence, cache, preempted)
        self._waiting.remove(sequence)
        self.add(sequence)


class LosesPreemptedSequences(ShortestPromptFirst):
    def _preempt(self, sequence: Sequence, cache: Cache, preempted: list[Sequence]) -> None:
        super()._preempt(sequence, cache, preempted)
        self._waiting.remove(sequence)


class KeepsRemovedWaitingSequences(ShortestPromptFirst):
    def remove(self, sequence: Sequence, cache: Cache) -> None:
        if sequence in self._running:
            super().remove(sequence, cache)


class FailsOnSequencesThatNeverFit(ShortestPromptFirst):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        if self._waiting and not self._running:
            raise RuntimeError("nobody runs, and yet there is no room")
        return step


# Order.


class PrefersPrompts(ShortestPromptFirst):
    def plan(self, cache: Cache) -> Step:
        encodes: list[EncodeItem] = []
        preempted: list[Sequence] = []
        items = self._chunks(cache, encodes, preempted, 1)
        return Step(
            tuple(encodes), tuple(items or self._answers(cache, preempted)), tuple(preempted)
        )


class PrefersAnswers(ShortestPromptFirst):
    def plan(self, cache: Cache) -> Step:
        preempted: list[Sequence] = []
        if items := self._answers(cache, preempted):
            return Step((), tuple(items), tuple(preempted))
        return super().plan(cache)


class PrefersAnswersThatDraft(ShortestPromptFirst):
    """Computes nothing beside answers with drafts, because their steps are long."""

    def plan(self, cache: Cache) -> Step:
        preempted: list[Sequence] = []
        if any(each.drafts for each in self._running if not each.is_prefilling):
            items = self._answers(cache, preempted)
            return Step((), tuple(items), tuple(preempted))
        return super().plan(cache)


class AlwaysMixes(ShortestPromptFirst):
    def plan(self, cache: Cache) -> Step:
        encodes: list[EncodeItem] = []
        preempted: list[Sequence] = []
        items = self._answers(cache, preempted)
        items += self._chunks(cache, encodes, preempted, 1)
        return Step(tuple(encodes), tuple(items), tuple(preempted))


class PlansSeveralChunksWithoutMixing(ShortestPromptFirst):
    def _chunks(
        self, cache: Cache, encodes: list[EncodeItem], preempted: list[Sequence], most: int
    ) -> list[WorkItem]:
        return super()._chunks(cache, encodes, preempted, 64)


# Rooms and limits.


class ReservesNoRoom(ShortestPromptFirst):
    def _answers(self, cache: Cache, preempted: list[Sequence]) -> list[WorkItem]:
        return [
            WorkItem(sequence, len(sequence) - 1, 1, num_rows=1)
            for sequence in self._running
            if not sequence.is_held and not sequence.is_prefilling
        ]


class CommitsForTheLoop(ShortestPromptFirst):
    def plan(self, cache: Cache) -> Step:
        for sequence in self._running:
            cache.commit(sequence, sequence.num_computed_tokens)
        return super().plan(cache)


class IgnoresMaxChunkTokens(ShortestPromptFirst):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        items = [
            WorkItem(item.sequence, item.start, len(item.sequence) - item.start, 1)
            if item.sequence.is_prefilling
            else item
            for item in step.items
        ]
        return Step(step.encodes, tuple(items), step.preempted)


class CutsSpans(ShortestPromptFirst):
    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        items = [
            WorkItem(item.sequence, item.start, item.num_tokens - 1)
            if item.num_tokens > 1 and not item.num_rows
            else item
            for item in step.items
        ]
        return Step(step.encodes, tuple(items), step.preempted)


class CutsSpansBetweenMedia(ShortestPromptFirst):
    """Ends each chunk before the second medium that it would have encoded."""

    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        cuts: dict[Sequence, int] = {}
        for sequence in {encode.sequence for encode in step.encodes}:
            named = [each.index for each in step.encodes if each.sequence is sequence]
            starts = sorted(sequence.prompt.media[index].start for index in named)
            cuts[sequence] = starts[1] if len(starts) > 1 else len(sequence)
        encodes = [
            each
            for each in step.encodes
            if each.sequence.prompt.media[each.index].start < cuts[each.sequence]
        ]
        items = [
            WorkItem(item.sequence, item.start, cuts[item.sequence] - item.start)
            if cuts.get(item.sequence, item.stop) < item.stop
            else item
            for item in step.items
        ]
        return Step(tuple(encodes), tuple(items), step.preempted)


# Commits.


class PlansItemsThatWaitForAnImage(ShortestPromptFirst):
    def plan(self, cache: Cache) -> Step:
        away = [(s, set(s.encoding)) for s in self._running if s.encoding]
        for sequence, _ in away:
            sequence.encoding.clear()
        step = super().plan(cache)
        for sequence, encoding in away:
            sequence.encoding.update(encoding)
        is_new = [e for e in step.encodes if e.index not in e.sequence.encoding]
        return Step(tuple(is_new), step.items, step.preempted)


class CommitsPlannedItems(ShortestPromptFirst):
    planned: tuple[WorkItem, ...] = ()

    def plan(self, cache: Cache) -> Step:
        step = super().plan(cache)
        self.planned = step.items
        return step

    def commit(self, step: Step, duration_s: float) -> None:
        super().commit(Step(step.encodes, self.planned, step.preempted), duration_s)


class ExpectsEveryItemInACommit(CommitsPlannedItems):
    def commit(self, step: Step, duration_s: float) -> None:
        for item, planned in zip(step.items, self.planned, strict=True):
            assert item.sequence is planned.sequence
        ShortestPromptFirst.commit(self, step, duration_s)


EVERY = "every_sequence_finishes"
TABLE_OF = (
    (
        QueuesOneTooMany,
        "A queue takes at most max_waiting sequences.",
        "a_full_queue_refuses_and_keeps_what_it_has",
    ),
    (
        QueuesRefusedSequences,
        "A refused sequence leaves no trace.",
        "a_full_queue_refuses_and_keeps_what_it_has",
    ),
    (
        LosesPreemptedSequences,
        "A preempted sequence returns to the queue.",
        "a_full_cache_delays_but_loses_no_sequence",
    ),
    (
        KeepsRemovedWaitingSequences,
        "A waiting sequence can be removed.",
        "a_removed_sequence_leaves_nothing_behind",
    ),
    (
        PrefersPrompts,
        "Answers continue while prompts arrive.",
        "answers_continue_while_prompts_arrive",
    ),
    (
        PrefersAnswers,
        "New sequences start while answers continue.",
        "a_newcomer_does_not_wait_for_the_others_to_finish",
    ),
    (
        PrefersAnswersThatDraft,
        "New sequences start while answers draft.",
        "a_newcomer_does_not_wait_for_answers_that_draft",
    ),
    (AlwaysMixes, "A step mixes chunks and answers only if the engine supports it.", EVERY),
    (PlansSeveralChunksWithoutMixing, "If the engine does not mix, a step has one chunk.", EVERY),
    (ReservesNoRoom, "Room is reserved for tokens before they run.", EVERY),
    (CommitsForTheLoop, "A scheduler reserves room but does not commit.", EVERY),
    (IgnoresMaxChunkTokens, "A chunk is no longer than max_chunk_tokens.", EVERY),
    (CutsSpans, "No chunk cuts an atomic span.", EVERY),
    (
        CutsSpansBetweenMedia,
        "No chunk cuts an atomic span that has several media.",
        "spans_and_media_are_independent",
    ),
    (
        PlansItemsThatWaitForAnImage,
        "Items that wait for an encoding take no room from others.",
        EVERY,
    ),
    (CommitsPlannedItems, "Only items that ran are committed.", EVERY),
)
BROKEN = (
    *(Broken(kind, promise, test, honest=ShortestPromptFirst) for kind, promise, test in TABLE_OF),
    Broken(
        FailsWithoutWork,
        "A plan is empty if there is nothing to do.",
        "an_idle_scheduler_plans_nothing",
        raises=(ValueError,),
        honest=ShortestPromptFirst,
    ),
    Broken(
        RefusesPreemptedSequences,
        "The queue limit applies only to new sequences.",
        "a_full_queue_accepts_preempted_sequences",
        raises=(QueueFull,),
        honest=ShortestPromptFirst,
    ),
    Broken(
        FailsOnSequencesThatNeverFit,
        "A plan is empty if nothing can run.",
        "a_sequence_that_never_fits_gets_an_empty_step",
        raises=(RuntimeError,),
        honest=ShortestPromptFirst,
    ),
    Broken(
        ExpectsEveryItemInACommit,
        "A failed sequence is not among the committed items.",
        "a_failed_sequence_harms_no_other",
        raises=(ValueError,),
        honest=ShortestPromptFirst,
    ),
)
