"""What an engine that returns several rows of an item must do."""

from itertools import cycle
from typing import Literal, cast

import numpy as np
import pytest
from msgspec import structs

from vlmkit.interfaces.engine import Engine, EngineLimits
from vlmkit.interfaces.prompt import Prompt
from vlmkit.interfaces.step import StepOutput, WorkItem
from vlmkit_testing.contracts.arrays import to_numpy
from vlmkit_testing.contracts.engine_host import EngineHost, Row, item_of
from vlmkit_testing.contracts.engine_sequence import EngineSequence
from vlmkit_testing.contracts.engine_subject import EngineSubject

NUM_DRAFTED = 5  # items of a step, all with drafts
NUM_MIXED = 13  # items of a step, some of which request logits and the others hidden states


class EngineRowsContract(EngineSubject):
    """Several rows, drafts and hidden states; claims that the engine does not make are skipped."""

    def test_each_row_of_an_item_is_that_of_its_token(self, host: EngineHost) -> None:
        """Scores and echoes use the rows that single steps would give."""
        answer = self.answer_ids()
        num_rows = min(len(answer), host.engine.limits.max_item_rows)
        if num_rows == 1:
            pytest.skip("this engine gives one row an item")
        for prompt in self.asked:
            expected = [host.last_logits(prompt, answer[:n]) for n in range(1, num_rows + 1)]
            for wanted in (num_rows, num_rows - 1):
                sequence = self.admitted(host, prompt)
                host.prefill(sequence)
                sequence.answer += answer[:num_rows]
                assert host.engine.reserve(sequence, len(sequence))
                rows = host.step([item_of(sequence, len(prompt), num_rows, wanted)])
                for row, right in zip(rows, expected[-wanted:], strict=True):
                    self.agree(row, right)
                host.engine.release(sequence)

    def test_an_item_has_as_many_rows_as_are_claimed(self, host: EngineHost) -> None:
        """``max_item_rows``, of which some are compared with those of single items."""
        limits = host.engine.limits
        most = min(limits.max_sequence_tokens, self.most_tokens) - len(self.shortest) - 1
        num_rows = min(limits.max_item_rows, most)
        if num_rows <= 1:
            pytest.skip("this engine gives one row an item")
        answer = self.tokens(num_rows)
        sequence = self.admitted(host, self.shortest)
        host.prefill(sequence)
        sequence.answer += answer
        assert host.engine.reserve(sequence, len(sequence))
        rows = host.step([item_of(sequence, len(self.shortest), num_rows, num_rows)])
        host.engine.release(sequence)
        for count in sorted({1, 2, num_rows // 2, num_rows - 1, num_rows} - {0}):
            self.agree(rows[count - 1], host.last_logits(self.shortest, answer[:count]))

    def test_drafts_get_the_rows_of_an_answer_that_holds_them(self, host: EngineHost) -> None:
        """A draft is verified by the logits that it would have had as a token."""
        token_id, *guesses = drafts = self.drafts(host.engine)
        for prompt in self.asked:
            sequence = self.admitted(host, prompt)
            host.prefill(sequence)
            rows = host.step([host.next_item(sequence, token_id, tuple(guesses))])
            host.engine.release(sequence)
            for count, row in enumerate(rows, start=1):
                self.agree(row, host.last_logits(prompt, drafts[:count]))

    def test_drafts_that_are_refused_leave_nothing_behind(self, host: EngineHost) -> None:
        """The answer continues as if they had never been tried, however many were accepted."""
        drafts = self.drafts(host.engine)
        token_id, *guesses = drafts
        other = drafts[-1]
        for prompt in self.asked:
            for num_accepted in sorted({0, 1, len(guesses) // 2, len(guesses)}):
                sequence = self.admitted(host, prompt)
                host.prefill(sequence)
                item = host.next_item(sequence, token_id, tuple(guesses))
                host.step([item])
                host.accept(item, num_accepted)
                row = host.decode(sequence, other)
                host.engine.release(sequence)
                answer = [token_id, *guesses[:num_accepted], other]
                self.agree(row, host.last_logits(prompt, answer))

    def test_drafts_run_beside_other_items_of_a_step(self, host: EngineHost) -> None:
        """Rows are in the order of the items, for any number of drafts."""
        token_id, *guesses = drafts = self.drafts(host.engine)
        first, second = self.together(host.engine.limits)[:2]
        expected = [
            host.last_logits(second, [token_id]),
            *(host.last_logits(first, drafts[: n + 1]) for n in range(len(drafts))),
        ]
        drafted, plain = self.admitted(host, first), self.admitted(host, second)
        host.prefill(drafted)
        host.prefill(plain)
        items = [
            host.next_item(plain, token_id),
            host.next_item(drafted, token_id, tuple(guesses)),
        ]
        for row, right in zip(host.step(items), expected, strict=True):
            self.agree(row, right)
        self.release(host, [drafted, plain])

    def test_every_item_of_a_step_may_have_all_its_drafts(self, host: EngineHost) -> None:
        """``max_draft_tokens`` and ``max_item_rows`` hold for each item, not for the step."""
        token_id, *guesses = drafts = self.drafts(host.engine)
        self.together(host.engine.limits)
        items = list[WorkItem]()
        for number in range(NUM_DRAFTED):
            prompt = self.asked[number % len(self.asked)]
            sequence = host.sequence(prompt)
            if host.admit(sequence) is None:
                break
            host.prefill(sequence)
            if not host.engine.reserve(sequence, len(sequence) + len(drafts)):
                host.engine.release(sequence)
                break
            own = guesses[number:] + guesses[:number]
            items.append(host.next_item(sequence, token_id, tuple(own)))
        rows = host.step(items)
        self.release(host, [cast(EngineSequence, item.sequence) for item in items])
        for number, item in enumerate(items):
            for count in {0, len(guesses) // 2, len(guesses)}:
                answer = [token_id, *item.drafts[:count]]
                expected = host.last_logits(item.sequence.prompt, answer)
                self.agree(rows[number * len(drafts) + count], expected)

    def test_hidden_states_are_a_function_of_the_tokens(self, host: EngineHost) -> None:
        """Each row has one, alone, in a batch, and beside items that want logits."""
        self._needs_states(host.engine)
        alone = []
        for prompt in self.asked:
            sequence = self.admitted(host, prompt)
            self.leave_one_chunk(host, sequence)
            alone.append(host.hidden([structs.replace(host.chunk(sequence), output="hidden")])[0])
            assert np.isfinite(alone[-1]).all()
            host.engine.release(sequence)
        assert np.abs(alone[0] - alone[-1]).max() > self.atol, "every prompt has the same state"
        if not host.engine.limits.mixes_prefill_and_decode:
            return
        self._check_mixed_rows(host, alone)

    def test_each_token_of_a_chunk_may_have_its_hidden_state(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """Mean pooling needs all of them; they equal those of single steps."""
        self._needs_states(host.engine)
        whole, parts = self._states(host, longest, None), self._states(host, longest, 3)
        assert len(whole) == len(longest)
        assert np.abs(whole[0] - whole[-1]).max() > self.atol, "every token has the same state"
        np.testing.assert_allclose(parts, whole, atol=self.atol, rtol=0)
        for most in (1, 2, 3, 5):
            alone = self.admitted(host, longest)
            self.leave_one_chunk(host, alone)
            item = host.chunk(alone)
            num_rows = min(most, item.num_tokens)
            last = host.hidden([structs.replace(item, num_rows=num_rows, output="hidden")])
            np.testing.assert_allclose(whole[-num_rows:], last, atol=self.atol, rtol=0)
            host.engine.release(alone)

    def test_items_of_a_step_may_want_different_numbers_of_rows(self, host: EngineHost) -> None:
        """Of logits or of hidden states: each item gets those that it gets alone."""
        limits = host.engine.limits
        if not limits.mixes_prefill_and_decode or limits.max_item_rows == 1 > limits.hidden_size:
            pytest.skip("the items of its steps have one row each")
        items = list[WorkItem]()
        for prompt in cycle(self.together(limits)):
            sequence = host.sequence(prompt)
            if len(items) == NUM_MIXED or host.admit(sequence) is None:
                break
            self.leave_one_chunk(host, sequence)
            items.append(self._with_rows(host.chunk(sequence), len(items), limits))
        alone = [_copied(host.forward([item])) for item in items]
        together = _copied(host.forward(items))
        self.release(host, [cast(EngineSequence, item.sequence) for item in items])
        assert together.keys() == set().union(*alone)
        for kind, rows in together.items():
            wanted = np.concatenate([each[kind] for each in alone if kind in each])
            np.testing.assert_allclose(rows, wanted, atol=self.atol, rtol=0)

    # Helpers

    def _with_rows(self, item: WorkItem, number: int, limits: EngineLimits) -> WorkItem:
        """Return the last chunk of a prompt that wants some rows, depending on a number."""
        output: Literal["logits", "hidden"] = (
            "hidden" if number % 3 and limits.hidden_size else "logits"
        )
        most = item.num_tokens if output == "hidden" else limits.max_item_rows
        num_rows = min(1 + number % 4, item.num_tokens, most)
        return structs.replace(item, num_rows=num_rows, output=output)

    def _check_mixed_rows(self, host: EngineHost, states: list[Row]) -> None:
        """Fail unless each item of a step gets its own row, of logits or of hidden states.

        Args:
            host: the engine under test.
            states: the hidden state of the last token of each prompt.
        """
        self.together(host.engine.limits)
        logits = [host.last_logits(prompt) for prompt in self.asked]
        for number in (2, 3):  # every second or third item requests logits, or all others do
            for outputs in (("logits", "hidden"), ("hidden", "logits")):
                numbers = [n % len(self.asked) for n in range(NUM_MIXED)]
                sequences = [host.sequence(self.asked[n]) for n in numbers]
                while sequences[1:] and not self._fit(host, sequences):
                    sequences.pop()
                for sequence in sequences:
                    self.leave_one_chunk(host, sequence)
                kinds = [outputs[bool(place % number)] for place in range(len(sequences))]
                output = host.forward(
                    [
                        structs.replace(host.chunk(sequence), output=kind)
                        for sequence, kind in zip(sequences, kinds, strict=True)
                    ]
                )
                self.release(host, sequences)
                for kind, alone in (("logits", logits), ("hidden", states)):
                    wanted = [
                        alone[n] for n, own in zip(numbers, kinds, strict=False) if own == kind
                    ]
                    rows = getattr(output, kind)
                    found: Row | list[Row] = [] if rows is None else to_numpy(rows)
                    for row, expected in zip(found, wanted, strict=True):
                        np.testing.assert_allclose(row, expected, atol=self.atol, rtol=0)

    def _fit(self, host: EngineHost, sequences: list[EngineSequence]) -> bool:
        """Admit all sequences, or none of them."""
        for place, sequence in enumerate(sequences):
            if host.admit(sequence) is None:
                self.release(host, sequences[:place])
                return False
        return True

    def _states(self, host: EngineHost, prompt: Prompt, chunk_tokens: int | None) -> Row:
        """Return the hidden states of all tokens of a prompt, computed in chunks."""
        sequence, rows = self.admitted(host, prompt), []
        while sequence.num_done < len(prompt):
            item = host.chunk(sequence, chunk_tokens)
            rows.append(
                host.hidden([structs.replace(item, num_rows=item.num_tokens, output="hidden")])
            )
            sequence.num_done = item.stop
        host.engine.release(sequence)
        return np.concatenate(rows)

    def _needs_states(self, engine: Engine) -> None:
        if not engine.limits.hidden_size:
            pytest.skip("this engine does not claim to give hidden states")

    def drafts(self, engine: Engine) -> list[int]:
        """Return a token and as many drafts as the engine allows."""
        if not engine.limits.max_draft_tokens:
            pytest.skip("this engine does not claim to take drafts")
        room = min(engine.limits.max_sequence_tokens, self.most_tokens) - max(map(len, self.asked))
        return self.tokens(1 + min(engine.limits.max_draft_tokens, self.most_drafts, room - 2))


def _copied(output: StepOutput) -> dict[str, Row]:
    """Return copies of the rows of a step, by kind: their memory is the engine's."""
    rows = {"logits": output.logits, "hidden": output.hidden}
    return {kind: np.array(to_numpy(own)) for kind, own in rows.items() if own is not None}
