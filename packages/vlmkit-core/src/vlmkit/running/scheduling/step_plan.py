"""A step under construction: its items, and what is left of its budgets.

It decides how long a chunk of a prompt is and which media it needs. It knows no queue and no clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import EncodeItem, Step, WorkItem
from vlmkit.settings.scheduler import SchedulerSettings


@dataclass(slots=True)
class StepPlan:
    """A step under construction.

    Attributes:
        num_tokens_left: tokens that the step may still compute.
        num_prompt_tokens_left: prompt tokens among them.
        num_encoder_tokens_left: media tokens that the encoder may still get.
        is_encoder_idle: whether nothing is being encoded before this step.
        items: the work that the step has so far.
        encodes: the media that the step has encoded.
        preempted: the sequences that were preempted for it.
        num_prefills: how many items are chunks of prompts.
    """

    num_tokens_left: int
    num_prompt_tokens_left: int
    num_encoder_tokens_left: int
    is_encoder_idle: bool
    items: list[WorkItem] = field(default_factory=list)
    encodes: list[EncodeItem] = field(default_factory=list)
    preempted: dict[Sequence, None] = field(default_factory=dict)
    num_prefills: int = 0

    def step(self) -> Step:
        """Return the finished step."""
        return Step(tuple(self.encodes), tuple(self.items), tuple(self.preempted))

    def may_prefill(self, limits: EngineLimits) -> bool:
        """Return whether the step may have a chunk, or another one."""
        if self.num_prefills and not limits.mixes_prefill_and_decode:
            return False
        return self.num_tokens_left > 0 and self.num_prompt_tokens_left > 0

    def add_decode(self, sequence: Sequence) -> None:
        """Add the newest token of a sequence."""
        self.items.append(WorkItem(sequence, len(sequence) - 1, 1, num_rows=1))
        self.num_tokens_left -= 1

    def add_chunks(self, running: Iterable[Sequence], limits: EngineLimits) -> None:
        """Add the next chunks of all prompts under way, as far as there is budget."""
        for sequence in running:
            if sequence.is_prefilling and not sequence.is_held:
                self.add_chunk(sequence, limits)

    def add_chunk(self, sequence: Sequence, limits: EngineLimits) -> None:
        """Add the next chunk of a prompt, if there is budget for one."""
        if not self.may_prefill(limits):
            return
        start = sequence.num_computed_tokens
        num_left = min(
            self.num_tokens_left, _extended_to_end(sequence, self.num_prompt_tokens_left)
        )
        longest = min(num_left, limits.max_chunk_tokens)
        stop = _outside_spans(sequence, start, _latest_stop(sequence, start, longest, limits))
        if _is_encoding(sequence, start, stop):
            return
        stop = self._within_encoder_budget(sequence, start, stop)
        if stop == start or (stop - start > num_left and self.num_prefills):
            return
        for index in _media_to_encode(sequence, start, stop):
            self.encodes.append(EncodeItem(sequence, index))
            self.num_encoder_tokens_left -= sequence.prompt.media[index].encoder_tokens
        num_rows = max(0, stop - max(start, sequence.first_row))
        output: Literal["logits", "hidden"] = "hidden" if sequence.task == "embed" else "logits"
        self.items.append(WorkItem(sequence, start, stop - start, num_rows, output=output))
        self.num_tokens_left -= stop - start
        self.num_prompt_tokens_left -= stop - start
        self.num_prefills += 1

    def _within_encoder_budget(self, sequence: Sequence, start: int, stop: int) -> int:
        """Shorten a chunk so that it ends before the first medium that is over the budget."""
        left = self.num_encoder_tokens_left
        is_first = self.is_encoder_idle and not self.encodes
        for index in _media_to_encode(sequence, start, stop):
            slot = sequence.prompt.media[index]
            left -= slot.encoder_tokens
            if left < 0 and not is_first:
                cut = _outside_spans(sequence, start, max(start, slot.start), may_grow=False)
                must_run = self.is_encoder_idle and not self.num_prefills
                return stop if cut == start and must_run else cut
            is_first = False
        return stop


def new_plan(settings: SchedulerSettings, running: Iterable[Sequence]) -> StepPlan:
    """Return an empty step; media under way count against the encoder's budget."""
    busy = {
        (sequence.scope, slot.digest): slot.encoder_tokens
        for sequence in running
        for slot in map(sequence.prompt.media.__getitem__, sequence.encoding)
    }
    num_left = settings.encoder_budget_tokens - sum(busy.values())
    num_tokens = settings.max_step_tokens
    return StepPlan(num_tokens, num_tokens, num_left, is_encoder_idle=not busy)


def _extended_to_end(sequence: Sequence, num_tokens: int) -> int:
    """Return the length of a chunk, up to a quarter longer where that spares another chunk."""
    num_left = sequence.rows.stop - sequence.num_computed_tokens
    return num_left if num_tokens < num_left <= num_tokens * 5 // 4 else num_tokens


def _latest_stop(sequence: Sequence, start: int, longest: int, limits: EngineLimits) -> int:
    """Return the latest position where a chunk may end.

    It ends with the last wanted row, or with as many wanted rows as one item may have.
    """
    rows = sequence.rows
    max_rows = longest if sequence.task == "embed" else limits.max_item_rows
    return min(rows.stop, start + longest, max(start, rows.start) + max_rows)


def _outside_spans(sequence: Sequence, start: int, stop: int, *, may_grow: bool = True) -> int:
    """Move the end of a chunk out of any span that must not be cut: before it, or else past it."""
    for span in sequence.plan.spans:
        if span.start < stop < span.stop:
            return span.start if span.start > start or not may_grow else span.stop
    return stop


def _media_to_encode(sequence: Sequence, start: int, stop: int) -> list[int]:
    """Return the indices of the slots that a chunk touches and that have no features yet."""
    return [
        index
        for index, slot in enumerate(sequence.prompt.media)
        if slot.start < stop and slot.stop > start and index not in sequence.features
    ]


def _is_encoding(sequence: Sequence, start: int, stop: int) -> bool:
    """Return whether a chunk touches a medium that is being encoded."""
    slots = (sequence.prompt.media[index] for index in sequence.encoding)
    return any(slot.start < stop and slot.stop > start for slot in slots)
