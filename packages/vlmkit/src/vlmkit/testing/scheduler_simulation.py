"""A loop without an engine: plans, checks every rule of a step, and answers with made-up tokens."""

from collections.abc import Mapping

import numpy as np

from vlmkit.block_pool import BlockPool
from vlmkit.encodings import waits
from vlmkit.protocols import EngineLimits, ImageFeatures, Scheduler
from vlmkit.sequence import Sequence
from vlmkit.step import EncodeItem, Step, WorkItem


class StrictCache:
    """A cache of no content that counts room exactly; see :class:`vlmkit.protocols.Cache`."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        block_tokens = max(1, limits.prefix_block_tokens)
        self.pool = BlockPool(
            limits.capacity_tokens // block_tokens,
            block_tokens,
            shares_prefixes=limits.prefix_block_tokens > 0,
        )
        self.reserved: dict[Sequence, int] = {}
        self.computed: dict[Sequence, int] = {}

    @property
    def limits(self) -> EngineLimits:
        """What was given at the start."""
        return self._limits

    def admit(self, sequence: Sequence) -> int | None:
        """Make room for all present tokens and one more."""
        if len(self.reserved) == self._limits.max_sequences:
            return None
        if (num_cached := self.pool.admit(sequence)) is None:
            return None
        self.reserved[sequence] = len(sequence) + 1
        self.computed[sequence] = num_cached
        return num_cached

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens``."""
        if not self.pool.reserve(sequence, num_tokens):
            return False
        self.reserved[sequence] = max(num_tokens, self.reserved[sequence])
        return True

    def truncate(self, sequence: Sequence, num_tokens: int) -> int:
        """Forget everything after the first ``num_tokens``; return how many are kept."""
        num_kept = self.pool.truncate(sequence, num_tokens)
        self.computed[sequence] = self.reserved[sequence] = num_kept
        return num_kept

    def release(self, sequence: Sequence) -> None:
        """Give up a sequence's room."""
        self.pool.release(sequence)
        del self.reserved[sequence], self.computed[sequence]

    def compute(self, item: WorkItem) -> None:
        """Note that an item's tokens are in the cache."""
        self.computed[item.sequence] = item.stop
        self.pool.commit(item.sequence, item.stop)


class Simulation:
    """Runs sequences through a scheduler, step by step.

    Args:
        scheduler: what is tested.
        limits: of the engine that is played.
        encoder_steps: how many more steps run before an image that a step names is encoded.

    Attributes:
        trace: every step so far, as ``(index of sequence, start, stop)`` of its items.
        unfinished: sequences that were added and have not ended.
    """

    def __init__(
        self, scheduler: Scheduler, limits: EngineLimits, *, encoder_steps: int = 0
    ) -> None:
        self.scheduler = scheduler
        self.cache = StrictCache(limits)
        self.unfinished: list[Sequence] = []
        self.trace: list[list[tuple[int, int, int]]] = []
        self.encoder_steps = encoder_steps
        self._numbers: dict[Sequence, int] = {}
        self._encoding: dict[EncodeItem, int] = {}  # the steps that are left for each image

    def add(self, sequence: Sequence) -> None:
        """Hand a sequence to the scheduler."""
        self._numbers[sequence] = len(self._numbers)
        self.unfinished.append(sequence)
        self.scheduler.add(sequence)

    def end(self, sequence: Sequence) -> None:
        """Take a sequence out, finished or not."""
        self.unfinished.remove(sequence)
        self.scheduler.remove(sequence, self.cache)
        self._forget(sequence)
        assert sequence not in self.cache.reserved, "a sequence that ended keeps its room"

    def step(self) -> Step:
        """Plan one step, check it, play it, and end who is done."""
        step = self.scheduler.plan(self.cache)
        self._check(step)
        self._encode(step)
        items = tuple(item for item in step.items if not waits(item))
        for item in items:
            check_features(item)
            self.cache.compute(item)
        self.scheduler.commit(Step(step.encodes, items, step.preempted))
        for item in items:
            assert item.sequence.num_computed_tokens == item.stop, "commit moved to another place"
            if item.wants_logits:
                self._answer(item.sequence)
        self.cache.pool.check_integrity()
        self.trace.append([(self._numbers[i.sequence], i.start, i.stop) for i in items])
        return step

    def run(self) -> None:
        """Step until every sequence has ended; fail if nothing moves."""
        while self.unfinished:
            is_encoding = bool(self._encoding)
            moves = self.step().items or is_encoding
            assert moves, f"nothing runs, but {len(self.unfinished)} are unfinished"

    def check_empty(self) -> None:
        """Fail unless nothing is left of anyone."""
        assert self.scheduler.num_waiting == self.scheduler.num_running == 0
        assert self.cache.pool.num_free_blocks == self.cache.pool.num_blocks

    def _encode(self, step: Step) -> None:
        """Let the encoder go on, and let it begin with the step's images."""
        for encode in step.encodes:
            sequence, image = encode
            if image not in sequence.features:
                sequence.encoding.add(image)
                self._encoding.setdefault(encode, self.encoder_steps)
        for sequence in step.preempted:
            self._forget(sequence)
        for encode, num_steps in list(self._encoding.items()):
            self._encoding[encode] = num_steps - 1
            if num_steps == 0:
                self._finish(encode)

    def _finish(self, encode: EncodeItem) -> None:
        sequence, image = encode
        slot = sequence.prompt.images[image]
        rows = np.zeros((slot.num_features, 1))
        sequence.features[image] = ImageFeatures(slot.num_features, rows)
        sequence.encoding.discard(image)
        del self._encoding[encode]

    def _forget(self, sequence: Sequence) -> None:
        for image in sequence.encoding:
            del self._encoding[EncodeItem(sequence, image)]
        sequence.encoding.clear()

    def _answer(self, sequence: Sequence) -> None:
        sequence.output_ids.append(100 + len(sequence.output_ids))
        if len(sequence.output_ids) == sequence.max_tokens:
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
    """Fail if a work item breaks a rule of :mod:`vlmkit.step` or :class:`EngineLimits`."""
    sequence = item.sequence
    assert sequence in cache.reserved, "a sequence runs without room"
    assert item.start == sequence.num_computed_tokens == cache.computed[sequence], (
        "an item starts elsewhere than after the tokens that are in the cache"
    )
    assert 1 <= item.num_tokens <= cache.limits.max_chunk_tokens, "a chunk is empty or too long"
    assert item.stop <= min(len(sequence), cache.reserved[sequence]), (
        "tokens without room: ask cache.reserve() before each step of an answer"
    )
    assert item.wants_logits == (item.stop == len(sequence)), "logits are for the newest token"
    assert not sequence.is_held, "a held sequence runs"
    for span in sequence.atomic_spans:
        assert not span.start < item.start < span.stop, "a chunk starts inside an atomic span"
        assert not span.start < item.stop < span.stop, "a chunk ends inside an atomic span"


def check_features(item: WorkItem) -> None:
    """Fail unless every image that an item touches was encoded."""
    features: Mapping[int, ImageFeatures] = item.sequence.features
    for index, slot in enumerate(item.sequence.prompt.images):
        if slot.start < item.stop and slot.stop > item.start:
            assert index in features, "an image is computed before it is encoded"
