"""Proposers that break one promise each, derived from the built-in proposer."""

from collections.abc import Sequence as Seq
from typing import Any

from broken.broken import Broken, Table
from vlmkit.interfaces.sequence import Sequence
from vlmkit.running.engine_loop.ngram import NgramProposer
from vlmkit_testing import ProposerContract


class GuessesTooManyTokens(NgramProposer):
    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        return super().propose(sequence, num_tokens + 1)


class PadsItsGuesses(NgramProposer):
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


class HasAShortTable(NgramProposer):
    """Has a table of fixed size."""

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        table = [0] * 4096
        table[len(sequence)] += 1
        return super().propose(sequence, num_tokens)


class WritesItsGuesses(NgramProposer):
    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        guesses = super().propose(sequence, num_tokens)
        sequence.drafts = tuple(guesses)
        return guesses


class ExtendsTheAnswerItCopies(NgramProposer):
    """Repeats the text that it found in place, which may be the answer itself."""

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        num_found = len(super().propose(sequence, num_tokens))
        newest = sequence.tokens(len(sequence) - 1, len(sequence))
        found = sequence.output_ids if [*newest] == sequence.output_ids else [*newest]
        while len(found) < num_found:
            found += found
        return found[:num_found]


class AppendsItsGuesses(NgramProposer):
    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        super().note(sequence, num_drafted, num_accepted)
        sequence.output_ids += sequence.output_ids[:num_accepted]


class ExpectsAllGuessesToBeComputed(NgramProposer):
    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        self.guesses = super().propose(sequence, num_tokens)
        return self.guesses

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        assert num_drafted == len(self.guesses)
        super().note(sequence, num_drafted, num_accepted)


class ExpectsANoteForEveryGuess(NgramProposer):
    waits = False

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        assert not self.waits
        guesses = super().propose(sequence, num_tokens)
        self.waits = bool(guesses)
        return guesses

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        self.waits = False
        super().note(sequence, num_drafted, num_accepted)


class SharesItsTableBetweenAnswers(NgramProposer):
    """Looks up tokens of every answer."""

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        if self._memories:
            self._memories[sequence] = next(iter(self._memories.values()))
        return super().propose(sequence, num_tokens)


class ReadsOneTokenACall(NgramProposer):
    """Reads the newest token alone of an answer that it knows."""

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        if memory := self._memories.get(sequence):
            memory.num_read = max(memory.num_read, len(sequence) - 1)
        return super().propose(sequence, num_tokens)


class ForgetsAllWhenOneIsLeft(NgramProposer):
    """Empties its memory when only one answer is left in it."""

    def forget(self, sequence: Sequence) -> None:
        super().forget(sequence)
        if len(self._memories) == 1:
            self._memories.clear()


class KeepsLengths(NgramProposer):
    """Keeps the lengths of all answers, by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: dict[str, list[int]] = {}

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        self.lengths.setdefault(sequence.id, []).append(len(sequence))
        return super().propose(sequence, num_tokens)


class IgnoresForget(NgramProposer):
    def forget(self, sequence: Sequence) -> None:
        pass


class ForgetsAfterRejectedDrafts(NgramProposer):
    def forget(self, sequence: Sequence) -> None:
        if sequence in self._memories and self._memories[sequence].num_rest:
            super().forget(sequence)


class KeepsAnswers(NgramProposer):
    def __init__(self) -> None:
        super().__init__()
        self.answers: list[list[int]] = []

    def forget(self, sequence: Sequence) -> None:
        super().forget(sequence)
        self.answers.append(sequence.output_ids)


class FailsForUnknownSequences(NgramProposer):
    def forget(self, sequence: Sequence) -> None:
        del self._memories[sequence]


class Batching(NgramProposer):
    """Proposes for several answers one after the other."""

    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        pairs = zip(sequences, num_tokens, strict=True)
        return [self.propose(sequence, bound) for sequence, bound in pairs]


class ReturnsBatchesByLength(Batching):
    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        return sorted(super().propose_all(sequences, num_tokens), key=len)


class PutsAnswersAboutImagesLast(Batching):
    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        pairs = sorted(
            zip(sequences, num_tokens, strict=True), key=lambda pair: bool(pair[0].prompt.media)
        )
        return super().propose_all(*zip(*pairs, strict=True)) if pairs else []


class OmitsAnswersAboutImages(Batching):
    """Drafts for text alone, and shifts the drafts of the answers behind one about an image."""

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        return () if sequence.prompt.media else super().propose(sequence, num_tokens)

    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        texts = [sequence for sequence in sequences if not sequence.prompt.media]
        found = [*super().propose_all(texts, num_tokens[: len(texts)])]
        return found + [()] * (len(sequences) - len(found))


class UsesOneBoundForTheBatch(Batching):
    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        most = max(num_tokens, default=0)
        return super().propose_all(sequences, [most] * len(sequences))


class NeedsAnAnswerInEachBatch(Batching):
    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        assert max(num_tokens) > 0
        return super().propose_all(sequences, num_tokens)


class OmitsAnswersWithoutDrafts(Batching):
    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        return [drafts for drafts in super().propose_all(sequences, num_tokens) if drafts]


class ProposesForEightAnswers(Batching):
    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        return super().propose_all(sequences[:8], num_tokens[:8])


class ForgetsAnswersOutsideTheBatch(Batching):
    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        for sequence in set(self._memories) - set(sequences):
            self.forget(sequence)
        return super().propose_all(sequences, num_tokens)

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        if sequence in self._memories:
            super().note(sequence, num_drafted, num_accepted)


class KeepsTheLastBatch(Batching):
    batch: Seq[Sequence] = ()

    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        self.batch = list(sequences)
        return super().propose_all(sequences, num_tokens)


class WritesTheDraftsOfBatches(Batching):
    def propose_all(self, sequences: Seq[Sequence], num_tokens: Seq[int]) -> Seq[Seq[int]]:
        found = super().propose_all(sequences, num_tokens)
        for sequence, drafts in zip(sequences, found, strict=True):
            sequence.drafts = (*drafts, 1)
        return found


class RemembersEndedAnswers(NgramProposer):
    """Looks new tokens up among those of answers that have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: dict[Seq[int], Seq[int]] = {}

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        newest = tuple(sequence.tokens(len(sequence) - 3, len(sequence)))
        return super().propose(sequence, num_tokens) or self.ended.get(newest, ())[:num_tokens]

    def forget(self, sequence: Sequence) -> None:
        super().forget(sequence)
        tokens = tuple(sequence.tokens(0, len(sequence)))
        self.ended |= {tokens[i - 3 : i]: tokens[i : i + 4] for i in range(3, len(tokens))}


class RemembersIds(NgramProposer):
    """Drafts less for an id whose drafts were rejected, whichever answer has it."""

    def __init__(self) -> None:
        super().__init__()
        self._rejected: set[str] = set()

    def propose(self, sequence: Sequence, num_tokens: int) -> Seq[int]:
        most = 1 if sequence.id in self._rejected else num_tokens
        return super().propose(sequence, most)

    def note(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        super().note(sequence, num_drafted, num_accepted)
        if num_accepted < num_drafted:
            self._rejected.add(sequence.id)


class OnProposer(ProposerContract):
    def __init__(self, kind: type[NgramProposer]) -> None:
        self._kind = kind

    def make(self) -> NgramProposer:
        return self._kind()


SAME = "a_batch_has_the_drafts_of_single_calls"
MIXED = "a_batch_may_mix_answers_about_images_and_others"
ONE_RESULT = "a_batch_has_one_result_for_each_answer"
ANY_LENGTH = "prompts_and_answers_of_any_length_will_do"
TABLE = Table(
    ProposerContract,
    OnProposer,
    NgramProposer,
    (
        Broken(
            ForgetsAllWhenOneIsLeft,
            "forget() discards the state of one sequence.",
            "forgetting_one_answer_changes_no_other",
        ),
        Broken(
            ReadsOneTokenACall,
            "An answer may grow by several tokens between two calls.",
            "drafts_depend_on_the_tokens_however_they_came",
        ),
        Broken(
            KeepsLengths,
            "forget() discards all state of a sequence.",
            "memory_does_not_grow_with_the_answers",
        ),
        Broken(
            GuessesTooManyTokens,
            "At most num_tokens guesses are returned.",
            "guesses_are_token_ids",
        ),
        Broken(PadsItsGuesses, "Fewer guesses may be returned.", "guesses_are_token_ids"),
        Broken(
            GuessesWords, "Guesses are token ids.", "guesses_are_token_ids", raises=(TypeError,)
        ),
        Broken(NeedsAnAnswer, "An answer may have no token yet.", ANY_LENGTH, raises=(IndexError,)),
        Broken(NeedsThreeTokens, "A prompt may be one token.", ANY_LENGTH),
        Broken(HasAShortTable, "A prompt may be long.", ANY_LENGTH, raises=(IndexError,)),
        Broken(WritesItsGuesses, "A guess changes nothing.", "a_sequence_is_only_read"),
        Broken(
            AppendsItsGuesses,
            "A proposer does not append tokens to the sequence.",
            "a_sequence_is_only_read",
        ),
        Broken(
            ExtendsTheAnswerItCopies,
            "A proposer does not change an answer, however short.",
            "a_text_that_repeats_itself_is_only_read",
        ),
        Broken(
            ExpectsAllGuessesToBeComputed,
            "num_drafted may be less than the number of guesses.",
            "fewer_may_be_computed_than_were_guessed",
        ),
        Broken(
            ExpectsANoteForEveryGuess,
            "note() is skipped if nothing was computed.",
            "fewer_may_be_computed_than_were_guessed",
        ),
        Broken(
            SharesItsTableBetweenAnswers,
            "The guesses for an answer depend on that answer alone.",
            "answers_grow_beside_each_other",
        ),
        Broken(
            IgnoresForget,
            "forget() drops all state of a sequence.",
            "a_released_sequence_is_forgotten",
        ),
        Broken(
            ForgetsAfterRejectedDrafts,
            "forget() drops all state, whether drafts were accepted, rejected or not computed.",
            "a_released_sequence_is_forgotten",
        ),
        Broken(
            KeepsAnswers,
            "A sequence that ended is not referenced.",
            "a_released_sequence_is_forgotten",
        ),
        Broken(
            RemembersEndedAnswers,
            "forget() drops all state, so later answers do not depend on it.",
            "an_ended_answer_changes_no_other",
        ),
        Broken(
            FailsForUnknownSequences,
            "forget() accepts a sequence that the proposer has not seen.",
            "an_unknown_sequence_may_be_forgotten",
            raises=(KeyError,),
        ),
        Broken(
            ReturnsBatchesByLength,
            "The drafts of a batch have the order of its answers.",
            SAME,
            honest=Batching,
        ),
        Broken(
            ForgetsAnswersOutsideTheBatch,
            "An answer may be absent from a batch and return.",
            SAME,
            honest=Batching,
        ),
        *(
            Broken(component, promise, MIXED, honest=Batching)
            for component, promise in (
                (PutsAnswersAboutImagesLast, "Drafts have the order of the answers."),
                (OmitsAnswersAboutImages, "An answer about an image has its own result."),
            )
        ),
        Broken(
            RemembersIds,
            "forget() discards all state, so another answer may have the id.",
            "an_id_may_be_used_again",
        ),
        Broken(
            UsesOneBoundForTheBatch,
            "Each answer of a batch has its own bound.",
            ONE_RESULT,
            honest=Batching,
        ),
        Broken(
            NeedsAnAnswerInEachBatch,
            "A batch may be empty.",
            ONE_RESULT,
            honest=Batching,
            raises=(ValueError,),
        ),
        Broken(
            OmitsAnswersWithoutDrafts,
            "An answer without drafts has an empty result.",
            ONE_RESULT,
            honest=Batching,
        ),
        Broken(
            ProposesForEightAnswers,
            "A batch may have any number of answers.",
            ONE_RESULT,
            honest=Batching,
        ),
        Broken(
            KeepsTheLastBatch,
            "A batch is not referenced after its answers ended.",
            "answers_of_a_batch_are_only_read_and_then_forgotten",
            honest=Batching,
        ),
        Broken(
            WritesTheDraftsOfBatches,
            "The pipeline sets the drafts of sequences.",
            "answers_of_a_batch_are_only_read_and_then_forgotten",
            honest=Batching,
        ),
    ),
)
