"""The LLM engine: one decoder graph over slots of a cache, driven by work items.

Keeps the promises of ``vlmkit.protocols.Engine``. Never decides who runs, never samples. A step is
one call for all answers that grow by a token, whatever their lengths, and one for each chunk of a
prompt: that is how the graph's attention takes them.
"""

from collections import OrderedDict
from collections.abc import Sequence as Seq
from typing import TypeAlias

import numpy as np

from vlmkit.errors import RequestError
from vlmkit.prompt import Prompt, Span
from vlmkit.protocols import EngineLimits
from vlmkit.sequence import Sequence
from vlmkit.step import WorkItem
from vlmkit_onnx.decoder import Decoder, Floats, Tokens
from vlmkit_onnx.embeddings import Embeddings
from vlmkit_onnx.families import Family
from vlmkit_onnx.prompt_inputs import PromptInputs, merge, read_prompt, visible, visible_to_last
from vlmkit_onnx.slot_book import SlotBook

NUM_REMEMBERED_PROMPTS = 8  # between asking for a prompt's spans and running it

_Content: TypeAlias = tuple[tuple[int, ...], tuple[bytes, ...]]  # token ids, digests of images


class OnnxEngine:
    """Runs one decoder graph.

    Args:
        decoder: computes tokens of slots.
        embeddings: turns token ids into rows; None where the decoder takes token ids.
        family: places images and positions.
        book: of the decoder's slots.
        limits: what is promised to the scheduler.
        sliding_window: tokens that layers with a window see, where masks come from here.
    """

    def __init__(
        self,
        decoder: Decoder,
        embeddings: Embeddings | None,
        family: Family,
        book: SlotBook,
        limits: EngineLimits,
        sliding_window: int | None = None,
    ) -> None:
        self._decoder = decoder
        self._embed = embeddings
        self._family = family
        self._book = book
        self._limits = limits
        self._window = sliding_window
        self._prompts: dict[Sequence, PromptInputs] = {}
        self._remembered: OrderedDict[_Content, PromptInputs] = OrderedDict()

    @property
    def limits(self) -> EngineLimits:
        """What this engine can do; constant."""
        return self._limits

    def atomic_spans(self, prompt: Prompt) -> tuple[Span, ...]:
        """Return the ranges whose tokens see each other both ways, such as image blocks.

        Raises:
            RequestError: the prompt has images, and the model sees none.
        """
        if prompt.images and self._family.image_token_id is None:
            raise RequestError("this model takes no images")
        return self._read(prompt).spans()

    def admit(self, sequence: Sequence) -> int | None:
        """Give a slot, reusing a cached prefix; see :meth:`vlmkit.protocols.Cache.admit`."""
        admission = self._book.admit(sequence)
        if admission is None:
            return None
        memory, slot = self._decoder.memory, admission.slot
        if admission.is_fresh:
            memory.discard(slot)
        if admission.source is not None:
            memory.copy(admission.source, slot, admission.num_cached)
        if not admission.num_cached:
            memory.reset(slot)
        self._give_back()
        return admission.num_cached

    def reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for the first ``num_tokens`` of an admitted sequence; False if full."""
        has_room = self._book.reserve(sequence, num_tokens)
        self._give_back()
        return has_room

    def truncate(self, sequence: Sequence, num_tokens: int) -> int:
        """Forget what follows the first ``num_tokens``; return how many are kept."""
        if not self._decoder.memory.is_shareable:
            num_tokens = 0  # a state of fixed size does not go back
            self._decoder.memory.reset(self._book.slot(sequence))
        self._book.truncate(sequence, num_tokens)
        return num_tokens

    def release(self, sequence: Sequence) -> None:
        """Give up an admitted sequence's slot."""
        self._prompts.pop(sequence, None)
        self._book.release(sequence)
        self._give_back()

    def forward(self, items: Seq[WorkItem]) -> Floats:
        """Compute the items; see :meth:`vlmkit.protocols.Engine.forward`."""
        decodes = [item for item in items if item.num_tokens == 1 and item.start > 0]
        chunks = [item for item in items if item.num_tokens > 1 or item.start == 0]
        wanted = [item.sequence for item in items if item.wants_logits]
        if decodes and len(decodes) == len(wanted) == len(items):
            return self._in_order(*self._decode(decodes))
        place = {sequence: row for row, sequence in enumerate(wanted)}
        logits = np.empty((len(wanted), self._limits.vocab_size), np.float32)
        if decodes:
            rows, found = self._decode(decodes)
            for item, row in zip(decodes, rows, strict=True):
                if item.wants_logits:
                    logits[place[item.sequence]] = found[row]
        for item in chunks:
            found = self._prefill(item)
            if item.wants_logits:
                logits[place[item.sequence]] = found[0]
        return logits

    def close(self) -> None:
        """Free the cache and let go of the graph."""
        self._decoder.close()
        self._prompts.clear()
        self._remembered.clear()
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
            self._book.note_computed(item.sequence, item.start, item.stop)
        return rows, logits

    def _column(self, items: Seq[WorkItem], rows: list[int], num_rows: int) -> Tokens:
        """Return one token for each row; idle rows get the first token of the vocabulary."""
        spec = self._decoder.spec
        ids = np.zeros((num_rows, 1), np.int64)
        ids[rows, 0] = [item.sequence.tokens(item.start, item.stop)[0] for item in items]
        places = np.zeros((max(1, spec.num_position_axes), num_rows, 1), np.int64)
        deepstack = spec.no_deepstack(num_rows, 1)
        embeddings = None if self._embed is None else self._embed(ids[:, 0])[:, None]
        for item, row in zip(items, rows, strict=True):
            inputs = self._inputs(item.sequence)
            places[:, row] = inputs.positions_of(item.start, item.stop, len(places))[:, 0]
            if embeddings is not None and item.start < item.sequence.num_prompt_tokens:
                levels = None if deepstack is None else deepstack[:, row]
                merge(inputs, embeddings[row], item.start, item.sequence.features, levels)
        extras = {} if deepstack is None else {"deepstack": deepstack}
        return Tokens(ids, embeddings, places, extras)

    def _prefill(self, item: WorkItem) -> Floats:
        """Compute a chunk of one sequence."""
        spec, sequence = self._decoder.spec, item.sequence
        inputs = self._inputs(sequence)
        ids = np.array(sequence.tokens(item.start, item.stop), np.int64)
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
        logits = self._decoder.prefill(
            self._book.slot(sequence), item.start, tokens, wants_logits=item.wants_logits
        )
        self._book.note_computed(sequence, item.start, item.stop)
        return logits

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

    def _inputs(self, sequence: Sequence) -> PromptInputs:
        if sequence not in self._prompts:
            self._prompts[sequence] = self._read(sequence.prompt)
        return self._prompts[sequence]

    def _read(self, prompt: Prompt) -> PromptInputs:
        """Read a prompt, remembered for a moment by content: no image is held."""
        key = (prompt.token_ids, tuple(slot.digest for slot in prompt.images))
        if (found := self._remembered.get(key)) is not None:
            return found
        inputs = self._remembered[key] = read_prompt(prompt, self._family)
        if len(self._remembered) > NUM_REMEMBERED_PROMPTS:
            self._remembered.popitem(last=False)
        return inputs

    def _give_back(self) -> None:
        for slot in self._book.take_discarded():
            self._decoder.memory.discard(slot)
