"""What an engine must do when a step is computed again, and when answers share a plan."""

from collections.abc import Iterator, Sequence as Seq
from typing import cast

import numpy as np
import pytest
from msgspec import structs

from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.step import WorkItem
from vlmkit_testing.contracts.arrays import to_numpy
from vlmkit_testing.contracts.engine_host import EngineHost, Row
from vlmkit_testing.contracts.engine_sequence import EngineSequence
from vlmkit_testing.contracts.engine_subject import EngineSubject

NUM_KINDS = 5
NUM_DRAFTS = 3


class EngineRepeatContract(EngineSubject):
    """Steps of chunks, answers, drafts and hidden states, each computed more than once."""

    def test_a_step_of_any_kind_may_be_repeated(self, host: EngineHost) -> None:
        """Alone, together, and without the drafts: the loop isolates a failure so.

        Other items change no bit of a row of logits where the engine claims batch invariance.
        """
        items = self._items(host)
        for step in self._steps(items, host.engine.limits):
            together = self._rows(host, step)
            for item, rows in zip(reversed(step), reversed(together), strict=True):
                (alone,) = self._rows(host, [item])
                self._equal(alone, rows, host.engine.limits, item)
                (first,) = self._rows(host, [without_drafts(item)])
                np.testing.assert_allclose(first[:1], rows[:1], atol=self.atol, rtol=0)
            for again, rows, item in zip(self._rows(host, step), together, step, strict=True):
                self._equal(again, rows, host.engine.limits, item)
        self._continue(host, items)

    def test_a_step_without_its_drafts_may_follow_it(self, host: EngineHost) -> None:
        """The loop leaves the drafts out of a step that failed, and the answer goes on."""
        if not host.engine.limits.max_draft_tokens:
            pytest.skip("this engine does not claim to take drafts")
        token_id, other = self.answer_ids()[:2]
        for prompt in self.asked:
            sequence = self.admitted(host, prompt)
            host.prefill(sequence)
            item = self._drafted(host, sequence, token_id)
            host.forward([item])
            rows = [host.step([without_drafts(item)])[0]]
            rows += [host.decode(sequence, other) for _ in range(2)]
            host.engine.release(sequence)
            for count, row in enumerate(rows, start=1):
                self.agree(row, host.last_logits(prompt, [token_id, other, other][:count]))

    def test_answers_to_one_prompt_share_its_plan(self, host: EngineHost) -> None:
        """A plan is never changed: several answers to a prompt start from one, side by side."""
        self.together(host.engine.limits)
        first, second = self.answer_ids()[:2]
        for prompt in self.asked:
            expected = [host.last_logits(prompt, [each]) for each in (first, second)]
            one = host.sequence(prompt)
            other = host.sequence(prompt)
            other.plan = one.plan
            assert host.admit(one) == 0
            self.leave_one_chunk(host, one)
            assert host.admit(other) == 0, "there is no room, or a cached prefix of another scope"
            host.prefill(other)
            host.prefill(one)
            self.agree(host.decode(one, first), expected[0])
            host.engine.release(one)
            self.agree(host.decode(other, second), expected[1])
            host.engine.release(other)
            third = host.sequence(prompt)
            third.plan = one.plan
            assert host.admit(third) == 0
            host.prefill(third)
            self.agree(host.decode(third, first), expected[0])
            host.engine.release(third)

    # Helpers

    def _items(self, host: EngineHost) -> list[WorkItem]:
        """Return an item of each kind, as far as the engine takes it and has room."""
        limits, items = host.engine.limits, list[WorkItem]()
        for number in range(min(NUM_KINDS * len(self.asked), limits.max_sequences)):
            prompt = self.asked[number % len(self.asked)]
            sequence = host.sequence(prompt)
            if host.admit(sequence) is None:
                break
            items.append(self._item(host, sequence, number % NUM_KINDS))
        return items

    def _item(self, host: EngineHost, sequence: EngineSequence, kind: int) -> WorkItem:
        """Return a chunk with or without a row, or a token of an answer, perhaps with drafts."""
        token_id = self.answer_ids()[0]
        if kind in (0, 1):
            host.prefill(sequence)
            if kind == 0 and host.engine.limits.max_draft_tokens:
                return self._drafted(host, sequence, token_id)
            return host.next_item(sequence, token_id)
        if kind == 2:
            return host.chunk(sequence, max(1, len(sequence) // 2))
        self.leave_one_chunk(host, sequence)
        item = host.chunk(sequence)
        is_hidden = kind == 3 and host.engine.limits.hidden_size
        return structs.replace(item, output="hidden") if is_hidden else item

    def _drafted(self, host: EngineHost, sequence: EngineSequence, token_id: int) -> WorkItem:
        num_drafts = min(host.engine.limits.max_draft_tokens, self.most_drafts, NUM_DRAFTS)
        return host.next_item(sequence, token_id, tuple(self.tokens(num_drafts + 1)[1:]))

    def _steps(self, items: list[WorkItem], limits: EngineLimits) -> Iterator[list[WorkItem]]:
        """Yield the steps that an engine may be given of some items."""
        if limits.mixes_prefill_and_decode:
            yield items
            return
        answers = [item for item in items if item.start >= len(item.sequence.prompt)]
        yield from ([answers] if answers else [])
        yield from ([item] for item in items if item not in answers)

    def _rows(self, host: EngineHost, items: Seq[WorkItem]) -> list[Row]:
        """Return copies of the rows of each item."""
        output = host.forward(items)
        made = {
            kind: np.zeros((0, 0)) if rows is None else np.array(to_numpy(rows))
            for kind, rows in (("logits", output.logits), ("hidden", output.hidden))
        }
        found, place = [], dict.fromkeys(made, 0)
        for item in items:
            start = place[item.output]
            place[item.output] = stop = start + item.num_rows
            found.append(made[item.output][start:stop] if item.num_rows else np.zeros((0, 0)))
            assert len(found[-1]) == item.num_rows, "a step has too few rows"
        return found

    def _equal(self, found: Row, rows: Row, limits: EngineLimits, item: WorkItem) -> None:
        np.testing.assert_allclose(found, rows, atol=self.atol, rtol=0)
        if limits.is_batch_invariant and item.output == "logits":
            np.testing.assert_array_equal(found, rows, "claimed as limits.is_batch_invariant")

    def _continue(self, host: EngineHost, items: list[WorkItem]) -> None:
        """Refuse all drafts, and fail unless each sequence goes on as if computed once."""
        for item in items:
            sequence = cast(EngineSequence, item.sequence)
            if item.drafts:
                host.accept(item, 0)
            else:
                sequence.num_done = item.stop
                host.commit(sequence, item.start)
        sequences = [cast(EngineSequence, item.sequence) for item in items]
        for sequence in sequences:
            if sequence.num_done < len(sequence):
                host.prefill(sequence)
        rows = [host.decode(sequence, self.answer_ids()[1]) for sequence in sequences]
        self.release(host, sequences)
        for sequence, row in zip(sequences, rows, strict=True):
            self.agree(row, host.last_logits(sequence.prompt, sequence.answer))


def without_drafts(item: WorkItem) -> WorkItem:
    """Return an item without its drafts, as the loop computes it after a failure."""
    if not item.drafts:
        return item
    num_tokens = item.num_tokens - len(item.drafts)
    return structs.replace(item, num_tokens=num_tokens, num_rows=1, drafts=())
