"""Runs sequences on an engine without a loop, under the rules that loop and scheduler keep."""

from collections.abc import Callable, Mapping, Sequence as Seq
from typing import Any, Literal, cast

import numpy as np

from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.features import MediaFeatures
from vlmkit.interfaces.prompt import Array, Prompt
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit_testing.contracts.arrays import to_numpy
from vlmkit_testing.contracts.engine_sequence import EngineSequence

Row = np.ndarray[Any, Any]
Features = Callable[[Prompt], Mapping[int, MediaFeatures]]


class EngineHost:
    """One engine, without scheduler, sampler or loop.

    Args:
        engine: what to run.
        features: returns the encoder's results for a prompt, by image; asked once for each.
    """

    def __init__(self, engine: Engine, features: Features = lambda _: {}) -> None:
        self.engine = engine
        self._features = features
        self._encoded: dict[tuple[bytes, ...], Mapping[int, MediaFeatures]] = {}
        self._num_sequences = 0

    def sequence(
        self, prompt: Prompt, answer: Seq[int] = (), *, scope: bytes | None = None
    ) -> EngineSequence:
        """Return a sequence that is not admitted, by default of a cache scope of its own."""
        self._num_sequences += 1
        own = f"scope {self._num_sequences}".encode()
        return EngineSequence(
            f"test-{self._num_sequences}",
            prompt,
            self.engine.read(prompt),
            own if scope is None else scope,
            dict(self.encoded(prompt)),
            answer,
        )

    def encoded(self, prompt: Prompt) -> Mapping[int, MediaFeatures]:
        """Return the encoder's results for a prompt, by image."""
        digests = tuple(slot.digest for slot in prompt.media)
        if digests not in self._encoded:
            self._encoded[digests] = self._features(prompt)
        return self._encoded[digests]

    def admit(self, sequence: EngineSequence) -> int | None:
        """Admit a sequence; return how many of its tokens were cached, None without room."""
        if (admission := self.engine.admit(sequence)) is None:
            return None
        num_cached, block_tokens = admission.num_cached, self.engine.limits.prefix_block_tokens
        assert 0 <= num_cached <= sequence.first_row, "a token whose row is wanted must be computed"
        if block_tokens:
            assert num_cached % block_tokens == 0, "a prefix is not of whole blocks"
        else:
            assert num_cached == 0, "a prefix is shared, which limits.prefix_block_tokens denies"
        most = sequence.plan.max_shared_tokens
        assert most is None or num_cached <= most, "tokens are shared that the plan withholds"
        for span in sequence.plan.spans:
            assert not span.start < num_cached < span.stop, "the prefix cuts an atomic span"
        sequence.num_done = num_cached
        return num_cached

    def forward(self, items: Seq[WorkItem]) -> StepOutput:
        """Compute items, each with the features of the media that it touches."""
        sequences = [cast(EngineSequence, item.sequence) for item in items]
        whole = [sequence.features for sequence in sequences]
        for sequence, item in zip(sequences, items, strict=True):
            sequence.features = sequence.touched(item.start, item.stop)
        try:
            return self.engine.forward(items)
        finally:
            for sequence, features in zip(sequences, whole, strict=True):
                sequence.features = features

    def step(self, items: Seq[WorkItem], *, commits: bool = True) -> Row:
        """Compute items that want logits, if they want anything; return ``[rows, vocab]``.

        What stands is committed, as by the loop, when another block is whole. Of an item with
        drafts that is known when they are accepted or refused.
        """
        output = self.forward(items)
        assert output.hidden is None, "no item wants hidden states"
        rows = self.rows_of(output.logits, items, self.engine.limits.vocab_size)
        for item in items:
            sequence = cast(EngineSequence, item.sequence)
            sequence.num_done = item.stop - len(item.drafts)
            if commits and not item.drafts:
                self.commit(sequence, item.start)
        return rows

    def commit(self, sequence: EngineSequence, start: int) -> None:
        """Commit what is done, if those from ``start`` on end a block, as the loop does."""
        block_tokens = self.engine.limits.prefix_block_tokens
        if block_tokens and sequence.num_done // block_tokens > start // block_tokens:
            self.engine.commit(sequence, sequence.num_done)

    def accept(self, item: WorkItem, num_accepted: int) -> None:
        """Let the first drafts of an item stand, and refuse the others, as the loop does."""
        sequence = cast(EngineSequence, item.sequence)
        first = item.stop - len(item.drafts)
        if num_accepted < len(item.drafts):
            self.engine.truncate(sequence, first + num_accepted)
        self.commit(sequence, item.start)
        sequence.answer += item.drafts[:num_accepted]
        sequence.num_done = first + num_accepted
        self.commit(sequence, first)

    def hidden(self, items: Seq[WorkItem]) -> Row:
        """Compute items that all want hidden states; return ``[rows, hidden]``."""
        output = self.forward(items)
        assert output.logits is None, "no item wants logits"
        return self.rows_of(output.hidden, items, self.engine.limits.hidden_size)

    def prefill(self, sequence: EngineSequence, *, chunk_tokens: int | None = None) -> Row:
        """Compute all present tokens of an admitted sequence; return the last one's logits."""
        while True:
            item = self.chunk(sequence, chunk_tokens)
            rows = self.step([item])
            if item.num_rows:
                return cast(Row, rows[0])

    def decode(self, sequence: EngineSequence, token_id: int) -> Row:
        """Append a token, compute it and return its logits."""
        return cast(Row, self.step([self.next_item(sequence, token_id)])[0])

    def next_item(
        self, sequence: EngineSequence, token_id: int, drafts: tuple[int, ...] = ()
    ) -> WorkItem:
        """Append a token, make room for it and its drafts; return the item that computes them."""
        sequence.answer.append(token_id)
        num_tokens = 1 + len(drafts)
        start = len(sequence) - 1
        assert self.engine.reserve(sequence, start + num_tokens), "no room for one more token"
        return item_of(sequence, start, num_tokens, num_tokens, drafts)

    def chunk(self, sequence: EngineSequence, chunk_tokens: int | None = None) -> WorkItem:
        """Return the next item of a prefill: never longer than allowed, never cutting a span."""
        start, num_tokens = sequence.num_done, len(sequence)
        longest = self.engine.limits.max_chunk_tokens
        stop = min(num_tokens, start + min(chunk_tokens or longest, longest))
        for span in sequence.plan.spans:
            if span.start < stop < span.stop:
                stop = span.start if span.start > start else span.stop
        return item_of(sequence, start, stop - start, int(stop == num_tokens))

    def last_logits(
        self, prompt: Prompt, answer: Seq[int] = (), *, chunk_tokens: int | None = None
    ) -> Row:
        """Return the logits after prompt and answer, computed alone and from nothing."""
        sequence = self.sequence(prompt, answer)
        assert self.admit(sequence) == 0, "there is no room, or a cached prefix of another scope"
        row = self.prefill(sequence, chunk_tokens=chunk_tokens)
        self.engine.release(sequence)
        return row

    def rows_of(self, made: Array | None, items: Seq[WorkItem], width: int) -> Row:
        """Return a copy of rows: their memory is the engine's. Fail if they have another shape."""
        shape = (sum(item.num_rows for item in items), width)
        rows = np.zeros((0, width)) if made is None else to_numpy(made)
        assert rows.shape == shape, (
            "an output is [rows, columns]: num_rows rows for each item, and the columns of "
            f"limits.vocab_size or hidden_size; {rows.shape} are not {shape}"
        )
        dtype = str(getattr(made, "dtype", "float"))
        assert "float" in dtype, f"rows are floating-point numbers, not {dtype}"
        return rows


def item_of(
    sequence: EngineSequence,
    start: int,
    num_tokens: int,
    num_rows: int = 0,
    drafts: tuple[int, ...] = (),
    output: Literal["logits", "hidden"] = "logits",
) -> WorkItem:
    """Return a work item whose sequence shows an engine no more than it may read."""
    return WorkItem(cast(Sequence, sequence), start, num_tokens, num_rows, drafts, output)
