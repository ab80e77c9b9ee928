"""The default scheduler: who runs next, and with how many tokens.

Continuous batching (Yu et al., 2022, "Orca") with decode first and chunked prefill (Agrawal et al.,
2023, arXiv:2308.16369) in a budget of time, so that no answer stands still for a prompt. Pure: it
holds sequences and numbers, talks to a cache about room, and knows no clock, no text and no array.
"""

import bisect
import heapq
import itertools
from dataclasses import dataclass, field
from typing import Literal

from vlmkit.errors import QueueFull
from vlmkit.interfaces.engine import Admission, Cache, EngineLimits
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import EncodeItem, Step, WorkItem
from vlmkit.running.scheduling.chunks import is_encoding, latest_stop, media_to_encode, uncut
from vlmkit.running.scheduling.prefill_budget import LEAST_TOKENS, PrefillBudget
from vlmkit.running.scheduling.prefix_sharing import PrefixSharing
from vlmkit.settings.scheduler import SchedulerSettings

MOST_FOLLOWERS = 16  # that a step with work looks past; comparing prompts takes time


@dataclass(slots=True)
class _Draft:
    """A step in the making, and what is left of its budgets.

    Attributes:
        num_tokens_left: tokens that it may yet compute.
        num_prompt_tokens_left: of those, tokens of prompts.
        num_encoder_tokens_left: tokens of media that it may yet have encoded.
        is_encoder_idle: whether nothing is being encoded before this step.
    """

    num_tokens_left: int
    num_prompt_tokens_left: int
    num_encoder_tokens_left: int
    is_encoder_idle: bool
    items: list[WorkItem] = field(default_factory=list)
    encodes: list[EncodeItem] = field(default_factory=list)
    preempted: dict[Sequence, None] = field(default_factory=dict)
    num_prefills: int = 0


class ContinuousScheduler:
    """Serves by priority, then first come first served; gives up the last comer's room first."""

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self.settings = settings or SchedulerSettings()
        self._ranks: dict[Sequence, tuple[int, int]] = {}
        self._arrivals = itertools.count()
        self._waiting: list[tuple[tuple[int, int], Sequence]] = []
        self._beginnings = PrefixSharing()
        self._running: list[Sequence] = []  # by rank
        self._parked: dict[Sequence, None] = {}  # held without a place; they wait when let go
        self._num_removed = 0  # entries of the heap whose sequence is gone
        self._pace = PrefillBudget(self.settings)
        self._waited_s = 0.0  # that answers have waited for prompts since their last tokens
        self._is_prefill_turn = True

    @property
    def max_waiting(self) -> int:
        """Sequences that the queue takes."""
        return self.settings.max_waiting

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._ranks) - len(self._running)

    @property
    def num_running(self) -> int:
        """Sequences with room in the cache."""
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence; see :meth:`vlmkit.interfaces.scheduler.Scheduler.add`."""
        if self.num_waiting >= self.settings.max_waiting:
            raise QueueFull(
                f"{self.settings.max_waiting} requests are waiting already",
                hint="try again later",
            )
        self._ranks[sequence] = (sequence.priority, next(self._arrivals))
        self._wait(sequence)

    def plan(self, cache: Cache) -> Step:
        """Choose the next step: decodes, then prefills under way, then newcomers.

        Where nothing is gained by mixing, it is decodes or one chunk of one prompt: tokens of
        answers are then handed out before a chunk runs, and the first token of one prompt before
        the next one is read.
        """
        draft = self._new_draft()
        for sequence in self._beginnings.let_go():
            self._wait(sequence)
        self._unpark()
        mixes = cache.limits.mixes_prefill_and_decode
        self._admit_urgent(draft, cache)
        is_prefill_turn = self._share_time(draft, mixes=mixes)
        if mixes or not is_prefill_turn:
            self._plan_decodes(draft, cache)
        if mixes or not draft.items:
            self._plan_prefills(draft, cache)
            self._admit(draft, cache)
        if not draft.items:  # not its turn, or a newcomer whose prompt was cached but for a token
            self._plan_decodes(draft, cache)
        self._is_prefill_turn = not draft.num_prefills  # unless it runs: see commit
        return Step(tuple(draft.encodes), tuple(draft.items), tuple(draft.preempted))

    def commit(self, step: Step, duration_s: float) -> None:
        """Note that a step was computed, and learn from the time that it took."""
        if not step.items:
            return
        chunks = []
        for item in step.items:
            if item.sequence.is_prefilling:
                chunks.append(item)
            item.sequence.num_computed_tokens = item.stop
        self._pace.note(sum(item.num_tokens for item in chunks), duration_s)
        is_chunk_alone = len(chunks) == len(step.items)
        self._waited_s = self._waited_s + duration_s if is_chunk_alone else 0.0
        self._is_prefill_turn = True
        for item in chunks:
            if item.stop == len(item.sequence):
                self._beginnings.stop(item.sequence)

    def remove(self, sequence: Sequence, cache: Cache) -> None:
        """Forget a sequence that ended, and release its room."""
        if sequence not in self._ranks:
            return
        if self._leave(sequence):
            cache.release(sequence)
        elif sequence in self._parked:
            del self._parked[sequence]
        elif not self._beginnings.unfollow(sequence):
            self._num_removed += 1
        del self._ranks[sequence]
        self._compact()

    def _new_draft(self) -> _Draft:
        """Return an empty step, with the encoder's budget less what it is busy with."""
        busy = {
            (sequence.scope, slot.digest): slot.encoder_tokens
            for sequence in self._running
            for slot in map(sequence.prompt.media.__getitem__, sequence.encoding)
        }
        num_left = self.settings.encoder_budget_tokens - sum(busy.values())
        num_tokens = self.settings.max_step_tokens
        return _Draft(num_tokens, num_tokens, num_left, is_encoder_idle=not busy)

    def _share_time(self, draft: _Draft, *, mixes: bool) -> bool:
        """Leave prompts the time that running answers can spare; tell whether it is their turn."""
        if all(sequence.is_held or sequence.is_prefilling for sequence in self._running):
            return True
        waited_s = 0.0 if mixes else self._waited_s
        num_tokens = self._pace.num_prompt_tokens(waited_s)
        draft.num_prompt_tokens_left = max(num_tokens, LEAST_TOKENS)
        return self._is_prefill_turn and (not waited_s or num_tokens >= LEAST_TOKENS)

    def _plan_decodes(self, draft: _Draft, cache: Cache) -> None:
        for sequence in list(self._running):
            if sequence.is_held or sequence.is_prefilling or draft.num_tokens_left < 1:
                continue
            stop = len(sequence)
            if sequence in draft.preempted or not self._make_room(sequence, stop, draft, cache):
                continue
            draft.items.append(WorkItem(sequence, stop - 1, 1, num_rows=1))
            draft.num_tokens_left -= 1
        # Where chunks run one after the other, drafts pay for an answer that is alone.
        if cache.limits.mixes_prefill_and_decode or len(draft.items) == 1:
            draft.items = [
                self._with_drafts(item, draft, cache) if item.sequence.drafts else item
                for item in draft.items
            ]

    def _with_drafts(self, item: WorkItem, draft: _Draft, cache: Cache) -> WorkItem:
        """Lengthen an item by its sequence's drafts, where budget and room are left over."""
        sequence = item.sequence
        drafts = sequence.drafts[: min(cache.limits.max_draft_tokens, draft.num_tokens_left)]
        if not drafts or not cache.reserve(sequence, item.stop + len(drafts)):
            return item
        draft.num_tokens_left -= len(drafts)
        num_tokens = 1 + len(drafts)
        return WorkItem(sequence, item.start, num_tokens, num_tokens, drafts)

    def _plan_prefills(self, draft: _Draft, cache: Cache) -> None:
        if len(draft.items) == len(self._running):  # all answer
            return
        for sequence in list(self._running):
            if sequence.is_prefilling and not sequence.is_held:
                self._add_chunk(sequence, draft, cache.limits)

    def _admit_urgent(self, draft: _Draft, cache: Cache) -> None:
        """Let newcomers take the places of less urgent sequences, before those are planned."""
        while (sequence := self._head(cache.limits)) is not None and self._running:
            if sequence.priority >= self._running[-1].priority or sequence in draft.preempted:
                return
            if not self._place(sequence, draft, cache):
                return

    def _admit(self, draft: _Draft, cache: Cache) -> None:
        """Admit newcomers in order of rank while there is budget and room."""
        limits = cache.limits
        while _may_read(draft, limits):
            most_followers = MOST_FOLLOWERS if draft.items else len(self._waiting)
            if (sequence := self._head(limits, most_followers)) is None:
                return
            if sequence in draft.preempted or not self._place(sequence, draft, cache):
                return
            if sequence.is_prefilling:
                self._add_chunk(sequence, draft, limits)

    def _place(self, sequence: Sequence, draft: _Draft, cache: Cache) -> bool:
        """Give the head of the queue a place, sending held and less urgent ones away if need be."""
        num_places = min(self.settings.max_running, cache.limits.max_sequences)
        admission: Admission | None = None
        while len(self._running) >= num_places or (admission := cache.admit(sequence)) is None:
            victim = self._victim()
            if victim is None or not (victim.is_held or victim.priority > sequence.priority):
                return False
            self._preempt(victim, draft, cache)
        heapq.heappop(self._waiting)
        sequence.num_computed_tokens = admission.num_cached
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = admission.num_cached
        bisect.insort(self._running, sequence, key=self._ranks.__getitem__)
        if sequence.is_prefilling:
            self._beginnings.start(sequence)
        return True

    def _add_chunk(self, sequence: Sequence, draft: _Draft, limits: EngineLimits) -> None:
        """Put the next chunk of a prompt into the step, if there is budget for one."""
        if not _may_read(draft, limits):
            return
        start = sequence.num_computed_tokens
        num_left = min(draft.num_tokens_left, _with_its_end(sequence, draft.num_prompt_tokens_left))
        longest = min(num_left, limits.max_chunk_tokens)
        stop = uncut(sequence, start, latest_stop(sequence, start, longest, limits))
        if is_encoding(sequence, start, stop):
            return
        stop = self._within_encoder_budget(sequence, start, stop, draft)
        if stop == start or (stop - start > num_left and draft.num_prefills):
            return
        for index in media_to_encode(sequence, start, stop):
            draft.encodes.append(EncodeItem(sequence, index))
            draft.num_encoder_tokens_left -= sequence.prompt.media[index].encoder_tokens
        num_rows = max(0, stop - max(start, sequence.first_row))
        output: Literal["logits", "hidden"] = "hidden" if sequence.task == "embed" else "logits"
        draft.items.append(WorkItem(sequence, start, stop - start, num_rows, output=output))
        draft.num_tokens_left -= stop - start
        draft.num_prompt_tokens_left -= stop - start
        draft.num_prefills += 1

    def _within_encoder_budget(
        self, sequence: Sequence, start: int, stop: int, draft: _Draft
    ) -> int:
        """Shorten a chunk so that it stops before the first medium that is over the budget."""
        left = draft.num_encoder_tokens_left
        is_first = draft.is_encoder_idle and not draft.encodes
        for index in media_to_encode(sequence, start, stop):
            slot = sequence.prompt.media[index]
            left -= slot.encoder_tokens
            if left < 0 and not is_first:
                cut = uncut(sequence, start, max(start, slot.start), may_grow=False)
                must_go = draft.is_encoder_idle and not draft.num_prefills
                return stop if cut == start and must_go else cut
            is_first = False
        return stop

    def _make_room(self, sequence: Sequence, stop: int, draft: _Draft, cache: Cache) -> bool:
        """Reserve room up to ``stop``, sending others away if need be; False if it went itself."""
        while not cache.reserve(sequence, stop):
            victim = self._victim() or sequence
            self._preempt(victim, draft, cache)
            if victim is sequence:
                return False
        return True

    def _victim(self) -> Sequence | None:
        """Return who gives its place up first: one that has no use for it, or the last comer."""
        last = self._running[-1] if self._running else None
        return next((s for s in reversed(self._running) if s.is_held), last)

    def _preempt(self, sequence: Sequence, draft: _Draft, cache: Cache) -> None:
        """Take a sequence's room; it will be computed again from its tokens."""
        self._leave(sequence)
        cache.release(sequence)
        sequence.num_computed_tokens = 0
        sequence.features.clear()
        draft.preempted[sequence] = None
        if sequence.is_held:
            self._parked[sequence] = None
        else:
            self._wait(sequence)

    def _unpark(self) -> None:
        """Queue those again whose readers have caught up."""
        for sequence in [s for s in self._parked if not s.is_held]:
            del self._parked[sequence]
            self._wait(sequence)

    def _leave(self, sequence: Sequence) -> bool:
        """Take a sequence's place among those that run; False if it has none."""
        rank = self._ranks[sequence]
        place = bisect.bisect_left(self._running, rank, key=self._ranks.__getitem__)
        if self._running[place : place + 1] != [sequence]:
            return False
        del self._running[place]
        self._beginnings.stop(sequence)
        return True

    def _wait(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (self._ranks[sequence], sequence))

    def _head(self, limits: EngineLimits, most_followers: int = MOST_FOLLOWERS) -> Sequence | None:
        """Return the next in the queue that may run, past those that are gone or have to follow."""
        num_followers = 0
        while self._waiting and num_followers < most_followers:
            sequence = self._waiting[0][1]
            if sequence not in self._ranks:
                self._num_removed -= 1
            elif self._beginnings.follow(sequence, limits.prefix_block_tokens):
                num_followers += 1
            else:
                return sequence
            heapq.heappop(self._waiting)
        return None

    def _compact(self) -> None:
        """Keep the heap from growing with cancelled requests."""
        if self._num_removed > 64 and self._num_removed > len(self._waiting) // 2:
            self._waiting = [entry for entry in self._waiting if entry[1] in self._ranks]
            heapq.heapify(self._waiting)
            self._num_removed = 0


def _with_its_end(sequence: Sequence, num_tokens: int) -> int:
    """Return the length of a chunk, longer by a quarter at most where that spares another one."""
    num_left = sequence.rows.stop - sequence.num_computed_tokens
    return num_left if num_tokens < num_left <= num_tokens * 5 // 4 else num_tokens


def _may_read(draft: _Draft, limits: EngineLimits) -> bool:
    """Tell whether a step may have a chunk, or another one."""
    if draft.num_prefills and not limits.mixes_prefill_and_decode:
        return False
    return draft.num_tokens_left > 0 and draft.num_prompt_tokens_left > 0
