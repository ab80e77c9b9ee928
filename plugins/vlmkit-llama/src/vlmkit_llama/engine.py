"""The LLM engine: work items as batches of the library llama.cpp.

Implements ``vlmkit.interfaces.engine.Engine`` for text. Selects no work items and samples no
tokens.
"""

from collections.abc import Iterator, Sequence as Seq

import numpy as np

from vlmkit.errors import RequestError
from vlmkit.interfaces.cache_events import CacheListener
from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit_llama.cells import CellTable
from vlmkit_llama.context import Context, Floats, LoadedModel, Part


class LlamaEngine:
    """Runs one model.

    Args:
        model: the weights.
        context: the cache and the computation.
        cells: of the context.
        limits: of this engine.
    """

    def __init__(
        self, model: LoadedModel, context: Context, cells: CellTable, limits: EngineLimits
    ) -> None:
        self._model, self._context, self._cells = model, context, cells
        self._limits = limits

    @property
    def limits(self) -> EngineLimits:
        """What this engine can do; constant."""
        return self._limits

    @property
    def num_free_tokens(self) -> int:
        """Tokens that no admitted sequence has room for."""
        pool = self._cells.pool
        return pool.num_free_blocks * pool.block_tokens

    def set_cache_listener(self, listener: CacheListener) -> None:
        """Report shared and removed blocks to a listener."""
        self._cells.pool.listener = listener

    def read(self, prompt: Prompt) -> PromptPlan:
        """Return an empty plan: any prompt of text can be cut anywhere.

        Raises:
            RequestError: the prompt has images, or tokens that the model does not have.
        """
        if prompt.media:
            raise RequestError("the engine llama takes text and no images")
        if prompt.token_ids and not 0 <= min(prompt.token_ids) <= max(prompt.token_ids) < (
            self._limits.vocab_size
        ):
            raise RequestError("the prompt has token ids outside the vocabulary")
        return PromptPlan()

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Allocate cells, sharing a cached prefix; see :meth:`.Cache.admit`."""
        return self._cells.admit(sequence)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens`` of an admitted sequence; False if full."""
        if num_tokens > self._limits.max_sequence_tokens:
            return False
        return self._cells.reserve(sequence, num_tokens)

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Let other sequences start from the first ``num_tokens``."""
        self._cells.pool.commit(sequence, num_tokens)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Drop the tokens after the first ``num_tokens``."""
        self._cells.truncate(sequence, num_tokens)

    def release(self, sequence: SequenceView) -> None:
        """Free the cells of an admitted sequence, except those that may be shared."""
        self._cells.release(sequence)

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items; see :meth:`vlmkit.interfaces.engine.Engine.forward`.

        Logits and hidden states are computed in separate batches.

        Raises:
            OutOfMemory: there is too little memory for them.
            EngineError: the library rejects a batch.
        """
        states = [item for item in items if item.output == "hidden" and item.num_rows]
        others = [item for item in items if not (item.output == "hidden" and item.num_rows)]
        hidden = self._rows(states, has_states=True) if states else None
        logits = self._rows(others, has_states=False) if others or not states else None
        if states and not any(item.num_rows for item in others):
            logits = None
        return StepOutput(logits, hidden)

    def close(self) -> None:
        """Free cache and weights."""
        self._context.close()
        self._model.close()

    def _rows(self, items: Seq[WorkItem], *, has_states: bool) -> Floats:
        """Return the rows of items: without a copy if one batch holds all of them."""
        found = []
        batches = list(_batches(items, self._context.max_batch_tokens))
        for batch in batches:
            parts = [
                Part(
                    self._cells.before(item.sequence, item.start, item.stop),
                    item.start,
                    item.token_ids,
                    item.num_rows,
                )
                for item in batch
            ]
            rows = self._context.compute(parts, has_states=has_states)
            found.append(rows if len(batches) == 1 else rows.copy())
        if len(found) == 1:
            return found[0]
        width = self._limits.hidden_size if has_states else self._limits.vocab_size
        return np.concatenate(found) if found else np.empty((0, width), np.float32)


def _batches(items: Seq[WorkItem], most: int) -> Iterator[list[WorkItem]]:
    """Yield items in groups of at most ``most`` tokens; no item is longer."""
    batch: list[WorkItem] = []
    num_tokens = 0
    for item in items:
        if batch and num_tokens + item.num_tokens > most:
            yield batch
            batch, num_tokens = [], 0
        batch.append(item)
        num_tokens += item.num_tokens
    if batch:
        yield batch
