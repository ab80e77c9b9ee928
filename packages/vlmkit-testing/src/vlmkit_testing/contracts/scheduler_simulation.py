"""A loop with a simulated engine, which checks every rule of a step."""

from collections.abc import Callable, Iterator, Sequence as Seq
from contextlib import contextmanager

import numpy as np
import pytest
from msgspec.structs import replace

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Span
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import EncodeItem, Step, WorkItem
from vlmkit.running.engine_loop.encoder_queue import waits
from vlmkit_testing.contracts.scheduler_rules import (
    check_books,
    check_encodes,
    check_features,
    check_preempted,
    check_step,
    state_of,
)
from vlmkit_testing.contracts.simulated_time import Waits, no_time
from vlmkit_testing.contracts.strict_cache import StrictCache

MOST_STEPS = 20_000
MAX_CHECKED = 32  # sequences of a long queue that are compared before and after each plan


def goes_well(item: WorkItem) -> bool:  # noqa: ARG001 - as any other fate
    """Return that an item does not fail."""
    return True


class Simulation:
    """Runs sequences through a scheduler, step by step.

    Args:
        scheduler: what is tested.
        limits: of the engine that is played.
        encoder_steps: how many more steps run before a medium that a step names is encoded.
        num_drafts: guesses that every answer has before each step.
        drafts_stand: whether some of them are right; else none ever is.
        repeats: whether a step of answers alone is repeated without a plan, as by a loop that
            overlaps steps.
        succeeds: tells of an item whether it goes well; else its sequence ends with an error.
        cost: the seconds that a step of some items takes.

    Attributes:
        trace: every step so far, as ``(number of the sequence, start, stop)`` of its items.
        unfinished: sequences that were added and have not ended.
        now_s: the clock that steps move.
        waits: what readers waited for.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        limits: EngineLimits,
        *,
        encoder_steps: int = 0,
        num_drafts: int = 0,
        drafts_stand: bool = True,
        repeats: bool = False,
        succeeds: Callable[[WorkItem], bool] = goes_well,
        cost: Callable[[Seq[WorkItem]], float] = no_time,
    ) -> None:
        self.scheduler = scheduler
        self.cache = StrictCache(limits)
        self.unfinished: list[Sequence] = []
        self.trace: list[list[tuple[int, int, int]]] = []
        self.encoder_steps = encoder_steps
        self.num_drafts = num_drafts
        self.drafts_stand = drafts_stand
        self.repeats = repeats
        self._ahead: tuple[WorkItem, ...] = ()  # items that were started before they are planned
        self._succeeds = succeeds
        self.now_s = 0.0
        self.waits = Waits()
        self._cost = cost
        self._numbers: dict[Sequence, int] = {}
        self._num_added = 0
        self._encoding: dict[EncodeItem, int] = {}  # the steps that are left for each medium

    def add(self, sequence: Sequence) -> None:
        """Add a sequence to the scheduler."""
        self._numbers[sequence] = self._num_added
        self._num_added += 1
        self.unfinished.append(sequence)
        self.waits.ask(sequence, self.now_s)
        with self._unchanged([sequence], is_queued=True):
            self.scheduler.add(sequence)
        self._check_counts()

    def end(self, sequence: Sequence) -> None:
        """Remove a sequence, finished or not."""
        with self._unchanged([sequence]):
            self.scheduler.remove(sequence, self.cache)
        self.unfinished.remove(sequence)
        self._check_counts()
        self._forget(sequence)
        del self._numbers[sequence]
        self.cache.first_found.pop(sequence, None)
        assert sequence not in self.cache.reserved, "a sequence that ended keeps its room"

    def step(self) -> Step:
        """Plan, check and run one step, and end finished sequences."""
        for sequence in self.unfinished:
            most = min(self.num_drafts, sequence.max_tokens - len(sequence.output_ids) - 1)
            sequence.drafts = tuple(range(500, 500 + most))
        step = self._repeated() or self._plan()
        self._encode(step)
        items = self._forward(tuple(item for item in step.items if not waits(item)))
        standing = tuple(map(self._stands, items))
        numbers = [self._numbers[item.sequence] for item in items]
        self.trace.append([(n, i.start, i.stop) for n, i in zip(numbers, items, strict=True)])
        if items:
            duration_s = self._cost(items)
            self.now_s += duration_s
            with self._unchanged([item.sequence for item in standing]):
                self.scheduler.commit(Step(step.encodes, standing, step.preempted), duration_s)
            self._start_next(standing)
        for item, kept in zip(items, standing, strict=True):
            assert item.sequence.num_computed_tokens == kept.stop, "commit moved to another place"
            self._take(item, kept)
        check_books(self.unfinished, self.cache)
        self.cache.pool.check_integrity()
        return step

    def run(self) -> None:
        """Step until every sequence has ended; fail if nothing moves."""
        for _ in range(MOST_STEPS):
            if not self.unfinished:
                return
            is_encoding = bool(self._encoding)
            moves = self.step().items or is_encoding
            assert moves, f"nothing runs, but {len(self.unfinished)} are unfinished"
        pytest.fail(f"{len(self.unfinished)} run for ever and never end")

    @property
    def encoding(self) -> frozenset[EncodeItem]:
        """The media that are being encoded."""
        return frozenset(self._encoding)

    @property
    def num_computed_tokens(self) -> int:
        """Tokens computed so far, with repeats."""
        return sum(stop - start for items in self.trace for _, start, stop in items)

    def check_empty(self) -> None:
        """Fail unless no state of any sequence is left."""
        assert self.scheduler.num_waiting == self.scheduler.num_running == 0
        assert self.cache.pool.num_free_blocks == self.cache.pool.num_blocks

    def _plan(self) -> Step:
        """Plan a step, and check it."""
        cache, features = self.cache, [(s, set(s.features)) for s in self.unfinished]
        had_room = list(cache.reserved)
        cache.released.clear()
        cache.is_planning = True
        with self._unchanged(self.unfinished[:MAX_CHECKED]):
            step = self.scheduler.plan(cache)
        cache.is_planning = False
        for sequence, before in features:
            is_there = set(sequence.features) == before
            assert is_there or sequence in step.preempted, "features of a sequence are gone"
        check_preempted(step, had_room, cache)
        check_encodes(step.encodes, cache)
        check_step(step, cache)
        check_books(self.unfinished, cache)
        self._check_counts()
        return step

    def _check_counts(self) -> None:
        """Fail unless each unfinished sequence runs or waits."""
        assert self.scheduler.num_running == len(self.cache.reserved), "num_running is wrong"
        num_known = self.scheduler.num_running + self.scheduler.num_waiting
        assert num_known == len(self.unfinished), "a sequence is lost or counted twice"

    @contextmanager
    def _unchanged(self, sequences: Seq[Sequence], *, is_queued: bool = False) -> Iterator[None]:
        """Fail if a call of the scheduler changes what is not its own.

        Args:
            sequences: those that are checked.
            is_queued: whether they are being queued; then it may set their priority.
        """
        states = [(sequence, state_of(sequence)) for sequence in sequences]
        yield
        for sequence, state in states:
            if is_queued:
                state["priority"] = sequence.priority
            assert state_of(sequence) == state, "a scheduler changed what is not its own"

    def _repeated(self) -> Step | None:
        """Return the step that was started without a plan, if any of its sequences goes on."""
        items, self._ahead = self._ahead, ()
        items = tuple(item for item in items if item.sequence in self.unfinished)
        if not items:
            return None
        step = Step((), items)
        check_step(step, self.cache)
        return step

    def _start_next(self, items: tuple[WorkItem, ...]) -> None:
        """Start the next tokens of all answers, if there is nothing to decide."""
        if not self.repeats or self.scheduler.num_waiting:
            return
        if len(items) != self.scheduler.num_running or not all(map(_gives_one_token, items)):
            return
        more = [item for item in items if _goes_on(item.sequence)]
        if all(self.cache.reserve(item.sequence, item.stop + 1) for item in more):
            self._ahead = tuple(WorkItem(item.sequence, item.stop, 1, 1) for item in more)

    def _forward(self, items: tuple[WorkItem, ...]) -> tuple[WorkItem, ...]:
        """Compute items; end the failed ones and return the others."""
        for item in items:
            check_features(item)
            self.cache.compute(item)
        done = tuple(filter(self._succeeds, items))
        for item in items:
            if item not in done:
                self.end(item.sequence)
        return done

    def _take(self, item: WorkItem, kept: WorkItem) -> None:
        """Commit the accepted part of an item, and append its tokens."""
        sequence = item.sequence
        if kept.stop < item.stop:
            self.cache.truncate(sequence, kept.stop)
        num_answered = kept.stop - len(sequence) + 1 if item.num_rows else 0
        self.cache.commit(sequence, min(kept.stop, len(sequence)))
        for index, slot in enumerate(sequence.prompt.media):
            if slot.stop <= kept.stop:
                sequence.features.pop(index, None)
        if sequence.wanted is not None:
            self._take_rows(sequence, sequence.wanted, item.stop)
            return
        for _ in range(num_answered):
            self._answer(sequence)

    def _stands(self, item: WorkItem) -> WorkItem:
        """Return an item without its rejected drafts, which vary in number."""
        num_drafts = len(item.drafts)
        num_wrong = (len(self.trace) + item.start) % (num_drafts + 1)
        num_wrong = num_wrong if self.drafts_stand else num_drafts
        return replace(item, num_tokens=item.num_tokens - num_wrong, drafts=())

    def _encode(self, step: Step) -> None:
        """Advance the encoder, and start the step's media."""
        for encode in step.encodes:
            sequence, index = encode.sequence, encode.index
            if index not in sequence.features:
                sequence.encoding.add(index)
                self._encoding.setdefault(encode, self.encoder_steps)
        for sequence in step.preempted:
            self._forget(sequence)
        for encode, num_steps in list(self._encoding.items()):
            self._encoding[encode] = num_steps - 1
            if num_steps == 0:
                self._finish(encode)

    def _finish(self, encode: EncodeItem) -> None:
        sequence, index = encode.sequence, encode.index
        slot = sequence.prompt.media[index]
        rows = np.zeros((slot.num_features, 1))
        sequence.features[index] = MediaFeatures(slot.num_features, rows)
        sequence.encoding.discard(index)
        del self._encoding[encode]

    def _forget(self, sequence: Sequence) -> None:
        for index in sequence.encoding:
            del self._encoding[EncodeItem(sequence, index)]
        sequence.encoding.clear()

    def _answer(self, sequence: Sequence) -> None:
        self.waits.token(sequence, self.now_s)
        sequence.output_ids.append(100 + len(sequence.output_ids))
        if len(sequence.output_ids) == sequence.max_tokens:
            self.end(sequence)

    def _take_rows(self, sequence: Sequence, wanted: Span, stop: int) -> None:
        sequence.wanted = Span(max(wanted.start, stop), wanted.stop)
        if stop >= wanted.stop:
            self.end(sequence)


def _gives_one_token(item: WorkItem) -> bool:
    """Return whether an item gives its sequence one token, after which no draft follows."""
    sequence = item.sequence
    is_answer = sequence.wanted is None and not (sequence.drafts or sequence.is_held)
    return is_answer and item.num_rows == 1 and item.stop == len(sequence)


def _goes_on(sequence: Sequence) -> bool:
    """Return whether a sequence has more than the token that is being chosen."""
    return sequence.max_tokens - len(sequence.output_ids) > 1
