"""Repeats decode steps as CUDA graphs: one launch in place of one for each kernel.

A step is captured once its tensors kept their shapes. Its values are then compared with those of
the same step without the graph. A graph that fails or differs is never used, so it costs time but
no answer. Chooses no steps; ``static_steps`` does.
"""

import logging
from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from vlmkit.interfaces.step import WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit_torch.attention.load_check import excess_error
from vlmkit_torch.devices import faults, hardware
from vlmkit_torch.engine.batch import Batch
from vlmkit_torch.engine.static_steps import StaticStep, StaticSteps

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """One decode step that can be repeated.

    Attributes:
        graph: of the step.
        hidden: what it computes, overwritten by each replay.
    """

    graph: torch.cuda.CUDAGraph
    hidden: torch.Tensor


class CudaGraphs:
    """Captures and repeats the static steps of one engine.

    Attributes:
        num_replays: steps that were computed by a graph.
        num_recomputed: steps that a graph had computed, and that were asked for again.
        steps: the tensors of steps.

    Args:
        device: that computes.
        steps: see above.
        compute: returns the hidden states of a batch.
    """

    def __init__(
        self, device: torch.device, steps: StaticSteps, compute: Callable[[Batch], torch.Tensor]
    ) -> None:
        self.num_replays = 0
        self.num_recomputed = 0
        self.steps = steps
        self._device = device
        self._compute = compute
        # None if a step must run without a graph; a step that is dropped takes its graph along.
        self._captured: WeakKeyDictionary[StaticStep, CapturedStep | None] = WeakKeyDictionary()
        self._pool = torch.cuda.graph_pool_handle()
        self._replayed: dict[SequenceView, int] = {}  # the last token that a graph computed

    def may_compute(self, items: Seq[WorkItem]) -> bool:
        """Return whether a step may be repeated as a graph: none of its tokens was before.

        The loop asks for a token again if it could not use the result. Without the graph, it finds
        out whether the graph was the cause.
        """
        if all(item.start > self._replayed.get(item.sequence, -1) for item in items):
            return True
        if not self.num_recomputed:
            log.warning("a step of a CUDA graph could not be used, and is computed without it")
        self.num_recomputed += 1
        return False

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Forget that a graph computed the tokens of a sequence after its first ``num_tokens``."""
        if self._replayed.get(sequence, -1) >= num_tokens:
            self._replayed[sequence] = num_tokens - 1

    def forget(self, sequence: SequenceView) -> None:
        """Forget a sequence."""
        self._replayed.pop(sequence, None)

    def run(
        self, items: Seq[WorkItem], static: StaticStep, build: Callable[[], Batch]
    ) -> tuple[torch.Tensor, Batch]:
        """Return the hidden states of a step and its batch.

        Args:
            items: of the step.
            static: the tensors of the step.
            build: lays out the step in these tensors.
        """
        batch = build()
        if not static.is_settled:
            self._captured.pop(static, None)  # it has other arrays than the graph
            return self._compute(batch), batch
        if static not in self._captured:
            return self._capture(static, batch, build)
        captured = self._captured[static]
        if captured is None:
            return self._compute(batch), batch
        captured.graph.replay()
        self.num_replays += 1
        self._replayed.update((item.sequence, item.start) for item in items)
        return captured.hidden, batch

    def clear(self) -> None:
        """Drop all graphs, and the memory of their steps."""
        self._captured.clear()
        self._replayed.clear()
        self.steps.clear()

    def _capture(
        self, static: StaticStep, batch: Batch, build: Callable[[], Batch]
    ) -> tuple[torch.Tensor, Batch]:
        """Capture a step, and return its values as they are without the graph."""
        captured, found, reason = None, None, ""
        try:
            captured = self._graph_of(batch)
            captured.graph.replay()
            found = captured.hidden.clone()
        except Exception as error:  # noqa: BLE001 - any failure means that the graph is not used
            reason = str(error) or type(error).__name__
        if found is None:
            # Outside the handler, because the error references what the capture had computed.
            captured = None
            faults.free_memory(self._device)
        batch = build()  # the attention's plan keeps tensors that only the graph fills
        expected = self._compute(batch)
        if found is not None and (excess := excess_error(found, expected)) is not None:
            reason = f"its values differ by {excess:.1g} of their length"
        num_rows, num_tokens, _ = static.shape
        if reason:
            log.warning(
                "steps of %d rows of at most %d tokens run without a CUDA graph: %s",
                *(num_rows, num_tokens, reason),
            )
            captured = None
        else:
            log.info("captured a CUDA graph of %d rows of at most %d tokens", num_rows, num_tokens)
        self._captured[static] = captured
        return expected, batch

    def _graph_of(self, batch: Batch) -> CapturedStep:
        graph = torch.cuda.CUDAGraph()
        with (
            hardware.capture_lock(self._device),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
        ):
            hidden = self._compute(batch)
        return CapturedStep(graph, hidden)
