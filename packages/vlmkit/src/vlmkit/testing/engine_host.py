"""Runs sequences on an engine by hand, keeping the promises that loop and scheduler keep."""

from collections.abc import Callable, Mapping, Sequence as Seq
from typing import Any, Literal, cast

import numpy as np

from vlmkit.seams.engine import Engine
from vlmkit.seams.features import MediaFeatures
from vlmkit.seams.prompt import Prompt
from vlmkit.seams.sequence import Sequence
from vlmkit.seams.step import WorkItem
from vlmkit.testing.arrays import to_numpy
from vlmkit.testing.engine_sequence import EngineSequence

Row = np.ndarray[Any, Any]
Features = Callable[[Prompt], Mapping[int, MediaFeatures]]


class EngineHost:
    """One engine, driven without scheduler, sampler or loop.

    Args:
        engine: what to run.
        features: returns the encoder's results for a prompt, by image.
    """

    def __init__(self, engine: Engine, features: Features = lambda _: {}) -> None:
        self.engine = engine
        self._features = features
        self._num_scopes = 0

    def sequence(
        self, prompt: Prompt, answer: Seq[int] = (), *, scope: bytes | None = None
    ) -> EngineSequence:
        """Return a sequence that is not admitted; by default of a scope that shares nothing."""
        self._num_scopes += 1
        own = f"scope {self._num_scopes}".encode()
        return EngineSequence(
            prompt,
            self.engine.read(prompt),
            own if scope is None else scope,
            self._features(prompt),
            answer,
        )

    def admit(self, sequence: EngineSequence) -> int | None:
        """Admit a sequence; return how many of its tokens were cached, None without room."""
        if (admission := self.engine.admit(sequence)) is None:
            return None
        num_cached = admission.num_cached
        assert 0 <= num_cached <= sequence.first_row, "a token whose row is wanted must be computed"
        for span in sequence.plan.spans:
            assert not span.start < num_cached < span.stop, "the prefix cuts an atomic span"
        sequence.num_done = num_cached
        return num_cached

    def step(self, items: Seq[WorkItem], *, commits: bool = True) -> Row:
        """Compute items that want logits, if they want anything; return ``[rows, vocab]``.

        What stands is committed, as by the loop: all but drafts.
        """
        logits = self.engine.forward(items).logits
        shape = (sum(item.num_rows for item in items), self.engine.limits.vocab_size)
        rows = np.zeros((0, shape[1]), np.float32) if logits is None else to_numpy(logits)
        assert rows.shape == shape, (
            "logits are [rows, vocab]: num_rows rows for each item, a column for each of "
            "limits.vocab_size"
        )
        for item in items:
            sequence = cast(EngineSequence, item.sequence)
            sequence.num_done = item.stop - len(item.drafts)
            if commits:
                self.engine.commit(sequence, sequence.num_done)
        return rows

    def prefill(self, sequence: EngineSequence, *, chunk_tokens: int | None = None) -> Row:
        """Compute all present tokens of an admitted sequence; return the last one's logits."""
        while True:
            item = self.chunk(sequence, chunk_tokens)
            rows = self.step([item])
            if item.num_rows:
                return np.asarray(rows[0])

    def decode(self, sequence: EngineSequence, token_id: int) -> Row:
        """Append a token, compute it and return its logits."""
        return np.asarray(self.step([self.next_item(sequence, token_id)])[0])

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

    def last_logits(self, prompt: Prompt, answer: Seq[int] = ()) -> Row:
        """Return the logits after prompt and answer, computed alone and from nothing."""
        sequence = self.sequence(prompt, answer)
        assert self.admit(sequence) == 0
        row = self.prefill(sequence)
        self.engine.release(sequence)
        return row


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
