"""Engines that return wrong rows, or mishandle drafts or hidden states."""

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from honest.engine import AttentionEngine, Floats
from msgspec import structs

from broken.broken import Broken
from broken.engine_numbers import claiming
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView


class ReturnsTheFirstRows(AttentionEngine):
    def compute(self, item: WorkItem) -> Floats:
        hidden = super().compute(item)
        return np.roll(hidden, item.num_tokens - item.num_rows, axis=0)


class AttendsToLaterTokens(AttentionEngine):
    def unseen(self, item: WorkItem) -> Floats:
        return np.zeros_like(super().unseen(item))


class ClaimsMoreRowsThanItReturns(AttentionEngine):
    limits = claiming(max_item_rows=24)

    def compute(self, item: WorkItem) -> Floats:
        hidden = super().compute(item)
        hidden[10:] = hidden[9] if len(hidden) > 10 else 0.0
        return hidden


class ClaimsMoreDraftsThanItTakes(AttentionEngine):
    def inputs(self, item: WorkItem) -> Floats:
        taken = (*item.drafts[:5], *[0] * len(item.drafts[5:]))
        return super().inputs(structs.replace(item, drafts=taken))


class ContinuesAfterRejectedDrafts(AttentionEngine):
    def __init__(self) -> None:
        super().__init__()
        self.behind: dict[SequenceView, int] = {}

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        self.behind[sequence] = 1

    def positions(self, item: WorkItem) -> Floats:
        return super().positions(item) + self.behind.get(item.sequence, 0)


class ReturnsLogitsAsStates(AttentionEngine):
    def rows(self, item: WorkItem, hidden: Floats) -> Floats:
        return super().rows(structs.replace(item, output="logits"), hidden)


class ReversesStates(AttentionEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        output = super().forward(items)
        states = None if output.hidden is None else np.asarray(output.hidden)
        if states is not None and len(states) == len([i for i in items if i.output == "hidden"]):
            states = states[::-1]
        return StepOutput(output.logits, states)


class ReturnsLogitsAndStates(AttentionEngine):
    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        both: dict[str, Any] = {}
        for output in ("logits", "hidden"):
            asked = super().forward([structs.replace(item, output=output) for item in items])
            both[output] = getattr(asked, output)
        return StepOutput(**both)


class NormalisesByItsChunk(AttentionEngine):
    def rows(self, item: WorkItem, hidden: Floats) -> Floats:
        is_state = item.output == "hidden"
        return super().rows(item, hidden) / (np.abs(hidden).max() if is_state else 1)


class FindsRowsByTheNumberOfTheItem(AttentionEngine):
    """Computes all rows, and takes those of an item from the number of the item on."""

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        output = super().forward([structs.replace(item, output="hidden") for item in items])
        states = output.hidden
        rows: dict[str, list[Floats]] = {"logits": [], "hidden": []}
        for number, item in enumerate(item for item in items if item.num_rows):
            rows[item.output].append(self.rows(item, states[number : number + item.num_rows]))
        return StepOutput(**{kind: np.concatenate(made) for kind, made in rows.items() if made})


ROWS = (
    Broken(
        ReturnsTheFirstRows,
        "The rows of an item belong to its last tokens.",
        "each_row_of_an_item_is_that_of_its_token",
    ),
    Broken(
        AttendsToLaterTokens,
        "A row depends only on the tokens up to its own.",
        "each_row_of_an_item_is_that_of_its_token",
    ),
    Broken(
        ClaimsMoreRowsThanItReturns,
        "An item may have up to max_item_rows.",
        "an_item_has_as_many_rows_as_are_claimed",
    ),
    Broken(
        ClaimsMoreDraftsThanItTakes,
        "An item may have up to max_draft_tokens.",
        "drafts_get_the_rows_of_an_answer_that_holds_them",
    ),
    Broken(
        ContinuesAfterRejectedDrafts,
        "truncate() forgets what was computed after the first num_tokens.",
        "drafts_that_are_refused_leave_nothing_behind",
    ),
    Broken(
        ReturnsLogitsAsStates,
        "Hidden states have hidden_size columns.",
        "hidden_states_are_a_function_of_the_tokens",
    ),
    Broken(
        ReversesStates,
        "Hidden states have the order of their items.",
        "hidden_states_are_a_function_of_the_tokens",
    ),
    Broken(
        ReturnsLogitsAndStates,
        "A step has no logits if no item wants any.",
        "hidden_states_are_a_function_of_the_tokens",
    ),
    Broken(
        NormalisesByItsChunk,
        "A hidden state does not depend on the chunks.",
        "each_token_of_a_chunk_may_have_its_hidden_state",
    ),
    Broken(
        FindsRowsByTheNumberOfTheItem,
        "Items before another one may have several rows.",
        "items_of_a_step_may_want_different_numbers_of_rows",
    ),
)
