"""Starts a step of decodes before the tokens of the last one are read.

The device computes the next tokens of all answers while the host reads, checks and delivers the
last ones. Schedulers of other servers call this asynchronous or overlapped scheduling. Here the
scheduler is not asked: a step is followed at once only while every admitted sequence decodes and
none waits, so there is nothing to decide. A started step that cannot be used is discarded, and
costs time but no answer. Plans nothing, and delivers nothing.
"""

import logging
from collections.abc import Callable, Container, Sequence as Seq
from itertools import groupby
from typing import Any, NamedTuple

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.engine import Engine, OverlapsSteps
from vlmkit.interfaces.scheduler import Scheduler
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.running.engine_loop.step_executor import (
    Outcome,
    SampledStep,
    StepExecutor,
    check_rows,
)
from vlmkit.running.sampling.array_namespace import namespace_of

log = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Starts that may fail in succession. One request can be the cause of one, and then fails."""


class _StartedStep(NamedTuple):
    """A step that the engine computes.

    Attributes:
        items: one token of each sequence.
        output: a row of logits for each.
    """

    items: tuple[WorkItem, ...]
    output: StepOutput


class StepOverlap:
    """Computes steps, and starts the next one where that is possible.

    Args:
        engine: computes tokens.
        scheduler: counts the admitted sequences.
        executor: samples tokens, and isolates failures.
        num_waiting: returns how many sequences wait, including those that the loop has not seen.
    """

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        executor: StepExecutor,
        num_waiting: Callable[[], int],
    ) -> None:
        self._cache: Engine = engine
        self._engine: OverlapsSteps | None = None
        if engine.limits.overlaps_steps and isinstance(engine, OverlapsSteps):
            self._engine = engine
        self._scheduler = scheduler
        self._executor = executor
        self._num_waiting = num_waiting
        self._started: _StartedStep | None = None
        self._num_failures = 0

    @property
    def has_started(self) -> bool:
        """Whether the engine computes a step that is not read yet."""
        return self._started is not None

    def started_items(self, running: Container[Sequence]) -> tuple[WorkItem, ...]:
        """Return the items of the step that was started, without sequences that ended since.

        Args:
            running: the sequences that have not ended.
        """
        if self._started is None:
            return ()
        items, output = self._started
        rows = [row for row, item in enumerate(items) if item.sequence in running]
        try:
            logits = _selected(output.logits, rows) if rows else None
        except Exception as error:  # a device may have no memory for a copy
            log.debug("a started step is planned and computed again", exc_info=error)
            rows, logits = [], None
        items = tuple(items[row] for row in rows)
        # A sequence without its token had a constraint that allowed none.
        if not items or any(len(item.sequence) != item.stop for item in items):
            self._discard_started(running)
            return ()
        self._started = _StartedStep(items, StepOutput(logits))
        return items

    def compute(self, items: Seq[WorkItem]) -> list[Outcome | VlmkitError]:
        """Compute a step; see :meth:`.StepExecutor.compute`.

        Args:
            items: of the scheduler, or those that :meth:`started_items` has just returned.
        """
        started, self._started = self._started, None
        if self._engine is None or not (started or self._may_overlap(items)):
            return self._executor.compute(items)
        try:
            step = self._executor.sample(
                items,
                None if started is None else lambda _: started.output,
                self._engine.start_read,
            )
            self._start_next(step)
            return self._executor.finish(step)
        except Exception:  # noqa: BLE001 - a component may raise anything; the executor finds out
            self._discard_started([item.sequence for item in items])
            return self._executor.compute(items)

    def forget(self) -> None:
        """Drop the step that was started, without the engine, which may have failed."""
        self._started = None

    def _may_overlap(self, items: Seq[WorkItem]) -> bool:
        """Return whether a step can be followed by the next token of each of its sequences."""
        if self._scheduler.num_running != len(items) or self._num_waiting():
            return False
        return all(map(_gives_one_token, items))

    def _start_next(self, step: SampledStep) -> None:
        """Start the step after one whose tokens are chosen, unless that is impossible."""
        if self._engine is None or not self._may_overlap(step.items):
            return
        rows = [row for row, item in enumerate(step.items) if _has_two_tokens_left(item.sequence)]
        items = tuple(WorkItem(step.items[r].sequence, step.items[r].stop, 1, 1) for r in rows)
        if not items or not all(self._cache.reserve(i.sequence, i.stop) for i in items):
            return
        # An id outside of the vocabulary would break a device; its request fails once it is read.
        token_ids = step.token_ids % self._cache.limits.vocab_size
        try:
            output = self._engine.forward_next(items, _selected(token_ids, rows))
            check_rows(output.logits, len(items))
        except Exception as error:  # noqa: BLE001 - an engine may raise anything
            self._note_failure(error)
            self._truncate(items)
        else:
            self._num_failures = 0
            self._started = _StartedStep(items, output)

    def _note_failure(self, error: Exception) -> None:
        self._num_failures += 1
        log.debug("a step could not be started before the last one was read", exc_info=error)
        if self._num_failures == MAX_FAILURES:
            log.warning("steps are not overlapped any more: forward_next fails", exc_info=error)
            self._engine = None

    def _discard_started(self, running: Container[Sequence]) -> None:
        """Drop the step that was started, if any, and what the engine's cache holds of it.

        Args:
            running: the sequences that are still admitted.
        """
        started, self._started = self._started, None
        if started is not None:
            self._truncate([item for item in started.items if item.sequence in running])

    def _truncate(self, items: Seq[WorkItem]) -> None:
        for item in items:
            self._cache.truncate(item.sequence, item.start)


def _gives_one_token(item: WorkItem) -> bool:
    """Return whether an item gives its sequence exactly one token, and no draft is expected."""
    sequence = item.sequence
    return (
        item.num_rows == 1
        and item.stop == len(sequence)
        and sequence.task == "generate"
        and not (item.drafts or sequence.drafts or sequence.given or sequence.is_held)
    )


def _has_two_tokens_left(sequence: Sequence) -> bool:
    """Return whether an answer may go on after the token that is being chosen."""
    return sequence.max_tokens - len(sequence.output_ids) >= 2


def _selected(array: Any, rows: list[int]) -> Any:
    """Return some rows of an array, given in ascending order, without a transfer of indices."""
    if len(rows) == array.shape[0]:
        return array
    xp = namespace_of(array)
    runs = [list(run) for _, run in groupby(enumerate(rows), lambda pair: pair[1] - pair[0])]
    return xp.concat([array[run[0][1] : run[-1][1] + 1, ...] for run in runs])
