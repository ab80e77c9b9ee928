"""A loop without an engine: plans, checks every rule of a step, and answers with made-up tokens."""

from collections.abc import Callable, Mapping, Sequence as Seq

import numpy as np
from msgspec.structs import replace

from vlmkit.kit.block_pool import BlockPool
from vlmkit.running.encodings import waits
from vlmkit.seams.engine import Admission, EngineLimits
from vlmkit.seams.features import MediaFeatures
from vlmkit.seams.prompt import Span
from vlmkit.seams.scheduler import Scheduler
from vlmkit.seams.sequence import Sequence
from vlmkit.seams.step import EncodeItem, Step, WorkItem
from vlmkit.seams.view import SequenceView
from vlmkit.testing.played_time import Waits, no_time


class StrictCache:
    """A cache of no content that counts room exactly; see :class:`vlmkit.seams.engine.Cache`."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        block_tokens = max(1, limits.prefix_block_tokens)
        self.pool = BlockPool(
            limits.capacity_tokens // block_tokens,
            block_tokens,
            shares_prefixes=limits.prefix_block_tokens > 0,
        )
        self.reserved: dict[SequenceView, int] = {}
        self.computed: dict[SequenceView, int] = {}

    @property
    def limits(self) -> EngineLimits:
        """What was given at the start."""
        return self._limits

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Make room for all present tokens and one more."""
        if len(self.reserved) == self._limits.max_sequences:
            return None
        if (admission := self.pool.admit(sequence)) is None:
            return None
        self.reserved[sequence] = len(sequence) + 1
        self.computed[sequence] = admission.num_cached
        return admission

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens``."""
        if not self.pool.reserve(sequence, num_tokens):
            return False
        self.reserved[sequence] = max(num_tokens, self.reserved[sequence])
        return True

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Let the first ``num_tokens`` be shared."""
        assert num_tokens <= min(len(sequence), self.computed[sequence]), "too much is committed"
        self.pool.commit(sequence, num_tokens)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Forget everything after the first ``num_tokens``."""
        self.pool.truncate(sequence, num_tokens)
        self.computed[sequence] = self.reserved[sequence] = num_tokens

    def release(self, sequence: SequenceView) -> None:
        """Give up a sequence's room."""
        self.pool.release(sequence)
        del self.reserved[sequence], self.computed[sequence]

    def compute(self, item: WorkItem) -> None:
        """Note that an item's tokens are in the cache."""
        self.computed[item.sequence] = item.stop


class Simulation:
    """Runs sequences through a scheduler, step by step.

    Args:
        scheduler: what is tested.
        limits: of the engine that is played.
        encoder_steps: how many more steps run before a medium that a step names is encoded.
        num_drafts: guesses that every answer has before each step; some of them stand.
        cost: the seconds that a step of some items takes.

    Attributes:
        trace: every step so far, as ``(index of sequence, start, stop)`` of its items.
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
        cost: Callable[[Seq[WorkItem]], float] = no_time,
    ) -> None:
        self.scheduler = scheduler
        self.cache = StrictCache(limits)
        self.unfinished: list[Sequence] = []
        self.trace: list[list[tuple[int, int, int]]] = []
        self.encoder_steps = encoder_steps
        self.num_drafts = num_drafts
        self.now_s = 0.0
        self.waits = Waits()
        self._cost = cost
        self._numbers: dict[Sequence, int] = {}
        self._encoding: dict[EncodeItem, int] = {}  # the steps that are left for each medium

    def add(self, sequence: Sequence) -> None:
        """Hand a sequence to the scheduler."""
        self._numbers[sequence] = len(self._numbers)
        self.unfinished.append(sequence)
        self.waits.ask(sequence, self.now_s)
        self.scheduler.add(sequence)

    def end(self, sequence: Sequence) -> None:
        """Take a sequence out, finished or not."""
        self.unfinished.remove(sequence)
        self.scheduler.remove(sequence, self.cache)
        self._forget(sequence)
        assert sequence not in self.cache.reserved, "a sequence that ended keeps its room"

    def step(self) -> Step:
        """Plan one step, check it, play it, and end who is done."""
        for sequence in self.unfinished:
            most = min(self.num_drafts, sequence.max_tokens - len(sequence.output_ids) - 1)
            sequence.drafts = tuple(range(500, 500 + most))
        step = self.scheduler.plan(self.cache)
        self._check(step)
        self._encode(step)
        items = tuple(item for item in step.items if not waits(item))
        for item in items:
            check_features(item)
            self.cache.compute(item)
        standing = tuple(map(self._stands, items))
        if items:
            duration_s = self._cost(items)
            self.now_s += duration_s
            self.scheduler.commit(Step(step.encodes, standing, step.preempted), duration_s)
        for item, kept in zip(items, standing, strict=True):
            sequence = item.sequence
            assert sequence.num_computed_tokens == kept.stop, "commit moved to another place"
            if kept.stop < item.stop:
                self.cache.truncate(sequence, kept.stop)
            num_answered = kept.stop - len(sequence) + 1 if item.num_rows else 0
            self.cache.commit(sequence, min(kept.stop, len(sequence)))
            if sequence.wanted is not None:
                self._take_rows(sequence, sequence.wanted, item.stop)
                continue
            for _ in range(num_answered):
                self._answer(sequence)
        self.cache.pool.check_integrity()
        self.trace.append([(self._numbers[i.sequence], i.start, i.stop) for i in items])
        return step

    def run(self) -> None:
        """Step until every sequence has ended; fail if nothing moves."""
        while self.unfinished:
            is_encoding = bool(self._encoding)
            moves = self.step().items or is_encoding
            assert moves, f"nothing runs, but {len(self.unfinished)} are unfinished"

    @property
    def num_computed_tokens(self) -> int:
        """Tokens that were computed so far, those computed twice included."""
        return sum(stop - start for items in self.trace for _, start, stop in items)

    def check_empty(self) -> None:
        """Fail unless nothing is left of anyone."""
        assert self.scheduler.num_waiting == self.scheduler.num_running == 0
        assert self.cache.pool.num_free_blocks == self.cache.pool.num_blocks

    def _stands(self, item: WorkItem) -> WorkItem:
        """Return an item without the drafts that are wrong: fewer or more of them in turn."""
        num_wrong = (len(self.trace) + item.start) % (len(item.drafts) + 1)
        return replace(item, num_tokens=item.num_tokens - num_wrong, drafts=())

    def _encode(self, step: Step) -> None:
        """Let the encoder go on, and let it begin with the step's media."""
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

    def _check(self, step: Step) -> None:
        runs = [item.sequence for item in step.items]
        assert len(set(runs)) == len(runs), "a sequence has two items in one step"
        assert not set(runs) & set(step.preempted), "a preempted sequence runs"
        for sequence in step.preempted:
            assert sequence not in self.cache.reserved, "a preempted sequence keeps its room"
        for item in step.items:
            check_item(item, self.cache)
        if not self.cache.limits.mixes_prefill_and_decode:
            assert len({item.sequence.is_prefilling for item in step.items}) <= 1, "a step mixes"
        assert self.scheduler.num_running == len(self.cache.reserved), "num_running is wrong"
        num_known = self.scheduler.num_running + self.scheduler.num_waiting
        assert num_known == len(self.unfinished), "a sequence is lost or counted twice"


def check_item(item: WorkItem, cache: StrictCache) -> None:
    """Fail if a work item breaks a rule of :mod:`vlmkit.seams.step` or :class:`EngineLimits`."""
    sequence = item.sequence
    assert sequence in cache.reserved, "a sequence runs without room"
    assert item.start == sequence.num_computed_tokens == cache.computed[sequence], (
        "an item starts elsewhere than after the tokens that are in the cache"
    )
    assert 1 <= item.num_tokens <= cache.limits.max_chunk_tokens, "a chunk is empty or too long"
    num_drafts, num_own = len(item.drafts), item.stop - len(item.drafts)
    assert num_own <= len(sequence) and item.stop <= cache.reserved[sequence], (
        "tokens without room: ask cache.reserve() before each step of an answer"
    )
    assert num_drafts <= cache.limits.max_draft_tokens, "more drafts than the engine takes"
    assert item.drafts == sequence.drafts[:num_drafts], "drafts are not the sequence's"
    assert not num_drafts or num_own == len(sequence), "drafts follow the newest token"
    assert item.start <= sequence.first_row, "a token whose row is wanted was passed over"
    num_rows = max(0, item.stop - max(item.start, sequence.first_row))
    assert item.num_rows == num_rows, "each wanted row has an item, and no other row is asked for"
    is_embed = sequence.task == "embed"
    assert is_embed or num_rows <= cache.limits.max_item_rows, "more rows than the engine gives"
    assert item.output == ("hidden" if is_embed else "logits"), "rows of the wrong kind"
    assert not sequence.is_held, "a held sequence runs"
    for span in sequence.plan.spans:
        assert not span.start < item.start < span.stop, "a chunk starts inside an atomic span"
        assert not span.start < item.stop < span.stop, "a chunk ends inside an atomic span"


def check_features(item: WorkItem) -> None:
    """Fail unless every medium that an item touches was encoded."""
    features: Mapping[int, MediaFeatures] = item.sequence.features
    for index, slot in enumerate(item.sequence.prompt.media):
        if slot.start < item.stop and slot.stop > item.start:
            assert index in features, "a medium is computed before it is encoded"
