"""Runs the decoder graph over work items: one call for all decodes, and one for each chunk.

That is how the graph's attention takes tokens. Selects no work items and samples no tokens.
"""

from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import cast

import numpy as np

from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit_onnx.decoders.decoder import Decoder, Floats, StatesDecoder, Tokens
from vlmkit_onnx.prompts.embeddings import Embeddings
from vlmkit_onnx.prompts.prompt_inputs import PromptInputs, merge, visible, visible_to_last
from vlmkit_onnx.slots.slot_manager import SlotManager


class ModelRunner:
    """Computes logits and hidden states of work items.

    Args:
        decoder: computes tokens of slots.
        embeddings: turns token ids into rows; None if the decoder takes token ids.
        slots: of the decoder.
        sliding_window: tokens that layers with a window see, if the host builds the masks.
    """

    def __init__(
        self,
        decoder: Decoder,
        embeddings: Embeddings | None,
        slots: SlotManager,
        sliding_window: int | None,
    ) -> None:
        self._decoder = decoder
        self._embed = embeddings
        self._slots = slots
        self._window = sliding_window

    def run(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items; see :meth:`vlmkit.interfaces.engine.Engine.forward`."""
        decodes = [item for item in items if _is_decode(item)]
        chunks = [item for item in items if not _is_decode(item)]
        with_logits = [item for item in items if item.output == "logits"]
        num_rows = sum(item.num_rows for item in with_logits)
        if decodes and len(decodes) == num_rows == len(items):
            return StepOutput(_in_order(*self._decode(decodes)))
        stops = accumulate(item.num_rows for item in with_logits)
        ends = {item.sequence: stop for item, stop in zip(with_logits, stops, strict=True)}
        logits = np.empty((num_rows, self._decoder.spec.vocab_size), np.float32)
        if decodes:
            rows, found = self._decode(decodes)
            for item, row in zip(decodes, rows, strict=True):
                if item.num_rows:
                    logits[ends[item.sequence] - 1] = found[row]
        states = []
        for item in chunks:
            chunk_rows = self._prefill(item)
            if item.output == "hidden":
                states.append(chunk_rows)
            else:
                end = ends[item.sequence]
                logits[end - item.num_rows : end] = chunk_rows
        return StepOutput(
            logits if with_logits else None, np.concatenate(states) if states else None
        )

    def _decode(self, items: Seq[WorkItem]) -> tuple[list[int], Floats]:
        """Compute one token of each item; return the items' rows, and the logits of all rows.

        Rows are adjacent slots. An idle row writes behind the end of its own tokens, which nothing
        reads.
        """
        self._compact_slots(items)
        slots = [self._slots.slot(item.sequence) for item in items]
        first, stop = min(slots), max(slots) + 1
        starts = np.array([self._slots.num_held(slot) for slot in range(first, stop)], np.int32)
        rows = [slot - first for slot in slots]
        starts[rows] = [item.start for item in items]
        tokens = self._column(items, rows, stop - first)
        if self._decoder.spec.takes_bias:
            full, windowed = visible_to_last(starts, self._window)
            tokens.extras.update(attention_bias=full, attention_bias_local=windowed)
        logits = self._decoder.decode(first, starts, tokens)
        for item in items:
            self._slots.set_computed(item.sequence, item.stop)
        return rows, logits

    def _column(self, items: Seq[WorkItem], rows: list[int], num_rows: int) -> Tokens:
        """Return one token for each row; idle rows get the first token of the vocabulary."""
        spec = self._decoder.spec
        ids = np.zeros((num_rows, 1), np.int64)
        ids[rows, 0] = [item.token_ids[0] for item in items]
        positions = np.zeros((max(1, spec.num_position_axes), num_rows, 1), np.int64)
        deepstack = spec.no_deepstack(num_rows, 1)
        embeddings = None if self._embed is None else self._embed(ids[:, 0])[:, None]
        for item, row in zip(items, rows, strict=True):
            inputs = _inputs(item.sequence)
            own = inputs.positions_of(item.start, item.stop, len(positions))
            positions[:, row] = own[:, 0]
            if embeddings is not None and item.start < item.sequence.num_prompt_tokens:
                levels = None if deepstack is None else deepstack[:, row]
                merge(inputs, embeddings[row], item.start, item.sequence.features, levels)
        extras = {} if deepstack is None else {"deepstack": deepstack}
        return Tokens(ids, embeddings, positions, extras)

    def _prefill(self, item: WorkItem) -> Floats:
        """Compute a chunk of one sequence; return the rows that it wants."""
        spec, sequence = self._decoder.spec, item.sequence
        inputs = _inputs(sequence)
        ids = np.array(item.token_ids, np.int64)
        positions = inputs.positions_of(item.start, item.stop, max(1, spec.num_position_axes))
        tokens = Tokens(ids[None], None, positions)
        if self._embed is not None:
            rows = self._embed(ids)
            deepstack = spec.no_deepstack(1, len(ids))
            levels = None if deepstack is None else deepstack[:, 0]
            merge(inputs, rows, item.start, sequence.features, levels)
            extras = {} if deepstack is None else {"deepstack": deepstack}
            tokens = Tokens(ids[None], rows[None], positions, extras)
        if spec.takes_bias:
            full, windowed = visible(inputs, item.start, item.stop, self._window)
            tokens.extras.update(attention_bias=full, attention_bias_local=windowed)
        slot, prefill = self._slots.slot(sequence), self._decoder.prefill
        if item.output == "hidden":
            prefill = cast(StatesDecoder, self._decoder).prefill_states  # as the limits claim
        rows = prefill(slot, item.start, tokens, item.num_rows)
        self._slots.set_computed(sequence, item.stop)
        return rows

    def _compact_slots(self, items: Seq[WorkItem]) -> None:
        """Move the last sequence into an unowned gap, as long as there is one.

        An idle row costs as much as a busy one. What the gap keeps for later prompts moves to the
        sequence's former slot.
        """
        if not self._decoder.memory.copies:
            return
        slots = sorted(self._slots.slot(item.sequence) for item in items)
        while slots[-1] + 1 - slots[0] > len(slots):
            gaps = [s for s in range(slots[0], slots[-1]) if not self._slots.is_owned(s)]
            if not gaps:
                return
            pair = (slots.pop(), gaps[0])
            held = (self._slots.num_held(pair[0]), self._slots.num_held(pair[1]))
            self._decoder.memory.swap(pair, held)
            self._slots.swap(*pair)
            slots = sorted([*slots, pair[1]])


def _is_decode(item: WorkItem) -> bool:
    """Return whether an item belongs to the one call for all decodes."""
    return item.num_tokens == 1 and item.start > 0 and item.output == "logits"


def _in_order(rows: list[int], logits: Floats) -> Floats:
    """Return some rows of the logits, without a copy if those are all of them in order."""
    if rows == list(range(len(logits))):
        return logits
    return logits[rows]


def _inputs(sequence: SequenceView) -> PromptInputs:
    """Return the state of a sequence's plan, from :meth:`OnnxEngine.read`."""
    inputs: PromptInputs = sequence.plan.state
    return inputs
