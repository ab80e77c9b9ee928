"""Runs sequences on an engine by hand, keeping the promises that loop and scheduler keep."""

from collections.abc import Callable, Mapping, Sequence as Seq
from typing import Any

import numpy as np

from vlmkit.prompt import Prompt
from vlmkit.protocols import Engine, ImageFeatures
from vlmkit.sequence import Sequence
from vlmkit.step import WorkItem
from vlmkit.testing.arrays import to_numpy
from vlmkit.testing.sequences import new_sequence

Row = np.ndarray[Any, Any]
Features = Callable[[Prompt], Mapping[int, ImageFeatures]]


class EngineHost:
    """One engine, driven without scheduler, sampler or loop.

    Args:
        engine: what to run.
        features: returns the encoder's results for a prompt, by image.
    """

    def __init__(self, engine: Engine, features: Features = lambda _: {}) -> None:
        self.engine = engine
        self._features = features
        self._num_tenants = 0

    def sequence(
        self, prompt: Prompt, output_ids: Seq[int] = (), *, tenant: str | None = None
    ) -> Sequence:
        """Return a sequence that is not admitted; by default of a tenant that shares nothing."""
        self._num_tenants += 1
        made = new_sequence(
            prompt,
            output_ids=output_ids,
            tenant=f"tenant-{self._num_tenants}" if tenant is None else tenant,
            atomic_spans=self.engine.atomic_spans(prompt),
        )
        made.features.update(self._features(prompt))
        return made

    def admit(self, sequence: Sequence) -> int | None:
        """Admit a sequence; return how many of its tokens were cached, None without room."""
        num_cached = self.engine.admit(sequence)
        if num_cached is not None:
            assert 0 <= num_cached < len(sequence), "at least the newest token must be computed"
            for span in sequence.atomic_spans:
                assert not span.start < num_cached < span.stop, "the prefix cuts an atomic span"
            sequence.num_computed_tokens = num_cached
        return num_cached

    def step(self, items: Seq[WorkItem]) -> Row:
        """Compute items and return their logits ``[rows, vocab]``."""
        rows = to_numpy(self.engine.forward(items))
        expected = (sum(item.wants_logits for item in items), self.engine.limits.vocab_size)
        assert rows.shape == expected, (
            "logits are [rows, vocab]: a row for each item with wants_logits, a column for each of "
            "limits.vocab_size"
        )
        for item in items:
            item.sequence.num_computed_tokens = item.stop
        return rows

    def prefill(self, sequence: Sequence, *, chunk_tokens: int | None = None) -> Row:
        """Compute all present tokens of an admitted sequence; return the last one's logits."""
        while True:
            item = self.chunk(sequence, chunk_tokens)
            rows = self.step([item])
            if item.wants_logits:
                return np.asarray(rows[0])

    def decode(self, sequence: Sequence, token_id: int) -> Row:
        """Append a token, compute it and return its logits."""
        return np.asarray(self.step([self.next_item(sequence, token_id)])[0])

    def next_item(self, sequence: Sequence, token_id: int) -> WorkItem:
        """Append a token, make room for it and return the item that computes it."""
        sequence.output_ids.append(token_id)
        assert self.engine.reserve(sequence, len(sequence)), "no room for one more token"
        return WorkItem(sequence, len(sequence) - 1, 1, wants_logits=True)

    def chunk(self, sequence: Sequence, chunk_tokens: int | None = None) -> WorkItem:
        """Return the next item of a prefill: never longer than allowed, never cutting a span."""
        start, num_tokens = sequence.num_computed_tokens, len(sequence)
        longest = self.engine.limits.max_chunk_tokens
        stop = min(num_tokens, start + min(chunk_tokens or longest, longest))
        for span in sequence.atomic_spans:
            if span.start < stop < span.stop:
                stop = span.start if span.start > start else span.stop
        return WorkItem(sequence, start, stop - start, wants_logits=stop == num_tokens)

    def last_logits(self, prompt: Prompt, output_ids: Seq[int] = ()) -> Row:
        """Return the logits after prompt and answer, computed alone and from nothing."""
        sequence = self.sequence(prompt, output_ids)
        assert self.admit(sequence) == 0
        row = self.prefill(sequence)
        self.engine.release(sequence)
        return row
