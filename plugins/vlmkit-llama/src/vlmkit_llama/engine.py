"""The LLM engine: work items as batches of the library llama.cpp.

Implements ``vlmkit.interfaces.engine.Engine``. Selects no work items and samples no tokens.

A batch of the library has tokens or rows of features, never both. So a step with images is several
batches: text up to the next image of each sequence together, then images, and so on.
"""

from collections import deque
from collections.abc import Iterator, Sequence as Seq
from itertools import chain

import numpy as np

from vlmkit.errors import EngineError, RequestError
from vlmkit.interfaces.cache_events import CacheListener
from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit_llama.cells import CellTable
from vlmkit_llama.context import Context, Floats, Integers, LoadedModel, Part
from vlmkit_llama.layout import TEXT, PromptImages, Run, read_images, rows_of
from vlmkit_llama.states import StateTable


class LlamaEngine:
    """Runs one model.

    Args:
        model: the weights.
        context: the cache and the computation.
        cells: which sequences have which cells of the context.
        limits: of this engine.
    """

    def __init__(
        self,
        model: LoadedModel,
        context: Context,
        cells: CellTable | StateTable,
        limits: EngineLimits,
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
        return self._cells.num_free_tokens

    def set_cache_listener(self, listener: CacheListener) -> None:
        """Report shared and removed blocks to a listener."""
        self._cells.listen(listener)

    def read(self, prompt: Prompt) -> PromptPlan:
        """Return where the images of a prompt are; a prompt of text can be cut anywhere.

        Raises:
            RequestError: the prompt has tokens that the model does not have, images that another
                tokenizer has prepared, or an image that is too large.
        """
        if prompt.token_ids and not 0 <= min(prompt.token_ids) <= max(prompt.token_ids) < (
            self._limits.vocab_size
        ):
            raise RequestError("the prompt has token ids outside the vocabulary")
        if not prompt.media:
            return PromptPlan()
        images, spans = read_images(prompt, has_axes=self._model.has_axes)
        longest = max((span.stop - span.start for span in spans), default=0)
        if longest > self._limits.max_chunk_tokens:
            raise RequestError(
                f"an image takes {longest} tokens, which are computed together, and the engine "
                f"computes {self._limits.max_chunk_tokens} at once",
                hint="raise engine.max_chunk_tokens",
            )
        # All tokens of an image have one position in time, so cells of a part cannot be copied.
        most = prompt.media[0].start if self._model.has_axes else None
        return PromptPlan(spans, images, max_shared_tokens=most)

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
        self._cells.commit(sequence, num_tokens)

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
        """Return the rows of items: without a copy if one batch holds them in their order."""
        found: list[list[Floats]] = [[] for _ in items]
        most = self._context.max_batch_tokens
        batches = list(_batches([self._parts(item, most) for item in items], most))
        for batch in batches:
            if self._model.is_recurrent:  # the library computes consecutive ids together
                batch.sort(key=lambda each: each[1].seq_id)
            rows = self._context.compute([part for _, part in batch], has_states=has_states)
            numbers = [number for number, _ in batch]
            if len(batches) == 1 and numbers == sorted(numbers):
                return rows
            first = 0
            for number, part in batch:
                found[number].append(rows[first : first + part.num_rows].copy())
                first += part.num_rows
        width = self._limits.hidden_size if has_states else self._limits.vocab_size
        none = np.empty((0, width), np.float32)
        return np.concatenate([none, *chain.from_iterable(found)])

    def _parts(self, item: WorkItem, most: int) -> "deque[Part]":
        """Return the parts of an item, each of at most ``most`` tokens or rows of features.

        Raises:
            EngineError: features have another width than the embeddings of the model.
        """
        sequence, stop = item.sequence, item.stop
        seq_id, start = self._cells.before(sequence, item.start, stop)
        images: PromptImages = sequence.plan.state or TEXT
        token_ids = item.token_ids
        if not images.runs or images.runs[-1].stop <= start:
            positions = _line(images.position(start), stop - start)
            return deque([Part(seq_id, positions, token_ids, item.num_rows)])
        parts = deque[Part]()
        for begin, end, run in _cut(images, start, stop, most):
            num_rows = max(0, end - max(begin, stop - item.num_rows))
            if run is None:
                tokens = token_ids[begin - item.start : end - item.start]
                positions = _line(images.position(begin), end - begin)
                parts.append(Part(seq_id, positions, tokens, num_rows))
                continue
            features = np.asarray(sequence.features[run.slot].embeddings)
            if features.shape[1:] != (self._model.feature_size,):
                raise EngineError("the features of an image have another width than the model")
            rows, places = rows_of(run, features, begin, end), images.on_axes(begin, end)
            parts.append(Part(seq_id, places, rows, num_rows, run.is_whole))
        return parts


def _line(start: int, num: int) -> Integers:
    return np.arange(start, start + num, dtype=np.int32)


def _cut(
    images: PromptImages, start: int, stop: int, most: int
) -> Iterator[tuple[int, int, Run | None]]:
    """Yield parts of a prompt, each of at most ``most`` tokens."""
    for begin, end, run in images.parts(start, stop):
        for first in range(begin, end, most):
            yield first, min(end, first + most), run


def _batches(items: Seq["deque[Part]"], most: int) -> Iterator[list[tuple[int, Part]]]:
    """Yield parts in batches, each with the number of its item; empties the items.

    A batch has tokens or features, at most ``most`` of them, and one part of an item. An image
    whose tokens attend to each other in both directions is alone.
    """
    while any(items):
        waiting = [(number, parts[0]) for number, parts in enumerate(items) if parts]
        # Tokens first: an image may be next in more items then, and images are computed together.
        has_features = all(part.has_features for _, part in waiting)
        batch: list[tuple[int, Part]] = []
        num_tokens = 0
        for number, part in waiting:
            if part.has_features != has_features or num_tokens + len(part.tokens) > most:
                continue
            if batch and (part.is_whole or batch[0][1].is_whole):
                continue
            batch.append((number, items[number].popleft()))
            num_tokens += len(part.tokens)
        yield batch
