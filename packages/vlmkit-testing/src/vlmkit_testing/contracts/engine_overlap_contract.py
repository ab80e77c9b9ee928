"""What an engine must do that starts a step before the tokens of the last one are read."""

from collections.abc import Sequence as Seq
from typing import Any

import array_api_compat
import numpy as np
import pytest

from vlmkit.interfaces.engine import Engine, OverlapsSteps
from vlmkit.interfaces.prompt import Array
from vlmkit.interfaces.step import WorkItem
from vlmkit_testing.contracts.engine_host import EngineHost, Row, item_of
from vlmkit_testing.contracts.engine_sequence import EngineSequence
from vlmkit_testing.contracts.engine_subject import EngineSubject

NUM_STEPS = 20  # ahead, at most
NUM_READS = 3  # that are started before the first one ends


class EngineOverlapContract(EngineSubject):
    """Steps whose tokens only the device knows; skipped if the engine does not claim them."""

    def test_a_step_ahead_has_the_rows_of_its_tokens(self, host: EngineHost) -> None:
        """Each item gets its own token, in any order, and further steps may follow."""
        overlapping(host.engine)
        sequences = self.prefilled(host)[::-1]
        answers = [self.tokens(4 + place)[place:] for place in range(len(sequences))]
        tokens = on_device(host, sequences, [answer[0] for answer in answers])
        for later in range(1, 4):
            rows = self.ahead(host, sequences, tokens, [answer[later - 1] for answer in answers])
            for sequence, row in zip(sequences, rows, strict=True):
                self.agree(row, host.last_logits(sequence.prompt, sequence.answer))
            tokens = beside(tokens, [answer[later] for answer in answers])
        self.release(host, sequences)

    def test_a_step_follows_one_ahead(self, host: EngineHost) -> None:
        """A planned step reads what a step ahead has computed."""
        overlapping(host.engine)
        sequences, (first, second, *_) = self.prefilled(host), self.answer_ids()
        tokens = on_device(host, sequences, [first] * len(sequences))
        self.ahead(host, sequences, tokens, [first] * len(sequences))
        rows = host.step([host.next_item(sequence, second) for sequence in sequences])
        for sequence, row in zip(sequences, rows, strict=True):
            self.agree(row, host.last_logits(sequence.prompt, [first, second]))
        self.release(host, sequences)

    def test_a_step_ahead_that_is_discarded_leaves_nothing(self, host: EngineHost) -> None:
        """The last step may run again, and the answer goes on with other tokens."""
        overlapping(host.engine)
        wrong, first, second, *_ = self.answer_ids()
        sequences = self.prefilled(host)
        items = [host.next_item(sequence, first) for sequence in sequences]
        expected = host.step(items)
        tokens = beside(host.forward(items).logits, [wrong] * len(items))
        started = started_items(host, sequences)
        overlapping(host.engine).forward_next(started, tokens)
        for item in started:
            host.engine.truncate(item.sequence, item.start)
        for row, right in zip(host.step(items, commits=False), expected, strict=True):
            self.agree(row, right)
        for sequence in sequences:
            self.agree(
                host.decode(sequence, second), host.last_logits(sequence.prompt, [first, second])
            )
        self.release(host, sequences)

    def test_the_right_token_may_follow_a_discarded_one(self, host: EngineHost) -> None:
        """The loop passes the items of the step ahead to ``forward``, once or again and again."""
        overlapping(host.engine)
        first, second, *wrong = self.answer_ids()
        sequences = self.prefilled(host)
        host.step([host.next_item(sequence, first) for sequence in sequences])
        for token_id in wrong:
            tokens = on_device(host, sequences, [token_id] * len(sequences))
            started = started_items(host, sequences)
            overlapping(host.engine).forward_next(started, tokens)
            for item in started:
                host.engine.truncate(item.sequence, item.start)
        rows = [host.step([host.next_item(sequence, second) for sequence in sequences])]
        rows += [host.step([host.next_item(sequence, first) for sequence in sequences])]
        self.release(host, sequences)
        for number, sequence in enumerate(sequences):
            self.agree(rows[0][number], host.last_logits(sequence.prompt, [first, second]))
            self.agree(rows[1][number], host.last_logits(sequence.prompt, [first, second, first]))

    def test_many_steps_ahead_may_follow_each_other(self, host: EngineHost) -> None:
        """Into the next block of the cache, with tokens of either size, while some answers end."""
        overlapping(host.engine)
        sequences = self.prefilled(host)
        longest = max(len(sequence) for sequence in sequences)
        room = min(host.engine.limits.max_sequence_tokens, self.most_tokens) - longest - 2
        num_steps = min(NUM_STEPS, host.engine.limits.prefix_block_tokens + 2, room)
        answer = self.tokens(num_steps + 1)
        tokens = on_device(host, sequences, [answer[0]] * len(sequences))
        for number in range(num_steps):
            if number == num_steps // 2 and len(sequences) > 1:
                host.engine.release(sequences.pop(0))
                tokens = tokens[1:]
            rows = self.ahead(host, sequences, tokens, [answer[number]] * len(sequences))
            is_short = number % 2 == 0
            tokens = beside(tokens, [answer[number + 1]] * len(sequences), is_short=is_short)
        self.release(host, sequences)
        for sequence, row in zip(sequences, rows, strict=True):
            self.agree(row, host.last_logits(sequence.prompt, answer[:num_steps]))

    def test_a_sequence_may_end_while_its_next_token_is_computed(self, host: EngineHost) -> None:
        """Its room may be taken at once, and the other sequences go on."""
        overlapping(host.engine)
        first, second, *_ = self.answer_ids()
        ended, *others = sequences = self.prefilled(host)
        tokens = on_device(host, sequences, [first] * len(sequences))
        started = started_items(host, sequences)
        output = overlapping(host.engine).forward_next(started, tokens)
        host.engine.release(ended)
        row = host.last_logits(ended.prompt, [second])
        self.agree(row, EngineHost(self.make(), self.features).last_logits(ended.prompt, [second]))
        tokens = beside(output.logits, [second] * len(others))
        for sequence in others:
            sequence.answer.append(first)
            sequence.num_done = len(sequence)
        rows = self.ahead(host, others, tokens, [second] * len(others))
        for sequence, row in zip(others, rows, strict=True):
            self.agree(row, host.last_logits(sequence.prompt, [first, second]))
        self.release(host, others)

    def test_a_read_returns_what_was_there_when_it_was_started(self, host: EngineHost) -> None:
        """The next step may use the same memory."""
        engine = overlapping(host.engine)
        first, second, *_ = self.answer_ids()
        sequences = self.prefilled(host)
        items = [host.next_item(sequence, first) for sequence in sequences]
        rows = host.step(items)
        logits: Any = host.forward(items).logits
        xp = array_api_compat.array_namespace(logits)
        waits = [engine.start_read(xp.astype(logits, xp.float64)), engine.start_read(logits + 1)]
        tokens = beside(logits, [second] * len(items))
        engine.forward_next(started_items(host, sequences), tokens)
        found, raised = (np.asarray(wait()) for wait in waits)
        assert found.shape == rows.shape
        np.testing.assert_allclose(found, rows, atol=self.atol, rtol=0)
        np.testing.assert_allclose(raised, rows + 1, atol=2 * self.atol + 0.01, rtol=0.01)
        self.release(host, sequences)

    def test_reads_may_end_after_further_steps_and_in_any_order(self, host: EngineHost) -> None:
        """Each returns the rows of its own step, which are read where the engine returned them.

        The loop samples on the device, starts the next step, and only then waits for the read.
        """
        engine, answer = overlapping(host.engine), self.tokens(NUM_READS)
        sequences = self.prefilled(host)
        known = [
            host.last_logits(each.prompt, answer[:n])
            for n in range(NUM_READS)
            for each in sequences
        ]
        last = [item_of(sequence, len(sequence) - 1, 1, 1) for sequence in sequences]
        logits: Any = host.forward(last).logits
        waits = [engine.start_read(logits)]
        for token_id in answer[:-1]:
            tokens = beside(logits, [token_id] * len(sequences))
            logits = engine.forward_next(started_items(host, sequences), tokens).logits
            waits.append(engine.start_read(logits))
            for sequence in sequences:
                sequence.answer.append(token_id)
        self.release(host, sequences)
        found = [np.array(wait()) for wait in reversed(waits)]
        for row, expected in zip(np.concatenate(found[::-1]), known, strict=True):
            self.agree(row, expected)

    # Helpers

    def prefilled(self, host: EngineHost) -> list[EngineSequence]:
        """Return sequences of several prompts whose tokens are all computed."""
        most = max(1, min(host.engine.limits.max_sequences - 1, len(self.asked)))
        sequences = [self.admitted(host, prompt) for prompt in self.asked[:most]]
        for sequence in sequences:
            host.prefill(sequence)
        return sequences

    def ahead(
        self, host: EngineHost, sequences: Seq[EngineSequence], token_ids: Array, known: Seq[int]
    ) -> Row:
        """Compute a token of each sequence before the sequences hold it; return the rows."""
        items = started_items(host, sequences)
        output = overlapping(host.engine).forward_next(items, token_ids)
        rows = host.rows_of(output.logits, items, host.engine.limits.vocab_size)
        for sequence, token_id, item in zip(sequences, known, items, strict=True):
            sequence.answer.append(token_id)
            sequence.num_done = item.stop
            host.commit(sequence, item.start)
        return rows


def overlapping(engine: Engine) -> OverlapsSteps:
    """Return the engine's optional part; skip if it is not claimed."""
    if not engine.limits.overlaps_steps:
        pytest.skip("this engine does not claim limits.overlaps_steps")
    assert isinstance(engine, OverlapsSteps), "it claims limits.overlaps_steps without the methods"
    return engine


def started_items(host: EngineHost, sequences: Seq[EngineSequence]) -> list[WorkItem]:
    """Return items of tokens that the sequences do not hold, with room for them."""
    for sequence in sequences:
        assert host.engine.reserve(sequence, len(sequence) + 1), "no room for one more token"
    return [item_of(sequence, len(sequence), 1, 1) for sequence in sequences]


def beside(array: Any, token_ids: Seq[int], *, is_short: bool = False) -> Any:
    """Return token ids as an array of the same library, on the same device as another."""
    xp = array_api_compat.array_namespace(array)
    dtype = xp.int32 if is_short else xp.int64
    return xp.asarray(list(token_ids), dtype=dtype, device=array_api_compat.device(array))


def on_device(host: EngineHost, sequences: Seq[EngineSequence], token_ids: Seq[int]) -> Any:
    """Return tokens that follow sequences, in the memory of the engine's device."""
    last = [item_of(sequence, len(sequence) - 1, 1, 1) for sequence in sequences]
    return beside(host.forward(last).logits, token_ids)
