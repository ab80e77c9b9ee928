"""What an engine must do that gives more than a row for an item's last token."""

import numpy as np
import pytest
from msgspec import structs

from vlmkit.seams.engine import Engine
from vlmkit.seams.prompt import Prompt
from vlmkit.seams.step import WorkItem
from vlmkit.testing.arrays import to_numpy
from vlmkit.testing.engine_host import EngineHost, Row, item_of
from vlmkit.testing.engine_subject import EngineSubject


class EngineRowsContract(EngineSubject):
    """Several rows, drafts and hidden states; what is not claimed is skipped."""

    def test_each_row_of_an_item_is_that_of_its_token(self, host: EngineHost) -> None:
        """What a score or an echo asks for is what single steps would give."""
        answer = self.answer_ids()
        num_rows = min(len(answer), host.engine.limits.max_item_rows)
        if num_rows == 1:
            pytest.skip("this engine gives one row an item")
        for prompt in self.prompts():
            sequence = self.admitted(host, prompt)
            host.prefill(sequence)
            sequence.answer += answer[:num_rows]
            assert host.engine.reserve(sequence, len(sequence))
            rows = host.step([item_of(sequence, len(prompt), num_rows, num_rows)])
            for count, row in enumerate(rows, start=1):
                self.agree(row, host.last_logits(prompt, answer[:count]))
            host.engine.release(sequence)

    def test_drafts_get_the_rows_of_an_answer_that_holds_them(self, host: EngineHost) -> None:
        """A draft is verified by the logits that it would have had as a token."""
        drafts = self._drafts(host.engine)
        for prompt in self.prompts():
            sequence = self.admitted(host, prompt)
            host.prefill(sequence)
            token_id, *guesses = drafts
            rows = host.step([host.next_item(sequence, token_id, tuple(guesses))])
            for count, row in enumerate(rows, start=1):
                self.agree(row, host.last_logits(prompt, drafts[:count]))
            host.engine.release(sequence)

    def test_drafts_that_are_refused_leave_nothing_behind(self, host: EngineHost) -> None:
        """After them the answer goes on as if they had never been tried."""
        drafts = self._drafts(host.engine)
        token_id, *guesses = drafts
        other = drafts[-1]
        for prompt in self.prompts():
            sequence = self.admitted(host, prompt)
            host.prefill(sequence)
            host.step([host.next_item(sequence, token_id, tuple(guesses))])
            host.engine.truncate(sequence, len(sequence))
            row = host.decode(sequence, other)
            self.agree(row, host.last_logits(prompt, [token_id, other]))
            host.engine.release(sequence)

    def test_drafts_may_stand_beside_others_in_a_step(self, host: EngineHost) -> None:
        """Rows come in the order of the items, whatever their number."""
        first, second = self.prompts()[:2]
        token_id, *guesses = drafts = self._drafts(host.engine)
        drafted, plain = self.admitted(host, first), self.admitted(host, second)
        host.prefill(drafted)
        host.prefill(plain)
        rows = host.step(
            [
                host.next_item(plain, token_id),
                host.next_item(drafted, token_id, tuple(guesses)),
            ]
        )
        self.agree(rows[0], host.last_logits(second, [token_id]))
        for count, row in enumerate(rows[1:], start=1):
            self.agree(row, host.last_logits(first, drafts[:count]))
        self.release(host, [drafted, plain])

    def test_hidden_states_are_a_function_of_the_tokens(self, host: EngineHost) -> None:
        """One for each row, in a batch as alone, and beside items that want logits."""
        width = host.engine.limits.hidden_size
        if not width:
            pytest.skip("this engine does not claim to give hidden states")
        alone = []
        for prompt in self.prompts():
            sequence = self.admitted(host, prompt)
            self.leave_one_chunk(host, sequence)
            item = structs.replace(host.chunk(sequence), output="hidden")
            output = host.engine.forward([item])
            assert output.logits is None, "nobody asked for logits"
            assert output.hidden is not None, "hidden states were asked for"
            alone.append(to_numpy(output.hidden))
            assert alone[-1].shape == (1, width)
            assert np.isfinite(alone[-1]).all()
            host.engine.release(sequence)
        assert np.abs(alone[0] - alone[-1]).max() > self.atol, "every prompt has the same state"
        sequences = [self.admitted(host, prompt) for prompt in self.prompts()]
        for sequence in sequences:
            self.leave_one_chunk(host, sequence)
        items = [host.chunk(sequence) for sequence in sequences]
        if not host.engine.limits.mixes_prefill_and_decode:
            items = items[:2]
        mixed = [items[0], *(structs.replace(i, output="hidden") for i in items[1:])]
        output = host.engine.forward(mixed)
        assert output.logits is not None
        assert output.hidden is not None
        self.agree(to_numpy(output.logits)[0], host.last_logits(self.prompts()[0]))
        for row, expected in zip(to_numpy(output.hidden), alone[1 : len(mixed)], strict=True):
            np.testing.assert_allclose(row, expected[0], atol=self.atol, rtol=0)
        self.release(host, sequences)

    def test_each_token_of_a_chunk_may_have_its_hidden_state(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """A mean needs them all, and they are those that single steps would give."""
        if not host.engine.limits.hidden_size:
            pytest.skip("this engine does not claim to give hidden states")
        sequence, rows = self.admitted(host, longest), []
        while sequence.num_done < len(longest):
            item = host.chunk(sequence)
            rows += self._hidden(host, structs.replace(item, num_rows=item.num_tokens))
            sequence.num_done = item.stop
        host.engine.release(sequence)
        assert len(rows) == len(longest)
        assert np.abs(rows[0] - rows[-1]).max() > self.atol, "every token has the same state"
        alone = self.admitted(host, longest)
        self.leave_one_chunk(host, alone)
        last = self._hidden(host, host.chunk(alone))[0]
        np.testing.assert_allclose(rows[-1], last, atol=self.atol, rtol=0)
        host.engine.release(alone)

    def _hidden(self, host: EngineHost, item: WorkItem) -> list[Row]:
        """Compute an item; return its hidden states."""
        hidden = host.engine.forward([structs.replace(item, output="hidden")]).hidden
        assert hidden is not None, "hidden states were asked for"
        return list(to_numpy(hidden))

    def _drafts(self, engine: Engine) -> list[int]:
        """Return a token and as many guesses of what follows as the engine takes."""
        if not engine.limits.max_draft_tokens:
            pytest.skip("this engine does not claim to take drafts")
        return self.answer_ids()[: 1 + engine.limits.max_draft_tokens]
