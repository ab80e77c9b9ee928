"""What every proposer must do."""

import operator
import random
import sys
from typing import SupportsIndex

import pytest

from vlmkit.interfaces.proposer import Proposer
from vlmkit.interfaces.sequence import Sequence
from vlmkit_testing.contracts.sequences import new_sequence

Guesses = list[list[int]]


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
        proposer, shown, same = self.make(), self.sequence(), self.sequence()
        for num_accepted in (0, 1, 2):
            proposer.propose(shown, 4)
            proposer.note(shown, 2, num_accepted)
        for name in ("output_ids", "drafts", "num_computed_tokens", "features", "is_held"):
            assert getattr(shown, name) == getattr(same, name), f"{name} was changed"
        assert shown.prompt == same.prompt

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

    def test_a_released_sequence_is_forgotten(self) -> None:
        """A server runs for months, so state must be released."""
        proposer, sequence = self.make(), self.sequence()
        held = (sequence, sequence.prompt, sequence.output_ids)
        before = [sys.getrefcount(each) for each in held]
        for _ in range(3):
            proposer.propose(sequence, 4)
            proposer.note(sequence, 1, 0)
        proposer.forget(sequence)
        assert [sys.getrefcount(each) for each in held] == before

    def test_an_unknown_sequence_may_be_forgotten(self) -> None:
        """An answer may end before its first ``propose``; ``forget`` is called at least once."""
        proposer, sequence = self.make(), self.sequence()
        proposer.forget(sequence)
        proposer.propose(sequence, 4)
        proposer.forget(sequence)
        proposer.forget(sequence)

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
