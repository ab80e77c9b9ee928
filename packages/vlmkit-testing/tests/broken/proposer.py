"""Proposers that break one promise each, made of the built-in one."""

from collections.abc import Sequence as Seq
from typing import Any

from broken.broken import Broken, Table
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.engine_loop.ngram import NgramProposer
from vlmkit_testing import ProposerContract


class GuessesWithoutEnd(NgramProposer):
    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        return super().propose(sequence, num_tokens + 1)


class FillsUp(NgramProposer):
    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        guesses = [*super().propose(sequence, num_tokens)]
        return guesses + [-1] * (num_tokens - len(guesses))


class GuessesWords(NgramProposer):
    def propose(self, sequence: Sequence, num_tokens: int) -> Any:
        return [f"<{token_id}>" for token_id in super().propose(sequence, num_tokens)]


class NeedsAnAnswer(NgramProposer):
    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        assert sequence.output_ids[-1] >= 0
        return super().propose(sequence, num_tokens)


class NeedsThreeTokens(NgramProposer):
    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        newest = sequence.tokens(len(sequence) - 3, len(sequence))
        assert len(newest) == 3
        return super().propose(sequence, num_tokens)


class HasAShortMemory(NgramProposer):
    """Has a table for so many tokens."""

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        table = [0] * 4096
        table[len(sequence)] += 1
        return super().propose(sequence, num_tokens)


class WritesItsGuesses(NgramProposer):
    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        guesses = super().propose(sequence, num_tokens)
        sequence.drafts = tuple(guesses)
        return guesses


class AppendsWhatStands(NgramProposer):
    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        super().note(sequence, num_drafted, num_accepted)
        sequence.output_ids += sequence.output_ids[:num_accepted]


class ExpectsThatAllIsComputed(NgramProposer):
    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        self.guesses = super().propose(sequence, num_tokens)
        return self.guesses

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        assert num_drafted == len(self.guesses)
        super().note(sequence, num_drafted, num_accepted)


class ExpectsToBeTold(NgramProposer):
    waits = False

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        assert not self.waits
        guesses = super().propose(sequence, num_tokens)
        self.waits = bool(guesses)
        return guesses

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        self.waits = False
        super().note(sequence, num_drafted, num_accepted)


class HasOneMemory(NgramProposer):
    """Looks up what any answer said."""

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        if self._memories:
            self._memories[sequence] = next(iter(self._memories.values()))
        return super().propose(sequence, num_tokens)


class ForgetsNothing(NgramProposer):
    def forget(self, sequence: Sequence) -> None:
        pass


class KeepsAnswers(NgramProposer):
    def __init__(self) -> None:
        super().__init__()
        self.answers: list[list[int]] = []

    def forget(self, sequence: Sequence) -> None:
        super().forget(sequence)
        self.answers.append(sequence.output_ids)


class KnowsNoStrangers(NgramProposer):
    def forget(self, sequence: Sequence) -> None:
        del self._memories[sequence]


class OnProposer(ProposerContract):
    def __init__(self, kind: type[NgramProposer]) -> None:
        self._kind = kind

    def make(self) -> NgramProposer:
        return self._kind()


ANY_LENGTH = "prompts_and_answers_of_any_length_will_do"
TABLE = Table(
    ProposerContract,
    OnProposer,
    NgramProposer,
    (
        Broken(
            GuessesWithoutEnd, "Up to num_tokens guesses are returned.", "guesses_are_token_ids"
        ),
        Broken(FillsUp, "Fewer guesses may be returned.", "guesses_are_token_ids"),
        Broken(
            GuessesWords, "Guesses are token ids.", "guesses_are_token_ids", raises=(TypeError,)
        ),
        Broken(NeedsAnAnswer, "An answer may have no token yet.", ANY_LENGTH, raises=(IndexError,)),
        Broken(NeedsThreeTokens, "A prompt may be one token.", ANY_LENGTH),
        Broken(HasAShortMemory, "A prompt may be long.", ANY_LENGTH, raises=(IndexError,)),
        Broken(WritesItsGuesses, "A guess changes nothing.", "a_sequence_is_only_read"),
        Broken(
            AppendsWhatStands,
            "What stands is the sampler's to choose.",
            "a_sequence_is_only_read",
        ),
        Broken(
            ExpectsThatAllIsComputed,
            "num_drafted says how many were computed, which may be fewer.",
            "fewer_may_be_computed_than_were_guessed",
        ),
        Broken(
            ExpectsToBeTold,
            "note() tells of what was computed, which may be nothing.",
            "fewer_may_be_computed_than_were_guessed",
        ),
        Broken(
            HasOneMemory,
            "What is guessed for one answer depends on that one alone.",
            "answers_grow_beside_each_other",
        ),
        Broken(
            ForgetsNothing,
            "forget() drops what is known of a sequence.",
            "a_released_sequence_is_forgotten",
        ),
        Broken(
            KeepsAnswers, "Nothing of one who ended is kept.", "a_released_sequence_is_forgotten"
        ),
        Broken(
            KnowsNoStrangers,
            "A sequence that ended may never have been shown.",
            "an_unknown_sequence_may_be_forgotten",
            raises=(KeyError,),
        ),
    ),
)
