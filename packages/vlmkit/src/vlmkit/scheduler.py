"""The default scheduler: who runs next, and with how many tokens.

Continuous batching (Yu et al., 2022, "Orca") with decode first and chunked prefill in one token
budget (Agrawal et al., 2023, arXiv:2308.16369). Pure: it holds sequences and integers, talks to a
cache about room, and knows no clock, no text and no array.
"""

import bisect
import heapq
import itertools
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from vlmkit.errors import QueueFull
from vlmkit.protocols import Cache, EngineLimits
from vlmkit.sequence import Sequence
from vlmkit.step import EncodeItem, Step, WorkItem

Positive = Annotated[int, msgspec.Meta(ge=1)]


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much runs together.

    Attributes:
        max_step_tokens: tokens computed in one step; smaller keeps running answers fluent while a
            long prompt is read, larger reads prompts faster.
        max_running: sequences with room in the cache at once; the engine may allow fewer.
        max_waiting: sequences in the queue before a request is refused.
        encoder_budget_tokens: image tokens that are being encoded at once, but always at least one
            image.
    """

    max_step_tokens: Positive = 1024
    max_running: Positive = 256
    max_waiting: Positive = 1024
    encoder_budget_tokens: Positive = 4096


@dataclass(slots=True)
class _Draft:
    """A step in the making, and what is left of its budgets.

    Attributes:
        num_tokens_left: tokens that it may yet compute.
        num_encoder_tokens_left: image tokens that it may yet have encoded.
        is_encoder_idle: whether nothing is being encoded before this step.
    """

    num_tokens_left: int
    num_encoder_tokens_left: int
    is_encoder_idle: bool
    items: list[WorkItem] = field(default_factory=list)
    encodes: list[EncodeItem] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    num_prefills: int = 0


class ContinuousScheduler:
    """Serves by priority, then first come first served; gives up the last comer's room first."""

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self.settings = settings or SchedulerSettings()
        self._ranks: dict[Sequence, tuple[int, int]] = {}
        self._arrivals = itertools.count()
        self._waiting: list[tuple[tuple[int, int], Sequence]] = []
        self._followers: dict[Sequence, list[Sequence]] = {}
        self._running: list[Sequence] = []
        self._parked: list[Sequence] = []  # held without a place; they wait when they are let go
        self._num_removed = 0  # entries of the heap whose sequence is gone
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
        """Queue a new sequence; see :meth:`protocols.Scheduler.add`."""
        if self.num_waiting >= self.settings.max_waiting:
            raise QueueFull(
                f"{self.settings.max_waiting} requests are waiting already",
                hint="try again later",
            )
        self._ranks[sequence] = (sequence.priority, next(self._arrivals))
        leader = sequence.leader
        if leader in self._ranks and leader.is_prefilling:
            self._followers.setdefault(leader, []).append(sequence)
        else:
            self._wait(sequence)

    def plan(self, cache: Cache) -> Step:
        """Choose the next step: decodes, then prefills under way, then newcomers."""
        limits = cache.limits
        draft = self._new_draft()
        self._unpark()
        mixes = limits.mixes_prefill_and_decode
        self._admit_urgent(draft, cache)
        if mixes or not self._is_prefill_turn:
            self._plan_decodes(draft, cache)
        if mixes or not draft.items:
            self._plan_prefills(draft, cache)
            self._admit(draft, cache)
        if not draft.items:  # not its turn, or a newcomer whose prompt was cached but for a token
            self._plan_decodes(draft, cache)
        self._is_prefill_turn = not draft.num_prefills
        return Step(tuple(draft.encodes), tuple(draft.items), tuple(draft.preempted))

    def commit(self, step: Step) -> None:
        """Note that a step was computed."""
        for item in step.items:
            item.sequence.num_computed_tokens = item.stop
            if item.sequence in self._followers and item.stop >= item.sequence.num_prompt_tokens:
                self._free_followers(item.sequence)

    def remove(self, sequence: Sequence, cache: Cache) -> None:
        """Forget a sequence that ended, and release its room."""
        if self._ranks.pop(sequence, None) is None:
            return
        self._free_followers(sequence)
        if sequence in self._running:
            self._running.remove(sequence)
            cache.release(sequence)
        elif sequence in self._parked:
            self._parked.remove(sequence)
        elif not self._unfollow(sequence):
            self._num_removed += 1
            self._compact()

    def _new_draft(self) -> _Draft:
        """Return an empty step, with the encoder's budget less what it is busy with."""
        busy = {
            (sequence.tenant, slot.digest): slot.num_features
            for sequence in self._running
            for slot in map(sequence.prompt.images.__getitem__, sequence.encoding)
        }
        num_left = self.settings.encoder_budget_tokens - sum(busy.values())
        return _Draft(self.settings.max_step_tokens, num_left, is_encoder_idle=not busy)

    def _plan_decodes(self, draft: _Draft, cache: Cache) -> None:
        for sequence in list(self._running):
            if sequence.is_held or sequence.is_prefilling or draft.num_tokens_left < 1:
                continue
            if sequence in draft.preempted or not self._make_room(sequence, draft, cache):
                continue
            draft.items.append(WorkItem(sequence, len(sequence) - 1, 1, wants_logits=True))
            draft.num_tokens_left -= 1

    def _plan_prefills(self, draft: _Draft, cache: Cache) -> None:
        for sequence in list(self._running):
            if sequence.is_prefilling and not sequence.is_held:
                self._add_chunk(sequence, draft, cache.limits)

    def _admit_urgent(self, draft: _Draft, cache: Cache) -> None:
        """Let newcomers take the places of less urgent sequences, before those are planned."""
        while (sequence := self._head()) is not None and self._running:
            if sequence.priority >= self._running[-1].priority or sequence in draft.preempted:
                return
            if not self._place(sequence, draft, cache):
                return

    def _admit(self, draft: _Draft, cache: Cache) -> None:
        """Admit newcomers in order of rank while there is budget and room."""
        while draft.num_tokens_left > 0 and (sequence := self._head()) is not None:
            if sequence in draft.preempted or not self._place(sequence, draft, cache):
                return
            if sequence.is_prefilling:
                self._add_chunk(sequence, draft, cache.limits)

    def _place(self, sequence: Sequence, draft: _Draft, cache: Cache) -> bool:
        """Give the head of the queue a place, sending held and less urgent ones away if need be."""
        num_places = min(self.settings.max_running, cache.limits.max_sequences)
        num_cached: int | None = None
        while len(self._running) >= num_places or (num_cached := cache.admit(sequence)) is None:
            victim = self._victim()
            if victim is None or not (victim.is_held or victim.priority > sequence.priority):
                return False
            self._preempt(victim, draft, cache)
        heapq.heappop(self._waiting)
        sequence.num_computed_tokens = num_cached
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = num_cached
        bisect.insort(self._running, sequence, key=self._ranks.__getitem__)
        return True

    def _add_chunk(self, sequence: Sequence, draft: _Draft, limits: EngineLimits) -> None:
        """Put the next chunk of a prompt into the step, if there is budget for one."""
        if draft.num_tokens_left < 1:
            return
        start = sequence.num_computed_tokens
        longest = min(draft.num_tokens_left, limits.max_chunk_tokens)
        stop = _uncut(sequence, start, min(len(sequence), start + longest))
        if _is_encoding(sequence, start, stop):
            return
        stop = self._within_encoder_budget(sequence, start, stop, draft)
        if stop == start or (stop - start > draft.num_tokens_left and draft.num_prefills):
            return
        for image in _images_to_encode(sequence, start, stop):
            draft.encodes.append(EncodeItem(sequence, image))
            draft.num_encoder_tokens_left -= sequence.prompt.images[image].num_features
        wants_logits = stop == len(sequence)
        draft.items.append(WorkItem(sequence, start, stop - start, wants_logits))
        draft.num_tokens_left -= stop - start
        draft.num_prefills += 1

    def _within_encoder_budget(
        self, sequence: Sequence, start: int, stop: int, draft: _Draft
    ) -> int:
        """Shorten a chunk so that it stops before the first image that is over the budget."""
        left = draft.num_encoder_tokens_left
        is_first = draft.is_encoder_idle and not draft.encodes
        for image in _images_to_encode(sequence, start, stop):
            slot = sequence.prompt.images[image]
            left -= slot.num_features
            if left < 0 and not is_first:
                cut = _uncut(sequence, start, max(start, slot.start), may_grow=False)
                must_go = draft.is_encoder_idle and not draft.num_prefills
                return stop if cut == start and must_go else cut
            is_first = False
        return stop

    def _make_room(self, sequence: Sequence, draft: _Draft, cache: Cache) -> bool:
        """Reserve one more token, sending others away if need be; False if it went itself."""
        while not cache.reserve(sequence, len(sequence)):
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
        self._running.remove(sequence)
        cache.release(sequence)
        sequence.num_computed_tokens = 0
        sequence.features.clear()
        draft.preempted.append(sequence)
        if sequence.is_held:
            self._parked.append(sequence)
        else:
            self._wait(sequence)

    def _unpark(self) -> None:
        """Queue those again whose readers have caught up."""
        for sequence in [s for s in self._parked if not s.is_held]:
            self._parked.remove(sequence)
            self._wait(sequence)

    def _wait(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (self._ranks[sequence], sequence))

    def _head(self) -> Sequence | None:
        """Return the next in the queue that may run, dropping those that are gone."""
        while self._waiting:
            sequence = self._waiting[0][1]
            if sequence in self._ranks:
                return sequence
            heapq.heappop(self._waiting)
            self._num_removed -= 1
        return None

    def _compact(self) -> None:
        """Keep the heap from growing with cancelled requests."""
        if self._num_removed > 64 and self._num_removed > len(self._waiting) // 2:
            self._waiting = [entry for entry in self._waiting if entry[1] in self._ranks]
            heapq.heapify(self._waiting)
            self._num_removed = 0

    def _free_followers(self, leader: Sequence) -> None:
        for follower in self._followers.pop(leader, ()):
            self._wait(follower)

    def _unfollow(self, sequence: Sequence) -> bool:
        group = self._followers.get(sequence.leader, []) if sequence.leader else []
        if sequence not in group:
            return False
        group.remove(sequence)
        return True


def _uncut(sequence: Sequence, start: int, stop: int, *, may_grow: bool = True) -> int:
    """Move the end of a chunk out of any atomic span: before it, or else past it."""
    for span in sequence.atomic_spans:
        if span.start < stop < span.stop:
            return span.start if span.start > start or not may_grow else span.stop
    return stop


def _images_to_encode(sequence: Sequence, start: int, stop: int) -> list[int]:
    """Return the images that a chunk touches and whose features are not there yet."""
    return [
        index
        for index, slot in enumerate(sequence.prompt.images)
        if slot.start < stop and slot.stop > start and index not in sequence.features
    ]


def _is_encoding(sequence: Sequence, start: int, stop: int) -> bool:
    """Tell whether a chunk touches an image that is being encoded."""
    slots = (sequence.prompt.images[image] for image in sequence.encoding)
    return any(slot.start < stop and slot.stop > start for slot in slots)
