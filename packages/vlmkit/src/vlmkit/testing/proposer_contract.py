"""What every proposer must do."""

import random
import sys

import pytest

from vlmkit.seams.proposer import Proposer
from vlmkit.seams.sequence import Sequence
from vlmkit.testing.sequences import new_sequence


class ProposerContract:
    """Inherit, override :meth:`make`, and run pytest."""

    def make(self) -> Proposer:
        """Return a fresh proposer."""
        raise NotImplementedError

    def sequence(self, seed: int = 0, length: int = 200) -> Sequence:
        """Return a sequence with an answer that repeats itself; override to show your own."""
        chance = random.Random(seed)
        words = [[chance.randrange(1, 40) for _ in range(5)] for _ in range(4)]
        tokens = [token_id for _ in range(length // 5) for token_id in chance.choice(words)]
        return new_sequence(tokens[: length // 2], output_ids=tokens[length // 2 :])

    @pytest.mark.parametrize("num_tokens", [1, 3, 20])
    def test_guesses_are_token_ids(self, num_tokens: int) -> None:
        """Numbers, and no longer a list than there is use for."""
        guesses = list(self.make().propose(self.sequence(), num_tokens))
        assert all(isinstance(token_id, int) for token_id in guesses)
        assert len(guesses) <= num_tokens

    def test_a_sequence_is_only_looked_at(self) -> None:
        """Its tokens and its books are others' business."""
        proposer, shown, same = self.make(), self.sequence(), self.sequence()
        for num_accepted in (0, 1, 2):
            proposer.propose(shown, 4)
            proposer.note(shown, 2, num_accepted)
        for name in ("output_ids", "drafts", "num_computed_tokens", "features", "is_held"):
            assert getattr(shown, name) == getattr(same, name), f"{name} was changed"

    def test_answers_grow_beside_each_other(self) -> None:
        """What is guessed for one depends on that one alone."""
        alone, together = self.make(), self.make()
        wanted = [self._run(alone, [self.sequence(seed)])[0] for seed in range(3)]
        assert self._run(together, [self.sequence(seed) for seed in range(3)]) == wanted

    def test_who_is_gone_is_forgotten(self) -> None:
        """A server runs for months."""
        proposer, sequence = self.make(), self.sequence()
        before = sys.getrefcount(sequence)
        proposer.propose(sequence, 4)
        proposer.note(sequence, 1, 0)
        proposer.forget(sequence)
        assert sys.getrefcount(sequence) == before

    def test_a_stranger_may_be_forgotten(self) -> None:
        """An answer may end before it was ever shown."""
        self.make().forget(self.sequence())

    def _run(self, proposer: Proposer, sequences: list[Sequence]) -> list[list[list[int]]]:
        """Let answers grow by turns; return every guess for each."""
        found: list[list[list[int]]] = [[] for _ in sequences]
        for step in range(20):
            for sequence, guesses in zip(sequences, found, strict=True):
                drafts = list(proposer.propose(sequence, 4))
                guesses.append(drafts)
                if drafts:
                    proposer.note(sequence, len(drafts), step % (len(drafts) + 1))
                sequence.output_ids.append(sequence.output_ids[step])
        return found
