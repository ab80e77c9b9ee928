"""Correct engines of other designs: one keeps a recurrent state, one computes in float16."""

import dataclasses
from collections.abc import Sequence as Seq

import numpy as np

from honest.engine import VOCAB_SIZE, WIDTH, AttentionEngine, Floats, Weights
from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView


class RecurrentEngine:
    """Keeps the states of a sequence's positions; shares nothing, and counts no room.

    Rejected drafts cost it nothing: it goes back to the state before them.
    """

    limits = EngineLimits(
        vocab_size=VOCAB_SIZE,
        max_sequence_tokens=70,
        max_sequences=3,
        capacity_tokens=3 * 70,
        max_chunk_tokens=11,
        max_item_rows=5,
        max_draft_tokens=4,
        hidden_size=WIDTH,
    )

    def __init__(self) -> None:
        weights = Weights()
        self._embedding, self._head = weights.embedding, weights.head
        self._forget, self._mix = 0.9 * np.tanh(weights.query), weights.value
        self._states: dict[SequenceView, list[Floats]] = {}

    def read(self, prompt: Prompt) -> PromptPlan:
        """Return an empty plan."""
        return PromptPlan()

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Begin with a state of zeros."""
        if len(self._states) == self.limits.max_sequences:
            return None
        self._states[sequence] = [np.zeros(WIDTH)]
        return Admission(0)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Return whether a sequence may be so long; its memory grows as it is computed."""
        return num_tokens <= self.limits.max_sequence_tokens

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Do nothing: no tokens are shared."""

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Go back to an earlier state."""
        del self._states[sequence][num_tokens + 1 :]

    def release(self, sequence: SequenceView) -> None:
        """Forget the states of a sequence."""
        del self._states[sequence]

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items token by token."""
        logits: list[Floats] = []
        hidden: list[Floats] = []
        for item in items:
            states = self._states[item.sequence]
            del states[item.start + 1 :]
            for each in self._inputs(item):
                states.append(np.tanh(states[-1] @ self._forget + each @ self._mix + 0.3 * each))
            rows = states[len(states) - item.num_rows :]
            (hidden if item.output == "hidden" else logits).extend(rows)
        return StepOutput(
            np.stack(logits) @ self._head if logits else None,
            np.stack(hidden) if hidden else None,
        )

    def close(self) -> None:
        """Forget everything."""
        self._states.clear()

    def _inputs(self, item: WorkItem) -> Floats:
        """Return the embeddings ``[tokens, width]`` of an item, of images where there are any."""
        made = self._embedding[list(item.token_ids)]
        for index, slot in enumerate(item.sequence.prompt.media):
            first, stop = max(item.start, slot.start + 1), min(item.stop, slot.stop - 1)
            if first < stop:
                rows = item.sequence.features[index].embeddings
                own = np.asarray(rows)[first - slot.start - 1 : stop - slot.start - 1]
                made[first - item.start : stop - item.start] = own
        return made


class HalfEngine(AttentionEngine):
    """Rounds its cache and its rows to float16, and sums in an order that the step decides."""

    limits = dataclasses.replace(
        AttentionEngine.limits, is_batch_invariant=False, precision="float16", max_chunk_tokens=17
    )

    def write(self, cell_ids: Floats, made: Floats) -> None:
        """Write rounded keys and values."""
        super().write(cell_ids, made.astype(np.float16).astype(np.float64))

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Return rows of float16, a little off by the size of the step."""
        output = super().forward(items)
        rows = (output.logits, output.hidden)
        rounded = [
            None
            if each is None
            else (np.asarray(each) * (1 + 1e-4 * len(items))).astype(np.float16)
            for each in rows
        ]
        return StepOutput(*rounded)
