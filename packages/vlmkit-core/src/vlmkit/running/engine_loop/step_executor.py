"""Runs a step's tokens through engine, constraints and sampler, and finds who fails.

Drafts stand as far as the sampler chooses the same tokens. What constraints allow is found while
the engine's device computes, and all else is gone before the sampler sees a logit. When a batch
raises, its members run alone and without drafts, so that neither a bad request nor a bad guess
harms anyone. Knows nothing of queues, texts and readers.
"""

from collections.abc import Iterator, Sequence as Seq
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from vlmkit.errors import RequestError, VlmkitError
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.prompt import Array, Prompt
from vlmkit.interfaces.sampler import Row, Sampler
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import WorkItem
from vlmkit.running.engine_loop.hidden_states import read_states
from vlmkit.running.faults.attribution import (
    UNKNOWN,
    ComponentError,
    ComponentFailed,
    ComponentNames,
    Fault,
)
from vlmkit.running.faults.isolation import engine_error, isolated
from vlmkit.running.sampling.grammar_masks import GrammarMasks
from vlmkit.running.sampling.sampled_tokens import picked, readable, samples
from vlmkit.types.sample import Sample
from vlmkit.types.sampling import SamplingParams

ENGINE, SAMPLER, CONSTRAINT = "engine", "sampler", "constraint"


class Outcome(Struct, frozen=True, gc=False):
    """What came of one item.

    Attributes:
        item: as it ran.
        samples: the tokens that were chosen, in order: those of drafts that stand, then one more;
            or the given tokens of the item's rows, with their log-probabilities.
        states: ``[rows, hidden]`` float32 in host memory: the item's hidden states, if it wants
            some.
    """

    item: WorkItem
    samples: tuple[Sample, ...] = ()
    states: Any = None

    @property
    def standing(self) -> WorkItem:
        """The item without the drafts that were wrong."""
        item = self.item
        if not item.drafts:
            return item
        num_wrong = len(item.drafts) - (len(self.samples) - 1)
        return replace(item, num_tokens=item.num_tokens - num_wrong, num_rows=1, drafts=())


class StepExecutor:
    """Computes steps.

    Args:
        engine: computes tokens.
        sampler: chooses tokens.
        component_names: who made them.
    """

    def __init__(
        self, engine: Engine, sampler: Sampler, component_names: ComponentNames = UNKNOWN
    ) -> None:
        self._engine = engine
        self._sampler = sampler
        self._component_names = component_names
        self._at = ENGINE  # who is at work

    def compute(self, items: Seq[WorkItem]) -> list[Outcome | VlmkitError]:
        """Run items; return for each what came of it, or what went wrong.

        Raises:
            EngineError: every item failed, and the engine can compute nothing else either.
        """
        results = self._guarded(items)
        if all(_is_suspect(result) for result in results):
            self._check_parts(next(r for r in results if isinstance(r, Exception)))
        return [self._told(r) if isinstance(r, Exception) else r for r in results]

    def _told(self, error: Exception) -> VlmkitError:
        """Return an error as its request gets it, which says whose fault it is."""
        if isinstance(error, Fault):
            return error.told(self._component_names)
        if isinstance(error, ComponentError):
            return engine_error(
                f"{self._component_names.of(error.part)} failed on this request", error.cause
            )
        return engine_error("the step failed on this request", error)

    def _guarded(self, items: Seq[WorkItem]) -> list[Outcome | Exception]:
        """Run items together; if that fails and a guess may be why, without guesses."""
        if any(item.drafts for item in items):
            try:
                return list(self._compute_batch(items))
            except Exception:  # noqa: BLE001 - a component may raise anything
                items = [without_drafts(item) for item in items]
        return isolated(self._blamed, items)

    def _blamed(self, items: Seq[WorkItem]) -> list[Outcome | VlmkitError]:
        """Run the engine and the sampler on some items, and lay what is raised on one of them."""
        try:
            return self._compute_batch(items)
        except VlmkitError:
            raise
        except Exception as error:  # a part may raise anything
            raise ComponentError(self._at, error) from error

    def _compute_batch(self, items: Seq[WorkItem]) -> list[Outcome | VlmkitError]:
        """Run the engine and the sampler on some items; errors are those of constraints."""
        asked = [item for item in items if item.output == "logits"]
        rows, given = _rows(asked)
        free = [row for place, row in enumerate(rows) if place not in given] if given else rows
        self._at = SAMPLER
        pick = self._sampler.prepare(free) if free else None
        self._at = ENGINE
        output = self._engine.forward(items)
        _check_rows(output.logits, len(rows))
        _check_rows(output.hidden, sum(item.num_rows for item in items) - len(rows))
        is_free = all(item.sequence.guide is None for item in asked)
        masks = None if is_free else GrammarMasks(asked, self._component_names.of(CONSTRAINT))
        made: Iterator[Sample] = iter(())
        if rows and output.logits is not None:
            read = readable(output.logits)
            self._at = SAMPLER
            token_ids = picked(read if masks is None else masks.applied(read), pick, given)
            made = iter(samples(read, token_ids, [row.sequence.params for row in rows], given))
            self._at = ENGINE
        states = None if output.hidden is None else read_states(output.hidden)
        outcomes: list[Outcome | VlmkitError] = []
        start = 0
        for item in items:
            if states is not None and item.output == "hidden":
                outcomes.append(Outcome(item, states=states[start : start + item.num_rows]))
                start += item.num_rows
            else:
                chosen = tuple(islice(made, item.num_rows))
                if item.drafts or masks is not None:
                    outcomes.append(_standing(item, chosen, masks))
                else:
                    outcomes.append(Outcome(item, chosen))
        return outcomes

    def _check_parts(self, cause: Exception) -> None:
        """Compute one token of a sequence of our own: is it a part that fails, or requests?"""
        prompt = Prompt((0,))
        probe = Sequence("probe", prompt, SamplingParams(), seed=0, max_tokens=1, scope=b"probe")
        try:
            probe.plan = self._engine.read(prompt)
            if self._engine.admit(probe) is None:  # too full to tell
                return
            try:
                self._blamed([WorkItem(probe, 0, 1, num_rows=1)])
            finally:
                self._engine.release(probe)
        except Exception as error:  # noqa: BLE001 - an engine may raise anything
            part = error.part if isinstance(error, ComponentError | Fault) else ENGINE
            raised = cause.cause if isinstance(cause, ComponentError) else cause
            raise ComponentFailed(part, self._component_names) from raised


def _check_rows(array: Array | None, num_wanted: int) -> None:
    num_rows = 0 if array is None else array.shape[0]
    if num_rows != num_wanted:
        raise Fault(ENGINE, f"returned {num_rows} rows for {num_wanted}")


def _rows(items: Seq[WorkItem]) -> tuple[list[Row], dict[int, int]]:
    """Return the rows of logits of some items, and by their places the tokens that are given."""
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
    item: WorkItem, chosen: tuple[Sample, ...], masks: GrammarMasks | None
) -> Outcome | VlmkitError:
    """Take what was chosen as long as the drafts before it were, and within its constraint."""
    if item.drafts:
        num_right = 0
        for sample, draft in zip(chosen, item.drafts, strict=False):
            if sample.token_id != draft:
                break
            num_right += 1
        chosen = chosen[: num_right + 1]
    if masks is not None:
        try:
            chosen = masks.kept(item.sequence, chosen)
        except VlmkitError as error:
            return error
    return Outcome(item, chosen)


def _is_suspect(result: Outcome | Exception) -> bool:
    """Tell whether a result may be the engine's fault, and not only the request's."""
    return isinstance(result, Exception) and not isinstance(result, RequestError)


def without_drafts(item: WorkItem) -> WorkItem:
    """Return an item that computes only what is the sequence's own."""
    if not item.drafts:
        return item
    return replace(item, num_tokens=item.num_tokens - len(item.drafts), num_rows=1, drafts=())
