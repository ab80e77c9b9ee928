"""What every proposer must do."""

import copy
import dataclasses
import gc
import itertools
import operator
import random
import sys
import tracemalloc
from collections.abc import Iterator, Sequence as Seq
from typing import Any, SupportsIndex

import pytest

from vlmkit.interfaces.prompt import MediaSlot
from vlmkit.interfaces.proposer import BatchProposer, Proposer
from vlmkit.interfaces.sequence import Sequence
from vlmkit_testing.contracts.sequences import new_sequence

Guesses = list[list[int]]
HISTORIES: tuple[tuple[int | None, ...], ...] = (
    (None,),
    (0, 0, 0),
    (4, 4),
    (0, 4),
    (1,),
    (4, None),
)
"""How many drafts of each step are accepted; None where a step computes none."""
GROWTHS = ((1,) * 30, (5, 1, 3, 9), (1, 2, 40), (17, 1, 1), (60, 7, 2))
"""By how many tokens an answer grows between the drafts."""
NUM_ANSWERS, MAX_LEFT_BYTES = 10, 1_500


class ProposerContract:
    """Inherit it, override :meth:`make`, and run pytest."""

    def make(self) -> Proposer:
        """Return a new proposer."""
        raise NotImplementedError

    def sequence(self, seed: int = 0, length: int = 200) -> Sequence:
        """Return a sequence whose answer repeats itself; override it to use your own."""
        chance = random.Random(seed)
        words = [[chance.randrange(1, 40) for _ in range(5)] for _ in range(4)]
        tokens = [token_id for _ in range(length // 5) for token_id in chance.choice(words)]
        return new_sequence(tokens[: length // 2], output_ids=tokens[length // 2 :])

    @pytest.mark.parametrize("num_tokens", [1, 3, 20])
    def test_guesses_are_token_ids(self, num_tokens: int) -> None:
        """Integers from 0 on, and at most as many as requested."""
        for seed in range(3):
            guesses = list(self.make().propose(self.sequence(seed), num_tokens))
            assert all(isinstance(token_id, SupportsIndex) for token_id in guesses)
            assert all(operator.index(token_id) >= 0 for token_id in guesses)
            assert len(guesses) <= num_tokens

    @pytest.mark.parametrize("num_output", [0, 1, 2, 300])
    @pytest.mark.parametrize("num_prompt", [1, 2, 3, 6000])
    def test_prompts_and_answers_of_any_length_will_do(
        self, num_prompt: int, num_output: int
    ) -> None:
        """It is called from the first token of an answer on, and before it for given texts."""
        ids = [3 + i % 7 for i in range(num_prompt + num_output)]
        proposer = self.make()
        sequence = new_sequence(ids[:num_prompt], output_ids=ids[num_prompt:])
        for token_id in (5, 6, 7):
            drafts = list(proposer.propose(sequence, 4))
            if drafts:
                proposer.note(sequence, len(drafts), 0)
            sequence.output_ids.append(token_id)

    def test_a_sequence_is_only_read(self) -> None:
        """A proposer modifies neither its tokens nor its state."""
        proposer, shown = self.make(), self.sequence()
        before = _state(shown)
        for num_accepted in (0, 1, 2):
            proposer.propose(shown, 4)
            assert _state(shown) == before
            proposer.note(shown, 2, num_accepted)
            assert _state(shown) == before

    def test_a_text_that_repeats_itself_is_only_read(self) -> None:
        """An answer may repeat the prompt or itself from the first token on, and be one token."""
        proposer = self.make()
        for number, (prompt, answer) in enumerate(_repetitions()):
            shown = new_sequence(prompt, output_ids=answer)
            before = _state(shown)
            drafts = list(proposer.propose(shown, (1, 4, 20)[number % 3]))
            assert _state(shown) == before, f"propose: {prompt} + {answer}"
            if drafts:
                proposer.note(shown, len(drafts), number % (len(drafts) + 1))
                assert _state(shown) == before, f"note: {prompt} + {answer}"
            proposer.forget(shown)
            assert _state(shown) == before, f"forget: {prompt} + {answer}"

    def test_fewer_may_be_computed_than_were_guessed(self) -> None:
        """A scheduler runs as many as fit; if none fits, ``note`` is not called."""
        proposer, sequence = self.make(), self.sequence()
        for step in range(12):
            drafts = list(proposer.propose(sequence, 6))
            if drafts and step % 3:
                num_drafted = min(len(drafts), step % 3)
                proposer.note(sequence, num_drafted, step % (num_drafted + 1))
            sequence.output_ids.append(sequence.output_ids[step])

    def test_answers_grow_beside_each_other(self) -> None:
        """The drafts of one depend on that one alone."""
        wanted = [self._run(self.make(), [self.sequence(seed)])[0] for seed in range(3)]
        again = [self._run(self.make(), [self.sequence(seed)])[0] for seed in range(3)]
        if again != wanted:
            pytest.skip("its guesses are no function of the sequence, as far as they can tell")
        assert self._run(self.make(), [self.sequence(seed) for seed in range(3)]) == wanted
        prompt = self.sequence().prompt  # of several answers to one request
        answers = [list(self.sequence(seed).output_ids) for seed in range(3)]
        copies = [[new_sequence(prompt, output_ids=ids) for ids in answers] for _ in range(2)]
        wanted = [self._run(self.make(), [each])[0] for each in copies[0]]
        assert self._run(self.make(), copies[1]) == wanted

    def test_forgetting_one_answer_changes_no_other(self) -> None:
        """What was noted of an answer that goes on is not forgotten with one that ends."""
        if self._guesses(self.make()) != self._guesses(self.make()):
            pytest.skip("its guesses are no function of the sequence, as far as they can tell")
        for num_others in (1, 3):
            proposer, single = self.make(), self.make()
            staying, alone = self.sequence(), self.sequence()
            others = [self.sequence(1 + number) for number in range(num_others)]
            self._run(proposer, [staying, *others])
            self._run(single, [alone])
            for other in others:
                proposer.forget(other)
            assert self._run(proposer, [staying]) == self._run(single, [alone])

    @pytest.mark.parametrize("accepted", HISTORIES, ids=str)
    def test_a_released_sequence_is_forgotten(self, accepted: tuple[int | None, ...]) -> None:
        """A server runs for months, so state must be released, whatever became of the drafts."""
        proposer, sequence = self.make(), self.sequence()
        held = (sequence, sequence.prompt, sequence.output_ids)
        before = [sys.getrefcount(each) for each in held]
        for num_accepted in accepted:
            drafts = list(proposer.propose(sequence, 4))
            if num_accepted is not None and drafts:
                proposer.note(sequence, len(drafts), min(num_accepted, len(drafts)))
        proposer.forget(sequence)
        assert [sys.getrefcount(each) for each in held] == before

    def test_an_unknown_sequence_may_be_forgotten(self) -> None:
        """An answer may end before its first ``propose``; ``forget`` is called at least once."""
        proposer, sequence = self.make(), self.sequence()
        proposer.forget(sequence)
        proposer.propose(sequence, 4)
        proposer.forget(sequence)
        proposer.forget(sequence)

    def test_an_ended_answer_changes_no_other(self) -> None:
        """A proposer that has forgotten its sequences drafts what a new one does."""
        used, begun = self.make(), []
        for seed in range(3):
            ended = self.sequence(seed)
            self._run(used, [ended])
            used.forget(ended)
            begun.append(ended.tokens(0, len(ended) // 3))
        for tokens in begun:
            texts = (tokens, tuple(dict.fromkeys(tokens)))  # the second repeats nothing
            for text in texts:
                copies = [new_sequence(text, output_ids=text[:4]) for _ in range(3)]
                wanted, again = (self._run(self.make(), [each])[0] for each in copies[:2])
                if wanted != again:
                    pytest.skip("its guesses are no function of the sequence")
                assert self._run(used, copies[2:]) == [wanted]
                used.forget(copies[2])

    def test_an_id_may_be_used_again(self) -> None:
        """Clients choose ids: one of an ended answer may come again."""
        used, ended = self.make(), self.sequence()
        self._run(used, [ended])
        used.forget(ended)
        for seed in range(1, 4):
            copies = [self.sequence(seed) for _ in range(3)]
            wanted, again = (self._run(self.make(), [each])[0] for each in copies[:2])
            if wanted != again:
                pytest.skip("its guesses are no function of the sequence")
            copies[2].id = ended.id
            assert self._run(used, copies[2:]) == [wanted]
            used.forget(copies[2])

    def test_drafts_depend_on_the_tokens_however_they_came(self) -> None:
        """Accepted drafts are several tokens at once, and not every step asks for drafts."""
        for seed in range(3):
            tokens = self.sequence(seed).tokens(0, len(self.sequence(seed)))
            for jumps in GROWTHS:
                grown, proposer, length = new_sequence(tokens[:20]), self.make(), 20
                for jump in jumps:
                    proposer.propose(grown, 4)
                    grown.output_ids += tokens[length : length + jump]
                    length += jump
                copies = [new_sequence(tokens[:20], output_ids=grown.output_ids) for _ in range(2)]
                wanted, again = (_ids(self.make().propose(each, 4)) for each in copies)
                found = [_ids(proposer.propose(grown, 4)) for _ in range(2)]
                if wanted != again or found[0] != found[1]:
                    pytest.skip("its guesses are no function of the sequence")
                assert found[0] == wanted, f"after {jumps} more tokens"

    def test_memory_does_not_grow_with_the_answers(self) -> None:
        """A server runs for months: of an answer that ended, nothing is left.

        A table may become larger once, but not again and again.
        """
        proposer = self.make()

        def memory_bytes() -> int:
            for seed in range(NUM_ANSWERS):
                answer = self.sequence(seed % 4, 60)
                self._run(proposer, [answer])
                proposer.forget(answer)
            del answer
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            sizes = [memory_bytes() for _ in range(4)]
        finally:
            tracemalloc.stop()
        grown = min(later - before for before, later in itertools.pairwise(sizes))
        assert grown < MAX_LEFT_BYTES, f"{grown} bytes are left of each {NUM_ANSWERS} answers"

    # Batches

    def test_a_batch_has_the_drafts_of_single_calls(self) -> None:
        """Whatever the order and the number of the answers, and for each the number requested."""
        alone, together = self.make(), self._batching()
        if self._guesses(self.make()) != self._guesses(self.make()):
            pytest.skip("its guesses are no function of the sequence, as far as they can tell")
        pairs = [(self.sequence(seed), self.sequence(seed)) for seed in range(4)]
        for step in range(20):
            present = [pairs[index % 4] for index in range(step, step + 1 + step % 4)]
            bounds = [1 + (step + index) % 5 for index in range(len(present))]
            singles = [
                [int(token_id) for token_id in alone.propose(one, bound)]
                for (one, _), bound in zip(present, bounds, strict=True)
            ]
            assert self._batch(together, [other for _, other in present], bounds) == singles
            for (one, other), drafts in zip(present, singles, strict=True):
                if drafts:
                    alone.note(one, len(drafts), step % (len(drafts) + 1))
                    together.note(other, len(drafts), step % (len(drafts) + 1))
                for sequence in (one, other):
                    sequence.output_ids.append(sequence.output_ids[step])

    def test_a_batch_may_mix_answers_about_images_and_others(self) -> None:
        """Each has the drafts of a single call, wherever the others are in the batch."""
        if self._guesses(self.make()) != self._guesses(self.make()):
            pytest.skip("its guesses are no function of the sequence, as far as they can tell")
        bounds = [4, 2, 3]
        for shown in itertools.product((False, True), repeat=3):
            singles, mixed = (
                [self._about(seed, has_image=has_image) for seed, has_image in enumerate(shown)]
                for _ in range(2)
            )
            wanted = [
                _ids(self.make().propose(sequence, bound))
                for sequence, bound in zip(singles, bounds, strict=True)
            ]
            assert self._batch(self._batching(), mixed, bounds) == wanted, f"images in {shown}"

    def test_a_batch_has_one_result_for_each_answer(self) -> None:
        """Token ids, no more of them than requested for that answer; a batch may be empty."""
        proposer = self._batching()
        assert self._batch(proposer, [], []) == []
        for num_sequences in (1, 3, 1, 20):
            sequences = [self.sequence(seed) for seed in range(1, num_sequences)]
            sequences.append(new_sequence([3]))  # nothing repeats in it
            bounds = [1 + number % 7 for number in range(num_sequences)]
            found = self._batch(proposer, sequences, bounds)
            assert len(found) == num_sequences
            for drafts, bound in zip(found, bounds, strict=True):
                assert len(drafts) <= bound
                assert min(drafts, default=0) >= 0

    def test_answers_of_a_batch_are_only_read_and_then_forgotten(self) -> None:
        """A proposer keeps no batch after its answers have ended."""
        proposer, same = self._batching(), self.sequence()
        sequences = [self.sequence(), self.sequence()]
        held = [each for s in sequences for each in (s, s.prompt, s.output_ids)]
        before = [sys.getrefcount(each) for each in held]
        for _ in range(3):
            self._batch(proposer, sequences, [4, 4])
        for sequence in sequences:
            assert (sequence.output_ids, sequence.drafts) == (same.output_ids, same.drafts)
            proposer.forget(sequence)
        del sequence
        assert [sys.getrefcount(each) for each in held] == before

    # Helpers

    def _batching(self) -> Any:
        """Return a new proposer; skip if it has no ``propose_all``."""
        proposer: Any = self.make()
        if not isinstance(proposer, BatchProposer):
            pytest.skip("this proposer does not propose for several answers at once")
        return proposer

    def _about(self, seed: int, *, has_image: bool) -> Sequence:
        """Return an answer, about an image of two tokens if it has one."""
        sequence = self.sequence(seed)
        slots = (MediaSlot(1, 3, bytes([seed]) * 32, {}, 2),) if has_image else ()
        prompt = dataclasses.replace(sequence.prompt, media=slots)
        return new_sequence(prompt, output_ids=sequence.output_ids)

    def _batch(self, proposer: Any, sequences: list[Sequence], bounds: list[int]) -> Guesses:
        is_even = len(sequences) % 2 == 0
        given = (tuple(sequences), tuple(bounds)) if is_even else (sequences, bounds)
        proposed = proposer.propose_all(*given)
        return [[operator.index(token_id) for token_id in drafts] for drafts in proposed]

    def _guesses(self, proposer: Proposer) -> Guesses:
        return self._run(proposer, [self.sequence()])[0]

    def _run(self, proposer: Proposer, sequences: list[Sequence]) -> list[Guesses]:
        """Grow answers in turn; return all drafts of each."""
        found: list[Guesses] = [[] for _ in sequences]
        for step in range(20):
            for sequence, guesses in zip(sequences, found, strict=True):
                drafts = [int(token_id) for token_id in proposer.propose(sequence, 4)]
                guesses.append(drafts)
                if drafts:
                    proposer.note(sequence, len(drafts), step % (len(drafts) + 1))
                sequence.output_ids.append(sequence.output_ids[step])
        return found


def _ids(drafts: Seq[int]) -> list[int]:
    return [operator.index(token_id) for token_id in drafts]


def _state(sequence: Sequence) -> dict[str, Any]:
    """Return copies of the fields of a sequence, without what components keep in it."""
    names = [each.name for each in dataclasses.fields(sequence) if each.name != "kept"]
    return {name: copy.copy(getattr(sequence, name)) for name in names}


def _repetitions() -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Yield prompts that repeat a word, and answers that go on with it."""
    for word_length, num_words in itertools.product((1, 2, 3, 5), (1, 2, 4)):
        word = tuple(range(3, 3 + word_length))
        for num_output in sorted({1, word_length, word_length + 1, 3 * word_length}):
            repeated = itertools.islice(itertools.cycle(word), num_output)
            yield word * num_words, list(repeated)
