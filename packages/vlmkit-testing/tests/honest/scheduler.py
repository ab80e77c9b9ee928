"""A correct scheduler that shares no code with ours, and states its own order."""

from collections.abc import Iterable

from vlmkit.errors import QueueFull
from vlmkit.interfaces.engine import Admission, Cache, EngineLimits
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import EncodeItem, Step, WorkItem
from vlmkit.kit import prefix


class ShortestPromptFirst:
    """Runs the shortest prompt first, and preempts the longest if there is no room.

    It uses no drafts. If the engine does not mix, steps of prompts and answers alternate.
    """

    ignores = frozenset({"priority", "arrival"})
    max_waiting = 64

    def __init__(self) -> None:
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._has_read = False  # the last step computed a prompt

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, sequence: Sequence) -> None:
        if len(self._waiting) >= self.max_waiting:
            raise QueueFull("too many are waiting", hint="try again later")
        self._waiting.append(sequence)

    def plan(self, cache: Cache) -> Step:
        mixes = cache.limits.mixes_prefill_and_decode
        encodes: list[EncodeItem] = []
        preempted: list[Sequence] = []
        items: list[WorkItem] = []
        if mixes or self._has_read:
            items = self._answers(cache, preempted)
        if mixes or not items:
            items += self._chunks(cache, encodes, preempted, 64 if mixes else 1)
        if not items:
            items = self._answers(cache, preempted)
        return Step(tuple(encodes), tuple(items), tuple(preempted))

    def commit(self, step: Step, duration_s: float) -> None:
        self._has_read = any(item.sequence.is_prefilling for item in step.items)
        for item in step.items:
            item.sequence.num_computed_tokens = item.stop

    def remove(self, sequence: Sequence, cache: Cache) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
            cache.release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def _answers(self, cache: Cache, preempted: list[Sequence]) -> list[WorkItem]:
        items = []
        for sequence in _by_length(self._running):
            if sequence.is_held or sequence.is_prefilling or sequence not in self._running:
                continue
            while sequence in self._running and not cache.reserve(sequence, len(sequence)):
                self._preempt(self._held() or _by_length(self._running)[-1], cache, preempted)
            if sequence in self._running:
                items.append(WorkItem(sequence, len(sequence) - 1, 1, num_rows=1))
        return items

    def _chunks(
        self, cache: Cache, encodes: list[EncodeItem], preempted: list[Sequence], most: int
    ) -> list[WorkItem]:
        readers = [s for s in _by_length(self._running) if s.is_prefilling and not s.is_held]
        items = [chunk for s in readers[:most] if (chunk := _chunk(s, cache.limits, encodes))]
        for sequence in _by_length(self._waiting):
            if len(items) == most:
                break
            if sequence.is_held or sequence in preempted or self._is_coming(sequence, cache.limits):
                continue
            if not self._admit(sequence, cache, preempted):
                break
            if sequence.is_prefilling and (chunk := _chunk(sequence, cache.limits, encodes)):
                items.append(chunk)
        return items

    def _admit(self, sequence: Sequence, cache: Cache, preempted: list[Sequence]) -> bool:
        admission: Admission | None = None
        while (admission := cache.admit(sequence)) is None:
            if (held := self._held()) is None:
                return False
            self._preempt(held, cache, preempted)
        sequence.num_computed_tokens = admission.num_cached
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = admission.num_cached
        self._waiting.remove(sequence)
        self._running.append(sequence)
        return True

    def _held(self) -> Sequence | None:
        return next((sequence for sequence in self._running if sequence.is_held), None)

    def _is_coming(self, sequence: Sequence, limits: EngineLimits) -> bool:
        """Return whether another sequence computes a prefix that this one could share."""
        for reader in self._running:
            if not limits.prefix_block_tokens or not reader.is_prefilling:
                continue
            num_alike = min(prefix.num_alike(sequence, reader), sequence.first_row)
            num_shared = prefix.whole(sequence, num_alike, limits.prefix_block_tokens)
            rests = reader.is_held or reader.encoding
            if reader.num_computed_tokens < num_shared and not rests:
                return True
        return False

    def _preempt(self, sequence: Sequence, cache: Cache, preempted: list[Sequence]) -> None:
        self._running.remove(sequence)
        cache.release(sequence)
        sequence.num_computed_tokens = 0
        sequence.features.clear()
        self._waiting.append(sequence)
        preempted.append(sequence)


class HalfOfTheAnswers(ShortestPromptFirst):
    """Computes every other answer in a step where there are many, and the others in the next."""

    def __init__(self) -> None:
        super().__init__()
        self._is_second = False

    def _answers(self, cache: Cache, preempted: list[Sequence]) -> list[WorkItem]:
        items = super()._answers(cache, preempted)
        if len(items) < 3:
            return items
        self._is_second = not self._is_second
        return items[self._is_second :: 2]


def _by_length(sequences: Iterable[Sequence]) -> list[Sequence]:
    return sorted(sequences, key=lambda sequence: sequence.num_prompt_tokens)


def _chunk(sequence: Sequence, limits: EngineLimits, encodes: list[EncodeItem]) -> WorkItem | None:
    """Return the next chunk of a prompt, or None if an image is not encoded yet."""
    start, rows = sequence.num_computed_tokens, sequence.rows
    stop = min(start + limits.max_chunk_tokens, rows.stop)
    if sequence.task != "embed":
        stop = min(stop, max(start, rows.start) + limits.max_item_rows)
    for span in sequence.plan.spans:
        if span.start < stop < span.stop:
            stop = span.start if span.start > start else span.stop
    touched = [
        index
        for index, slot in enumerate(sequence.prompt.media)
        if slot.start < stop and slot.stop > start and index not in sequence.features
    ]
    if sequence.encoding.intersection(touched):
        return None
    encodes += [EncodeItem(sequence, index) for index in touched]
    num_rows = max(0, stop - max(start, rows.start))
    if sequence.task == "embed":
        return WorkItem(sequence, start, stop - start, num_rows, output="hidden")
    return WorkItem(sequence, start, stop - start, num_rows)
