"""Broken engines that start steps ahead, derived from the mock engine."""

from collections.abc import Callable, Sequence as Seq
from typing import Any

import numpy as np

from broken.broken import Broken
from broken.engine_subjects import OnMock
from vlmkit.errors import EngineError
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit_mock.engine import MockEngine


class SortsTheTokensOfAStepAhead(MockEngine):
    """Orders items by length, as many do, but not their tokens."""

    def forward_next(self, items: Seq[WorkItem], token_ids: Any) -> StepOutput:
        order = np.argsort([item.stop for item in items])
        return super().forward_next(items, token_ids[order])


class RepeatsTheNewestToken(MockEngine):
    """Computes the newest token that the host knows."""

    def forward_next(self, items: Seq[WorkItem], token_ids: Any) -> StepOutput:
        known = [item.sequence.tokens(item.start - 1, item.start)[0] for item in items]
        return super().forward_next(items, np.array(known))


class ReturnsTheRowsOfTheLastStep(MockEngine):
    last = StepOutput()

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        self.last = super().forward(items)
        return self.last

    def forward_next(self, items: Seq[WorkItem], token_ids: Any) -> StepOutput:
        super().forward_next(items, token_ids)
        return self.last


class ForgetsStepsAhead(MockEngine):
    """Computes rows, but leaves the cache as it was."""

    def forward_next(self, items: Seq[WorkItem], token_ids: Any) -> StepOutput:
        output = super().forward_next(items, token_ids)
        for item in items:
            del self._states[item.sequence].fingerprints[item.start :]
        return output


class RefusesToDiscard(MockEngine):
    """Takes tokens back only if they are drafts."""

    num_ahead: dict[SequenceView, int]

    def forward_next(self, items: Seq[WorkItem], token_ids: Any) -> StepOutput:
        self.num_ahead = {item.sequence: item.start for item in items}
        return super().forward_next(items, token_ids)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        if self.num_ahead.get(sequence) == num_tokens:
            raise EngineError("these tokens are no drafts")
        super().truncate(sequence, num_tokens)


class WaitsForTheEndOfStepsAhead(MockEngine):
    """Keeps the room of a sequence until its step is read."""

    started: Seq[WorkItem] = ()

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        self.started = ()
        return super().forward(items)

    def forward_next(self, items: Seq[WorkItem], token_ids: Any) -> StepOutput:
        self.started = items
        return super().forward_next(items, token_ids)

    def release(self, sequence: SequenceView) -> None:
        if any(item.sequence is sequence for item in self.started):
            raise EngineError("a step of this sequence runs")
        super().release(sequence)


class ReadsWhenAsked(MockEngine):
    """Copies an array only when the host waits, from memory that the next step overwrites."""

    def __init__(self, settings: Any = None) -> None:
        super().__init__(settings)
        self.arrays: list[Any] = []

    def start_read(self, array: Any) -> Callable[[], Any]:
        self.arrays.append(array)
        return lambda: array

    def forward_next(self, items: Seq[WorkItem], token_ids: Any) -> StepOutput:
        output = super().forward_next(items, token_ids)
        for array in self.arrays:
            array[:] = 0
        return output


class ReadsItsOutputLate(MockEngine):
    """Returns rows in one array, and reads that when the host waits."""

    rows: Any = None

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        return self._placed(super().forward(items))

    def forward_next(self, items: Seq[WorkItem], token_ids: Any) -> StepOutput:
        return self._placed(super().forward_next(items, token_ids))

    def _placed(self, output: StepOutput) -> StepOutput:
        if output.logits is None:
            return output
        logits = np.asarray(output.logits)
        if self.rows is None or len(self.rows) < len(logits):
            self.rows = np.zeros((8, logits.shape[1]), logits.dtype)
        self.rows[: len(logits)] = logits
        return StepOutput(self.rows[: len(logits)], output.hidden)


class ReadsIntoOneBuffer(MockEngine):
    """Copies what is read at once, but into the same memory each time."""

    buffer: Any = None

    def start_read(self, array: Any) -> Callable[[], Any]:
        if self.buffer is None or self.buffer.shape != array.shape:
            self.buffer = np.zeros_like(array)
        self.buffer[:] = array
        return lambda: self.buffer


STEPS_AHEAD = "a_step_ahead_has_the_rows_of_its_tokens"
PROMISE = "The result equals that of forward once the sequences hold the tokens."

OVERLAP = tuple(
    Broken(component, promise, killed_by, (EngineError,), honest=MockEngine, on=OnMock)
    for component, promise, killed_by in (
        (SortsTheTokensOfAStepAhead, PROMISE, STEPS_AHEAD),
        (RepeatsTheNewestToken, PROMISE, STEPS_AHEAD),
        (ReturnsTheRowsOfTheLastStep, PROMISE, STEPS_AHEAD),
        (ForgetsStepsAhead, "A later step reads its tokens.", "a_step_follows_one_ahead"),
        (
            RefusesToDiscard,
            "The loop may discard the result.",
            "a_step_ahead_that_is_discarded_leaves_nothing",
        ),
        (
            WaitsForTheEndOfStepsAhead,
            "A sequence may be released at once.",
            "a_sequence_may_end_while_its_next_token_is_computed",
        ),
        (
            ReadsWhenAsked,
            "start_read returns a function that waits for this copy.",
            "a_read_returns_what_was_there_when_it_was_started",
        ),
        (
            ReadsItsOutputLate,
            "start_read copies the rows of a step before the next one replaces them.",
            "reads_may_end_after_further_steps_and_in_any_order",
        ),
        (
            ReadsIntoOneBuffer,
            "Each function of start_read returns its own copy.",
            "reads_may_end_after_further_steps_and_in_any_order",
        ),
    )
)
