"""What every engine must do."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from msgspec import structs

from vlmkit.seams.engine import Engine
from vlmkit.seams.prompt import Prompt
from vlmkit.testing.engine_host import EngineHost
from vlmkit.testing.engine_rows_contract import EngineRowsContract
from vlmkit.testing.engine_sequence import EngineSequence

NUM_ROUNDS_BESIDE_READERS = 3
NOT_FOUND = "admit() found nothing of a prompt that was computed before and whose blocks are full"


class EngineContract(EngineRowsContract):
    """Inherit, override :meth:`make` and :meth:`prompts`, and run pytest."""

    # What the contract was given

    def test_there_are_prompts_and_answers_to_check_with(self) -> None:
        """Too few of them, and the other tests could not fail."""
        prompts = self.prompts()
        lengths = {len(prompt) for prompt in prompts}
        assert len(prompts) >= 3, "prompts() must return at least three"
        assert len(lengths) > 1, "prompts() must return prompts of different lengths"
        assert min(lengths) > 0, "prompts() must return no empty prompt"
        assert len(self.answer_ids()) >= 4, "answer_ids() must return at least four tokens"

    # Shapes

    def test_the_limits_are_positive(self, engine: Engine) -> None:
        """Every bound is at least one, and sharing is never negative."""
        limits = engine.limits
        assert limits.vocab_size > 0
        assert 0 < limits.max_sequence_tokens <= limits.capacity_tokens
        assert limits.max_sequences > 0
        assert limits.max_chunk_tokens > 0
        assert limits.prefix_block_tokens >= 0
        assert limits.hidden_size >= 0
        assert 0 <= limits.max_draft_tokens < limits.max_item_rows <= limits.max_chunk_tokens

    def test_a_step_without_items_has_no_rows(self, host: EngineHost) -> None:
        """The host checks the shape ``[0, vocab]``."""
        assert len(host.step([])) == 0

    def test_a_chunk_that_wants_no_logits_gets_none(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """Only the last chunk of a prompt has a row."""
        sequence = self.admitted(host, longest)
        item = host.chunk(sequence, len(longest) // 2)
        assert len(host.step([structs.replace(item, num_rows=0)])) == 0
        host.engine.release(sequence)

    def test_rows_come_in_the_order_of_their_items(self, host: EngineHost) -> None:
        """Whatever the order, each sequence gets its own row."""
        expected = [host.last_logits(prompt) for prompt in self.prompts()]
        sequences = [self.admitted(host, prompt) for prompt in self.prompts()]
        for sequence in sequences:
            self.leave_one_chunk(host, sequence)
        items = [host.chunk(sequence) for sequence in reversed(sequences)]
        for row, wanted in zip(host.step(items), reversed(expected), strict=True):
            self.agree(row, wanted)
        self.release(host, sequences)

    # Numbers

    def test_two_engines_agree(self, host: EngineHost) -> None:
        """Logits are a function of the tokens."""
        other = EngineHost(self.make(), self.features)
        for prompt in self.prompts():
            self.agree(other.last_logits(prompt), host.last_logits(prompt))
        other.engine.close()

    def test_a_chunked_prefill_agrees_with_a_whole_one(self, host: EngineHost) -> None:
        """Chunks may end anywhere but inside an atomic span."""
        for prompt in self.prompts():
            expected = host.last_logits(prompt)
            for chunk_tokens in (max(1, len(prompt) // 3), max(1, len(prompt) - 1)):
                sequence = self.admitted(host, prompt)
                self.agree(host.prefill(sequence, chunk_tokens=chunk_tokens), expected)
                host.engine.release(sequence)

    def test_decoding_agrees_with_a_prefill_of_the_same_tokens(self, host: EngineHost) -> None:
        """The cache holds what a fresh computation would."""
        answer = self.answer_ids()
        for prompt in self.prompts():
            sequence = self.admitted(host, prompt)
            host.prefill(sequence)
            for count, token_id in enumerate(answer, start=1):
                row = host.decode(sequence, token_id)
                self.agree(row, host.last_logits(prompt, answer[:count]))
            host.engine.release(sequence)

    def test_a_sequence_alone_agrees_with_the_same_in_a_batch(self, host: EngineHost) -> None:
        """Neighbours change nothing; not one bit, where the engine claims that."""
        answer, alone = self.answer_ids(), []
        for prompt in self.prompts():
            sequence = self.admitted(host, prompt)
            host.prefill(sequence)
            alone.append([host.decode(sequence, token_id) for token_id in answer])
            host.engine.release(sequence)
        sequences = [self.admitted(host, prompt) for prompt in self.prompts()]
        for sequence in sequences:
            host.prefill(sequence)
        for step, token_id in enumerate(answer):
            rows = host.step([host.next_item(sequence, token_id) for sequence in sequences])
            for row, expected in zip(rows, alone, strict=True):
                self.agree(row, expected[step])
                if host.engine.limits.is_batch_invariant:
                    np.testing.assert_array_equal(row, expected[step])
        self.release(host, sequences)

    def test_a_step_may_mix_prefill_and_decode(self, host: EngineHost, longest: Prompt) -> None:
        """Checked only where the engine claims it."""
        if not host.engine.limits.mixes_prefill_and_decode:
            pytest.skip("this engine does not claim to mix prefill and decode")
        short, token_id = min(self.prompts(), key=len), self.answer_ids()[0]
        decoding, reading = self.admitted(host, short), self.admitted(host, longest)
        host.prefill(decoding)
        self.leave_one_chunk(host, reading)
        rows = host.step([host.next_item(decoding, token_id), host.chunk(reading)])
        self.agree(rows[0], host.last_logits(short, [token_id]))
        self.agree(rows[1], host.last_logits(longest))
        self.release(host, [decoding, reading])

    def test_a_step_may_be_repeated(self, host: EngineHost, longest: Prompt) -> None:
        """A loop that finds the culprit of a failed step computes the others again."""
        sequence = self.admitted(host, longest)
        host.prefill(sequence)
        item = host.next_item(sequence, self.answer_ids()[0])
        once = host.step([item])[0]
        self.agree(host.step([item])[0], once)
        host.engine.release(sequence)

    def test_another_picture_changes_the_logits(self, host: EngineHost) -> None:
        """The engine looks at the features it is given."""
        first, second = (host.last_logits(prompt) for prompt in self._twins())
        assert np.abs(first - second).max() > self.atol

    # Shared prefixes

    def test_what_is_not_committed_is_nobody_elses(self, host: EngineHost, longest: Prompt) -> None:
        """Drafts are computed beside tokens, and must not be found as if they were some."""
        self._needs_sharing(host.engine, longest)
        sequence = host.sequence(longest, scope=b"a")
        assert host.admit(sequence) == 0
        while not (item := host.chunk(sequence)).num_rows:
            host.step([item], commits=False)
        host.step([item], commits=False)
        host.engine.release(sequence)
        again = host.sequence(longest, scope=b"a")
        assert host.admit(again) == 0
        host.engine.release(again)

    def test_a_cached_prefix_is_used_and_changes_nothing(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """The second time, whole blocks are found; the logits stay."""
        self._needs_sharing(host.engine, longest)
        expected = host.last_logits(longest)
        self._run(host, longest, scope=b"a")
        again = host.sequence(longest, scope=b"a")
        assert host.admit(again), NOT_FOUND
        self.agree(host.prefill(again), expected)
        host.engine.release(again)

    def test_a_prefix_is_shared_with_one_that_still_runs(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """Two that share a prefix and then differ do not touch each other."""
        self._needs_sharing(host.engine, longest)
        first, second = host.sequence(longest, scope=b"a"), host.sequence(longest, scope=b"a")
        assert host.admit(first) == 0
        host.prefill(first)
        assert host.admit(second), NOT_FOUND
        host.prefill(second)
        one, other = self.answer_ids()[:2]
        self.agree(host.decode(second, other), host.last_logits(longest, [other]))
        self.agree(host.decode(first, one), host.last_logits(longest, [one]))
        host.engine.release(first)
        self.agree(host.decode(second, one), host.last_logits(longest, [other, one]))
        host.engine.release(second)

    def test_a_cached_prefix_ends_before_the_first_wanted_row(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """A cache holds no rows: a token whose row is wanted is computed, though it is known."""
        self._needs_sharing(host.engine, longest)
        self._run(host, longest, scope=b"a")
        for first_row in (len(longest) // 2, 0):
            sequence = host.sequence(longest, scope=b"a")
            sequence.wants_from = first_row
            assert host.admit(sequence) is not None
            self.agree(host.prefill(sequence), host.last_logits(longest))
            host.engine.release(sequence)

    def test_a_prompt_that_ends_differently_shares_only_what_is_equal(
        self, host: EngineHost, longest: Prompt
    ) -> None:
        """The cache is keyed by what the tokens are, not by how many there are."""
        self._run(host, longest, scope=b"a")
        changed = self._with_other_end(longest)
        sequence = host.sequence(changed, scope=b"a")
        assert host.admit(sequence) is not None
        self.agree(host.prefill(sequence), host.last_logits(changed))
        host.engine.release(sequence)

    def test_another_scope_shares_nothing(self, host: EngineHost, longest: Prompt) -> None:
        """Clients cannot learn from timing what others asked."""
        self._run(host, longest, scope=b"a")
        sequence = host.sequence(longest, scope=b"b")
        assert host.admit(sequence) == 0
        host.engine.release(sequence)

    def test_another_picture_is_not_shared(self, host: EngineHost) -> None:
        """Equal tokens with another picture are another prefix, from the picture on."""
        first, second = self._twins()
        expected = host.last_logits(second)
        self._run(host, first, scope=b"a")
        sequence = host.sequence(second, scope=b"a")
        num_cached = host.admit(sequence)
        assert num_cached is not None
        assert num_cached <= second.media[0].start
        self.agree(host.prefill(sequence), expected)
        host.engine.release(sequence)

    # Room

    def test_all_room_comes_back(self, host: EngineHost) -> None:
        """Admit until the answer is None, release all, and the same number fits again."""
        prompt = min(self.prompts(), key=len)
        counts = []
        for _ in range(2):
            admitted = self._fill(host, prompt)
            counts.append(len(admitted))
            self.release(host, admitted)
        assert counts[0] >= 1, "not even one sequence is admitted"
        assert counts[0] == counts[1], "release() did not give all room back"
        assert counts[0] <= host.engine.limits.max_sequences, "more than max_sequences are admitted"

    def test_a_full_engine_still_runs_what_it_admitted(self, host: EngineHost) -> None:
        """A refused admission changes nothing for those who are in."""
        prompt = min(self.prompts(), key=len)
        expected = host.last_logits(prompt)
        admitted = self._fill(host, prompt)
        self.agree(host.prefill(admitted[-1]), expected)
        self.agree(host.prefill(admitted[0]), expected)
        self.release(host, admitted)

    def test_room_beyond_the_capacity_is_refused(self, host: EngineHost) -> None:
        """A refused reservation changes nothing either."""
        prompt, token_id = self.prompts()[0], self.answer_ids()[0]
        sequence = self.admitted(host, prompt)
        host.prefill(sequence)
        assert not host.engine.reserve(sequence, host.engine.limits.capacity_tokens + 1)
        self.agree(host.decode(sequence, token_id), host.last_logits(prompt, [token_id]))
        host.engine.release(sequence)

    def test_a_preempted_sequence_goes_on_where_it_was(self, host: EngineHost) -> None:
        """Released and admitted again with its answer so far, it is computed anew."""
        prompt, answer = self.prompts()[0], self.answer_ids()
        sequence = self.admitted(host, prompt)
        host.prefill(sequence)
        for token_id in answer:
            host.decode(sequence, token_id)
        host.engine.release(sequence)
        assert host.admit(sequence) is not None
        self.agree(host.prefill(sequence), host.last_logits(prompt, answer))
        host.engine.release(sequence)

    def test_releasing_one_leaves_the_others_alone(self, host: EngineHost) -> None:
        """Room that was given up and taken again is nobody else's."""
        first, second = self.prompts()[:2]
        token_id = self.answer_ids()[0]
        leaving, staying = self.admitted(host, first), self.admitted(host, second)
        host.prefill(leaving)
        host.prefill(staying)
        host.engine.release(leaving)
        coming = self.admitted(host, first)
        host.prefill(coming)
        self.agree(host.decode(staying, token_id), host.last_logits(second, [token_id]))
        self.release(host, [staying, coming])

    # Spans

    def test_spans_are_ordered_disjoint_and_inside_the_prompt(self, engine: Engine) -> None:
        """A scheduler walks them from left to right."""
        for prompt in self.prompts():
            end = 0
            for span in engine.read(prompt).spans:
                assert end <= span.start < span.stop <= len(prompt)
                assert span.stop - span.start <= engine.limits.max_chunk_tokens
                end = span.stop

    def test_prompts_are_read_while_others_run(self, host: EngineHost) -> None:
        """Workers read what comes next beside the loop's steps; neither disturbs the other."""
        prompts = self.prompts()
        expected = [host.last_logits(prompt) for prompt in prompts]
        spans = [host.engine.read(prompt).spans for prompt in prompts]
        stop, found = threading.Event(), []

        def read() -> None:
            while not stop.is_set():
                found.append([host.engine.read(prompt).spans for prompt in prompts])

        with ThreadPoolExecutor(2) as workers:
            readers = [workers.submit(read) for _ in range(2)]
            try:
                for _ in range(NUM_ROUNDS_BESIDE_READERS):
                    for prompt, row in zip(prompts, expected, strict=True):
                        self.agree(host.last_logits(prompt), row)
            finally:
                stop.set()
            for reader in readers:
                reader.result()
        assert all(each == spans for each in found), "a prompt was read in two ways"

    # Helpers

    def _run(self, host: EngineHost, prompt: Prompt, *, scope: bytes) -> None:
        sequence = host.sequence(prompt, scope=scope)
        assert host.admit(sequence) is not None
        host.prefill(sequence)
        host.engine.release(sequence)

    def _fill(self, host: EngineHost, prompt: Prompt) -> list[EngineSequence]:
        admitted: list[EngineSequence] = []
        while host.admit(sequence := host.sequence(prompt)) is not None:
            admitted.append(sequence)
        return admitted

    def _with_other_end(self, prompt: Prompt) -> Prompt:
        *head, last = prompt.token_ids
        other = next(token_id for token_id in self.answer_ids() if token_id != last)
        return dataclasses.replace(prompt, token_ids=(*head, other))

    def _needs_sharing(self, engine: Engine, longest: Prompt) -> None:
        block_tokens = engine.limits.prefix_block_tokens
        if not block_tokens:
            pytest.skip("this engine does not claim to share prefixes")
        assert len(longest) > 2 * block_tokens, "give a prompt that is longer than two blocks"

    def _twins(self) -> tuple[Prompt, Prompt]:
        if (twins := self.twins()) is None:
            pytest.skip("no pictures were given")
        assert twins[0].token_ids == twins[1].token_ids
        return twins
