"""Runs the items of a step through the engine, constraints and the sampler, and isolates failures.

Drafts are accepted as far as the sampler chooses the same tokens. Grammar masks are computed while
the engine's device computes, and applied before the sampler reads a logit. When a batch raises, its
items run one by one and without drafts, so that neither a bad request nor a bad draft harms
another. Queues, texts and readers are elsewhere.
"""

from collections.abc import Callable, Iterator, Sequence as Seq
from dataclasses import dataclass
from itertools import islice
from typing import Any

import array_api_compat
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from vlmkit.errors import RequestError, VlmkitError
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.prompt import Array, Prompt
from vlmkit.interfaces.sampler import Row, Sampler
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.running.faults.attribution import (
    UNKNOWN,
    ComponentError,
    ComponentFailed,
    ComponentNames,
    Fault,
)
from vlmkit.running.faults.isolation import engine_error, isolated
from vlmkit.running.sampling.grammar_bitmask import GrammarBitmask
from vlmkit.running.sampling.sampled_tokens import (
    StartRead,
    choose_tokens,
    read_on_demand,
    readable,
    start_samples,
)
from vlmkit.types.sample import Sample
from vlmkit.types.sampling import SamplingParams

ENGINE, SAMPLER, CONSTRAINT = "engine", "sampler", "constraint"


class Outcome(Struct, frozen=True, gc=False):
    """The result of one item.

    Attributes:
        item: the item as it ran.
        samples: the sampled tokens, in order: accepted drafts, then one more; or the given tokens
            of the item's rows, with their log-probabilities.
        states: hidden states ``[rows, hidden]`` as float32 in host memory, if the item wants any.
    """

    item: WorkItem
    samples: tuple[Sample, ...] = ()
    states: Any = None

    @property
    def standing(self) -> WorkItem:
        """The item without its rejected drafts."""
        item = self.item
        if not item.drafts:
            return item
        num_rejected = len(item.drafts) - (len(self.samples) - 1)
        return replace(item, num_tokens=item.num_tokens - num_rejected, num_rows=1, drafts=())


@dataclass(slots=True)
class SampledStep:
    """A step whose tokens are chosen, but perhaps not read from the device yet.

    Attributes:
        items: the items.
        token_ids: ``[rows]`` the chosen tokens, on the engine's device; None without rows.
        samples: waits for them, and returns them.
        masks: the grammar bitmask of the step; None if no row is constrained.
        states: hidden states ``[rows, hidden]``; None if no item wants any.
    """

    items: Seq[WorkItem]
    token_ids: Any
    samples: Callable[[], list[Sample]]
    masks: GrammarBitmask | None
    states: NDArray[np.float32] | None


class StepExecutor:
    """Computes steps.

    Args:
        engine: computes tokens.
        sampler: chooses tokens.
        component_names: what errors call them.
    """

    def __init__(
        self, engine: Engine, sampler: Sampler, component_names: ComponentNames = UNKNOWN
    ) -> None:
        self._engine = engine
        self._sampler = sampler
        self._component_names = component_names
        self._at = ENGINE  # the component that runs now

    def compute(self, items: Seq[WorkItem]) -> list[Outcome | VlmkitError]:
        """Run items; return the outcome or the error of each.

        Raises:
            ComponentFailed: every item failed, and so does an item of our own.
        """
        results = self._guarded(items)
        if all(_is_suspect(result) for result in results):
            self._check_parts(next(r for r in results if isinstance(r, Exception)))
        return [self._attributed(r) if isinstance(r, Exception) else r for r in results]

    def _attributed(self, error: Exception) -> VlmkitError:
        """Return the error that a request gets, which names the faulty component."""
        if isinstance(error, Fault):
            return error.attributed_to(self._component_names)
        if isinstance(error, ComponentError):
            return engine_error(
                f"{self._component_names.of(error.component)} failed on this request", error.cause
            )
        return engine_error("the step failed on this request", error)

    def _guarded(self, items: Seq[WorkItem]) -> list[Outcome | Exception]:
        """Run items together, and without drafts if that fails and a draft may be the cause."""
        if any(item.drafts for item in items):
            try:
                return list(self._compute_batch(items))
            except Exception:  # noqa: BLE001 - a component may raise anything
                items = [without_drafts(item) for item in items]
        return isolated(self._compute_attributed, items)

    def _compute_attributed(self, items: Seq[WorkItem]) -> list[Outcome | VlmkitError]:
        """Run the engine and the sampler on some items; errors name the faulty component."""
        try:
            return self._compute_batch(items)
        except VlmkitError:
            raise
        except Exception as error:  # a part may raise anything
            raise ComponentError(self._at, error) from error

    def _compute_batch(self, items: Seq[WorkItem]) -> list[Outcome | VlmkitError]:
        """Run the engine and the sampler on some items; the errors in the list are constraints'."""
        return self.finish(self.sample(items))

    def sample(
        self,
        items: Seq[WorkItem],
        forward: Callable[[Seq[WorkItem]], StepOutput] | None = None,
        start_read: StartRead = read_on_demand,
    ) -> SampledStep:
        """Choose the tokens of some items, without waiting for the device.

        Args:
            items: the items.
            forward: computes them; the engine's method if None.
            start_read: starts to copy from the engine's device.
        """
        with_logits = [item for item in items if item.output == "logits"]
        rows, given = _rows(with_logits)
        free = [row for index, row in enumerate(rows) if index not in given] if given else rows
        self._at = SAMPLER
        pick = self._sampler.prepare(free) if free else None
        self._at = ENGINE
        output = (forward or self._engine.forward)(items)
        check_rows(output.logits, len(rows))
        check_rows(output.hidden, sum(item.num_rows for item in items) - len(rows))
        masks = None
        if any(item.sequence.guide is not None for item in with_logits):
            masks = GrammarBitmask(with_logits, self._component_names.of(CONSTRAINT))
        token_ids: Any = None
        read: Callable[[], list[Sample]] = list
        if rows and output.logits is not None:
            logits = readable(output.logits)
            self._at = SAMPLER
            token_ids = choose_tokens(logits if masks is None else masks.apply(logits), pick, given)
            params = [row.sequence.params for row in rows]
            read = start_samples(logits, token_ids, params, given, start_read)
        states = None if output.hidden is None else _read_states(output.hidden)
        return SampledStep(items, token_ids, read, masks, states)

    def finish(self, step: SampledStep) -> list[Outcome | VlmkitError]:
        """Wait for the tokens of a step, and return the outcome of each item."""
        self._at = SAMPLER if step.token_ids is not None else ENGINE
        sampled: Iterator[Sample] = iter(step.samples())
        self._at = ENGINE
        states, masks = step.states, step.masks
        outcomes: list[Outcome | VlmkitError] = []
        start = 0
        for item in step.items:
            if states is not None and item.output == "hidden":
                outcomes.append(Outcome(item, states=states[start : start + item.num_rows]))
                start += item.num_rows
            else:
                chosen = tuple(islice(sampled, item.num_rows))
                if item.drafts or masks is not None:
                    outcomes.append(_standing(item, chosen, masks))
                else:
                    outcomes.append(Outcome(item, chosen))
        return outcomes

    def _check_parts(self, cause: Exception) -> None:
        """Compute a token of a probe sequence, to tell a failed component from bad requests."""
        prompt = Prompt((0,))
        probe = Sequence("probe", prompt, SamplingParams(), seed=0, max_tokens=1, scope=b"probe")
        try:
            probe.plan = self._engine.read(prompt)
            if self._engine.admit(probe) is None:  # too full to find out
                return
            try:
                self._compute_attributed([WorkItem(probe, 0, 1, num_rows=1)])
            finally:
                self._engine.release(probe)
        except Exception as error:  # noqa: BLE001 - an engine may raise anything
            part = error.component if isinstance(error, ComponentError | Fault) else ENGINE
            raised = cause.cause if isinstance(cause, ComponentError) else cause
            raise ComponentFailed(part, self._component_names) from raised


def check_rows(array: Array | None, num_wanted: int) -> None:
    """Raise a Fault of the engine if it returned another number of rows."""
    num_rows = 0 if array is None else array.shape[0]
    if num_rows != num_wanted:
        raise Fault(ENGINE, f"returned {num_rows} rows for {num_wanted}")


def _rows(items: Seq[WorkItem]) -> tuple[list[Row], dict[int, int]]:
    """Return the rows of logits of some items, and the given tokens by row index."""
    rows: list[Row] = []
    given: dict[int, int] = {}
    for item in items:
        sequence, num_rows = item.sequence, item.num_rows
        if sequence.given:
            first = item.stop - num_rows + 1 - sequence.num_prompt_tokens
            given.update(enumerate(sequence.given[first : first + num_rows], len(rows)))
        if item.drafts:
            rows += [Row(sequence, item.drafts[:num]) for num in range(num_rows)]
        elif num_rows:
            rows += [Row(sequence)] * num_rows
    return rows, given


def _standing(
    item: WorkItem, chosen: tuple[Sample, ...], masks: GrammarBitmask | None
) -> Outcome | VlmkitError:
    """Accept sampled tokens as far as the drafts before them agree and the grammar allows."""
    if item.drafts:
        num_accepted = 0
        for sample, draft in zip(chosen, item.drafts, strict=False):
            if sample.token_id != draft:
                break
            num_accepted += 1
        chosen = chosen[: num_accepted + 1]
    if masks is not None:
        try:
            chosen = masks.checked(item.sequence, chosen)
        except VlmkitError as error:
            return error
    return Outcome(item, chosen)


def _is_suspect(result: Outcome | Exception) -> bool:
    """Return whether a component may have caused an error, and not only the request."""
    return isinstance(result, Exception) and not isinstance(result, RequestError)


def without_drafts(item: WorkItem) -> WorkItem:
    """Return an item without its drafts."""
    if not item.drafts:
        return item
    return replace(item, num_tokens=item.num_tokens - len(item.drafts), num_rows=1, drafts=())


def _read_states(hidden: Array) -> NDArray[np.float32]:
    """Copy hidden states ``[rows, hidden]`` from the engine's device to host memory at once.

    Raises:
        Fault: a value is not finite.
    """
    states: Any = readable(hidden)
    if not array_api_compat.is_numpy_array(states):
        states = np.from_dlpack(array_api_compat.to_device(states, "cpu"))
    if not np.isfinite(states).all():
        raise Fault("engine", "returned hidden states that are not finite")
    read: NDArray[np.float32] = states
    return read
