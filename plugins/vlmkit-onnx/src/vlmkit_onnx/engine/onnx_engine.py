"""The LLM engine: one decoder graph over slots of a cache, driven by work items.

Keeps the promises of ``vlmkit.interfaces.engine.Engine``. Never decides who runs, never samples. A
step is one call for all answers that grow by a token, whatever their lengths, and one for each
chunk of a prompt: that is how the graph's attention takes them.
"""

from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import cast

import numpy as np

from vlmkit.errors import CheckpointError, OutOfMemory, RequestError
from vlmkit.interfaces.engine import Admission, EngineLimits
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit.interfaces.view import SequenceView
from vlmkit.kit.vision_selfcheck import answered
from vlmkit_onnx.decoders.decoder import Decoder, Floats, StatesDecoder, Tokens
from vlmkit_onnx.prompts.embeddings import Embeddings
from vlmkit_onnx.prompts.families import Family
from vlmkit_onnx.prompts.prompt_inputs import (
    PromptInputs,
    merge,
    read_prompt,
    visible,
    visible_to_last,
)
from vlmkit_onnx.self_checks.export_sample import Exported
from vlmkit_onnx.sessions.session import is_out_of_memory
from vlmkit_onnx.slots.slot_manager import SlotBook


class OnnxEngine:
    """Runs one decoder graph.

    Args:
        decoder: computes tokens of slots.
        embeddings: turns token ids into rows; None where the decoder takes token ids.
        family: places images and positions.
        book: of the decoder's slots.
        limits: what is promised to the scheduler.
        sliding_window: tokens that layers with a window see, where masks come from here.
        is_tried: whether it answers about pictures when its model was loaded.
    """

    def __init__(
        self,
        decoder: Decoder,
        embeddings: Embeddings | None,
        family: Family,
        book: SlotBook,
        limits: EngineLimits,
        sliding_window: int | None = None,
        *,
        is_tried: bool = True,
    ) -> None:
        self._decoder = decoder
        self._embed = embeddings
        self._family = family
        self._book = book
        self._limits = limits
        self._window = sliding_window
        self._is_tried = is_tried

    @property
    def limits(self) -> EngineLimits:
        """What this engine can do; constant."""
        return self._limits

    @property
    def num_free_tokens(self) -> int:
        """Tokens that no admitted sequence has room for."""
        return self._book.capacity_tokens - self._book.num_owned

    def read(self, prompt: Prompt) -> PromptPlan:
        """Lay a prompt out; ranges whose tokens see each other both ways may not be cut.

        Raises:
            RequestError: the prompt has images, and the model sees none.
        """
        if prompt.media and self._family.image_token_id is None:
            raise RequestError("this model takes no images")
        inputs = read_prompt(prompt, self._family)
        return PromptPlan(inputs.spans(), inputs)

    def admit(self, sequence: SequenceView) -> Admission | None:
        """Give a slot, reusing a cached prefix; see :meth:`.Cache.admit`."""
        seat = self._book.admit(sequence)
        if seat is None:
            return None
        memory, slot = self._decoder.memory, seat.slot
        if seat.is_fresh:
            memory.discard(slot)
        if seat.source is not None:
            memory.copy(seat.source, slot, seat.num_cached)
        if not seat.num_cached:
            memory.reset(slot)
        self._give_back()
        return Admission(seat.num_cached)

    def reserve(self, sequence: SequenceView, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens`` of an admitted sequence; False if full."""
        has_room = self._book.reserve(sequence, num_tokens)
        self._give_back()
        return has_room

    def commit(self, sequence: SequenceView, num_tokens: int) -> None:
        """Let the first ``num_tokens`` be found by others."""
        self._book.commit(sequence, num_tokens)

    def truncate(self, sequence: SequenceView, num_tokens: int) -> None:
        """Forget what follows the first ``num_tokens``."""
        self._book.truncate(sequence, num_tokens)

    def release(self, sequence: SequenceView) -> None:
        """Give up an admitted sequence's slot."""
        self._book.release(sequence)
        self._give_back()

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute the items; see :meth:`vlmkit.interfaces.engine.Engine.forward`.

        Raises:
            OutOfMemory: there is not enough for them.
        """
        try:
            return self._output(items)
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemory("this request") from error
            raise

    def _output(self, items: Seq[WorkItem]) -> StepOutput:
        decodes = [item for item in items if _is_decode(item)]
        chunks = [item for item in items if not _is_decode(item)]
        asked = [item for item in items if item.output == "logits"]
        num_rows = sum(item.num_rows for item in asked)
        if decodes and len(decodes) == num_rows == len(items):
            return StepOutput(self._in_order(*self._decode(decodes)))
        stops = accumulate(item.num_rows for item in asked)
        ends = {item.sequence: stop for item, stop in zip(asked, stops, strict=True)}
        logits = np.empty((num_rows, self._limits.vocab_size), np.float32)
        if decodes:
            rows, found = self._decode(decodes)
            for item, row in zip(decodes, rows, strict=True):
                if item.num_rows:
                    logits[ends[item.sequence] - 1] = found[row]
        states = []
        for item in chunks:
            made = self._prefill(item)
            if item.output == "hidden":
                states.append(made)
            else:
                end = ends[item.sequence]
                logits[end - item.num_rows : end] = made
        return StepOutput(logits if asked else None, np.concatenate(states) if states else None)

    @property
    def trial_name(self) -> str | None:
        """Only the settings count; see :class:`vlmkit.interfaces.engine.VisionSelfCheck`."""
        return "onnx" if self._is_tried else None

    def try_media(self, prompts: Seq[Prompt], encoder: MediaEncoder) -> None:
        """Answer prompts with pictures, and hold the tower against what its exporter kept.

        Raises:
            CheckpointError: the tower computes otherwise, or logits are no numbers.
            VlmkitError: there is no answer.
        """
        if isinstance(encoder, Exported):
            encoder.refuse_unlike_export()
        for prompt in prompts:
            rows = answered(self, encoder, prompt, prompt.token_ids[-1:])
            if rows is not None and not all(np.isfinite(np.asarray(row)).all() for row in rows):
                raise CheckpointError(
                    "what the graphs answer about a small picture has values that are not numbers"
                )

    def close(self) -> None:
        """Free the cache and let go of the graph."""
        self._decoder.close()
        del self._embed

    def _in_order(self, rows: list[int], logits: Floats) -> Floats:
        """Return some rows of the logits, without a copy where those are all in order."""
        if rows == list(range(len(logits))):
            return logits
        return logits[rows]

    def _decode(self, items: Seq[WorkItem]) -> tuple[list[int], Floats]:
        """Compute one token of each item; return the items' rows, and the logits of all rows.

        Rows are neighbouring slots. One whose sequence does not run writes behind its own end,
        where nobody looks.
        """
        self._close_ranks(items)
        slots = [self._book.slot(item.sequence) for item in items]
        first, stop = min(slots), max(slots) + 1
        starts = np.array([self._book.num_held(slot) for slot in range(first, stop)], np.int32)
        rows = [slot - first for slot in slots]
        starts[rows] = [item.start for item in items]
        spec = self._decoder.spec
        tokens = self._column(items, rows, stop - first)
        if spec.takes_bias:
            whole, near = visible_to_last(starts, self._window)
            tokens.extras.update(attention_bias=whole, attention_bias_local=near)
        logits = self._decoder.decode(first, starts, tokens)
        for item in items:
            self._book.note_computed(item.sequence, item.stop)
        return rows, logits

    def _column(self, items: Seq[WorkItem], rows: list[int], num_rows: int) -> Tokens:
        """Return one token for each row; idle rows get the first token of the vocabulary."""
        spec = self._decoder.spec
        ids = np.zeros((num_rows, 1), np.int64)
        ids[rows, 0] = [item.token_ids[0] for item in items]
        places = np.zeros((max(1, spec.num_position_axes), num_rows, 1), np.int64)
        deepstack = spec.no_deepstack(num_rows, 1)
        embeddings = None if self._embed is None else self._embed(ids[:, 0])[:, None]
        for item, row in zip(items, rows, strict=True):
            inputs = _inputs(item.sequence)
            places[:, row] = inputs.positions_of(item.start, item.stop, len(places))[:, 0]
            if embeddings is not None and item.start < item.sequence.num_prompt_tokens:
                levels = None if deepstack is None else deepstack[:, row]
                merge(inputs, embeddings[row], item.start, item.sequence.features, levels)
        extras = {} if deepstack is None else {"deepstack": deepstack}
        return Tokens(ids, embeddings, places, extras)

    def _prefill(self, item: WorkItem) -> Floats:
        """Compute a chunk of one sequence; return the rows that it wants."""
        spec, sequence = self._decoder.spec, item.sequence
        inputs = _inputs(sequence)
        ids = np.array(item.token_ids, np.int64)
        places = inputs.positions_of(item.start, item.stop, max(1, spec.num_position_axes))
        tokens = Tokens(ids[None], None, places)
        if self._embed is not None:
            rows = self._embed(ids)
            deepstack = spec.no_deepstack(1, len(ids))
            levels = None if deepstack is None else deepstack[:, 0]
            merge(inputs, rows, item.start, sequence.features, levels)
            extras = {} if deepstack is None else {"deepstack": deepstack}
            tokens = Tokens(ids[None], rows[None], places, extras)
        if spec.takes_bias:
            whole, near = visible(inputs, item.start, item.stop, self._window)
            tokens.extras.update(attention_bias=whole, attention_bias_local=near)
        slot, prefill = self._book.slot(sequence), self._decoder.prefill
        if item.output == "hidden":
            prefill = cast(StatesDecoder, self._decoder).prefill_states  # as the limits claim
        rows = prefill(slot, item.start, tokens, item.num_rows)
        self._book.note_computed(sequence, item.stop)
        return rows

    def _close_ranks(self, items: Seq[WorkItem]) -> None:
        """Move the last sequence into a gap, while there is one: an idle row costs as a busy one.

        What the gap keeps for later prompts moves to where the sequence was.
        """
        if not self._decoder.memory.copies:
            return
        slots = sorted(self._book.slot(item.sequence) for item in items)
        while slots[-1] + 1 - slots[0] > len(slots):
            gaps = [s for s in range(slots[0], slots[-1]) if not self._book.is_owned(s)]
            if not gaps:
                return
            pair = (slots.pop(), gaps[0])
            held = (self._book.num_held(pair[0]), self._book.num_held(pair[1]))
            self._decoder.memory.swap(pair, held)
            self._book.swap(*pair)
            slots = sorted([*slots, pair[1]])

    def _give_back(self) -> None:
        for slot in self._book.take_discarded():
            self._decoder.memory.discard(slot)


def _is_decode(item: WorkItem) -> bool:
    """Tell what runs in the one call for all answers from a chunk with a call of its own."""
    return item.num_tokens == 1 and item.start > 0 and item.output == "logits"


def _inputs(sequence: SequenceView) -> PromptInputs:
    """Return what :meth:`OnnxEngine.read` made of a sequence's prompt."""
    inputs: PromptInputs = sequence.plan.state
    return inputs
