"""What every engine must do: inputs, limits, and the logits that it computes.

Further contracts are its bases: several rows, shared prefixes, cache events, cache capacity, life
cycle, steps that are repeated, and steps that overlap.
"""

from collections.abc import Iterator
from typing import get_type_hints

import numpy as np
import pytest
from msgspec import structs

from vlmkit.interfaces.engine import Engine, EngineLimits
from vlmkit.interfaces.prompt import Prompt
from vlmkit_testing.contracts.engine_events_contract import EngineEventsContract
from vlmkit_testing.contracts.engine_host import EngineHost
from vlmkit_testing.contracts.engine_life_contract import EngineLifeContract
from vlmkit_testing.contracts.engine_overlap_contract import EngineOverlapContract
from vlmkit_testing.contracts.engine_prefix_contract import EnginePrefixContract
from vlmkit_testing.contracts.engine_repeat_contract import EngineRepeatContract
from vlmkit_testing.contracts.engine_room_contract import EngineRoomContract
from vlmkit_testing.contracts.engine_rows_contract import EngineRowsContract
from vlmkit_testing.contracts.engine_walk_contract import EngineWalkContract


class EngineContract(
    EngineRowsContract,
    EnginePrefixContract,
    EngineEventsContract,
    EngineRoomContract,
    EngineLifeContract,
    EngineRepeatContract,
    EngineOverlapContract,
    EngineWalkContract,
):
    """Inherit, override :meth:`make` and :meth:`prompts`, and run pytest."""

    # What the contract was given

    def test_there_are_prompts_and_answers_to_check_with(self) -> None:
        """With fewer, the other tests could not fail."""
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
        for name, kind in get_type_hints(EngineLimits).items():
            assert isinstance(getattr(limits, name), kind), f"limits.{name} is no {kind.__name__}"
        assert limits.vocab_size > 0
        assert 0 < limits.max_sequence_tokens <= limits.capacity_tokens
        assert limits.max_sequences > 0
        assert limits.max_chunk_tokens > 0
        assert limits.prefix_block_tokens >= 0
        assert limits.hidden_size >= 0
        assert 0 <= limits.max_draft_tokens < limits.max_item_rows <= limits.max_chunk_tokens

    def test_the_limits_never_change(self, host: EngineHost, longest: Prompt) -> None:
        """A scheduler may read them once."""
        before = host.engine.limits
        sequence = self.admitted(host, longest)
        assert host.engine.limits == before
        host.prefill(sequence)
        assert host.engine.limits == before
        host.engine.release(sequence)
        assert host.engine.limits == before

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

    def test_rows_are_no_probabilities(self, host: EngineHost) -> None:
        """Logits are not normalised: temperatures, biases and penalties come after them."""
        rows = [host.last_logits(prompt) for prompt in self.asked]
        assert not all(row.min() >= 0 and abs(row.sum() - 1) < 1e-3 for row in rows)

    def test_rows_come_in_the_order_of_their_items(self, host: EngineHost) -> None:
        """Each sequence gets its own row in any order."""
        prompts = self.together(host.engine.limits)
        expected = [host.last_logits(prompt) for prompt in prompts]
        sequences = [self.admitted(host, prompt) for prompt in prompts]
        for sequence in sequences:
            self.leave_one_chunk(host, sequence)
        items = [host.chunk(sequence) for sequence in reversed(sequences)]
        for row, wanted in zip(self.rows_of(host, items), reversed(expected), strict=True):
            self.agree(row, wanted)
        items = [host.next_item(sequence, self.answer_ids()[0]) for sequence in reversed(sequences)]
        rows = host.step(items)
        self.release(host, sequences)
        for row, prompt in zip(rows, reversed(prompts), strict=True):
            self.agree(row, host.last_logits(prompt, self.answer_ids()[:1]))

    # Numbers

    def test_two_engines_agree(self, host: EngineHost) -> None:
        """Logits are a function of the tokens."""
        other = EngineHost(self.make(), self.features)
        for prompt in self.asked:
            self.agree(other.last_logits(prompt), host.last_logits(prompt))
        other.engine.close()

    def test_the_reference_is_met(self, host: EngineHost) -> None:
        """An engine may agree with itself and still be wrong."""
        known = [(prompt, self.reference(prompt)) for prompt in self.asked]
        if all(expected is None for _, expected in known):
            pytest.skip("no reference() was given")
        for prompt, expected in known:
            if isinstance(expected, list):
                assert self._greedy(host, prompt, len(expected)) == expected
            elif expected is not None:
                self.agree(host.last_logits(prompt), np.asarray(expected, np.float64))

    def test_a_chunked_prefill_agrees_with_a_whole_one(self, host: EngineHost) -> None:
        """Chunks may end anywhere but inside an atomic span: inside a picture, too."""
        for prompt in self.asked:
            expected = host.last_logits(prompt)
            sizes = {1, 2, 3, max(1, len(prompt) // 3)} if self.most_cuts > 8 else {3}
            for chunk_tokens in sorted(sizes):
                self.agree(host.last_logits(prompt, chunk_tokens=chunk_tokens), expected)
            for cut in self._cuts(prompt, host.engine.limits):
                sequence = self.admitted(host, prompt)
                host.step([structs.replace(host.chunk(sequence, cut), num_rows=0)])
                if sequence.num_done < len(prompt):
                    self.agree(host.prefill(sequence), expected)
                host.engine.release(sequence)

    def test_decoding_agrees_with_a_prefill_of_the_same_tokens(self, host: EngineHost) -> None:
        """The cache holds what a prefill would compute."""
        answer = self.answer_ids()
        for prompt in self.asked:
            sequence = self.admitted(host, prompt)
            host.prefill(sequence)
            rows = [host.decode(sequence, token_id) for token_id in answer]
            host.engine.release(sequence)
            for count, row in enumerate(rows, start=1):
                self.agree(row, host.last_logits(prompt, answer[:count]))

    def test_a_sequence_alone_agrees_with_the_same_in_a_batch(self, host: EngineHost) -> None:
        """Other items change nothing; not one bit where the engine claims batch invariance."""
        prompts = self.together(host.engine.limits)
        answer, alone = self.answer_ids(), []
        for prompt in prompts:
            sequence = self.admitted(host, prompt)
            host.prefill(sequence)
            alone.append([host.decode(sequence, token_id) for token_id in answer])
            host.engine.release(sequence)
        sequences = [self.admitted(host, prompt) for prompt in prompts]
        for sequence in sequences:
            host.prefill(sequence)
        for step, token_id in enumerate(answer):
            turn = -1 if step % 2 else 1
            rows = host.step([host.next_item(each, token_id) for each in sequences[::turn]])
            for row, expected in zip(rows, alone[::turn], strict=True):
                self.agree(row, expected[step])
                if host.engine.limits.is_batch_invariant:
                    np.testing.assert_array_equal(row, expected[step])
        self.release(host, sequences)

    def test_a_step_may_mix_prefill_and_decode(self, host: EngineHost, longest: Prompt) -> None:
        """In either order, if the engine claims it."""
        if not host.engine.limits.mixes_prefill_and_decode:
            pytest.skip("this engine does not claim to mix prefill and decode")
        self.together(host.engine.limits)
        one, other = self.answer_ids()[:2]
        decoded = [host.last_logits(self.shortest, answer) for answer in ([one], [one, other])]
        read = host.last_logits(longest)
        decoding = self.admitted(host, self.shortest)
        host.prefill(decoding)
        for turn, token_id, expected in zip((1, -1), (one, other), decoded, strict=True):
            reading = self.admitted(host, longest)
            self.leave_one_chunk(host, reading)
            items = [host.next_item(decoding, token_id), host.chunk(reading)]
            rows = host.step(items[::turn])[::turn]
            self.agree(rows[0], expected)
            self.agree(rows[1], read)
            host.engine.release(reading)
        host.engine.release(decoding)

    def test_a_step_may_be_repeated(self, host: EngineHost) -> None:
        """After a failed step the loop computes its items again, one by one."""
        prompts = self.asked[: host.engine.limits.max_sequences]
        sequences = [self.admitted(host, prompt) for prompt in prompts]
        for sequence in sequences:
            self.leave_one_chunk(host, sequence)
            item = host.chunk(sequence)
            once = host.step([item], commits=False)[0]
            self.agree(host.step([item])[0], once)
        items = [host.next_item(sequence, self.answer_ids()[0]) for sequence in sequences]
        together = host.step(items, commits=False)
        for item, row in zip(reversed(items), reversed(together), strict=True):
            self.agree(host.step([item], commits=False)[0], row)
        for again, row in zip(host.step(items), together, strict=True):
            self.agree(again, row)
        expected = [host.decode(sequence, self.answer_ids()[1]) for sequence in sequences]
        self.release(host, sequences)
        for prompt, row in zip(prompts, expected, strict=True):
            self.agree(row, host.last_logits(prompt, self.answer_ids()[:2]))

    # Pictures

    def test_another_picture_changes_the_logits(self, host: EngineHost) -> None:
        """The engine uses the features it gets."""
        first, second = (host.last_logits(prompt) for prompt in self.pictured_twins())
        assert np.abs(first - second).max() > self.atol

    def test_spans_are_ordered_disjoint_and_within_the_prompt(self, engine: Engine) -> None:
        """A scheduler reads them from left to right."""
        for prompt in self.asked:
            end = 0
            for span in engine.read(prompt).spans:
                assert end <= span.start < span.stop <= len(prompt)
                assert span.stop - span.start <= engine.limits.max_chunk_tokens
                end = span.stop

    # Helpers

    def _greedy(self, host: EngineHost, prompt: Prompt, num_tokens: int) -> list[int]:
        sequence = self.admitted(host, prompt)
        ids: list[int] = []
        row = host.prefill(sequence)
        while len(ids) < num_tokens:
            ids.append(int(row.argmax()))
            row = host.decode(sequence, ids[-1])
        host.engine.release(sequence)
        return ids

    def _cuts(self, prompt: Prompt, limits: EngineLimits) -> Iterator[int]:
        """Return where a prompt is cut in two: in and around media first, then everywhere."""
        last = min(len(prompt) - 1, limits.max_chunk_tokens)
        near = [
            place
            for slot in prompt.media
            for place in (
                slot.start + (slot.stop - slot.start) // 2,
                slot.start + 2,
                slot.stop - 2,
                *(slot.start, slot.start + 1, slot.stop - 1, slot.stop),
            )
        ]
        stride = max(1, last // self.most_cuts)
        found = dict.fromkeys([*near, *range(1, last + 1, stride)])
        return iter([cut for cut in found if 0 < cut <= last][: self.most_cuts])
