"""Compilers of constraints that break one promise each, made of one that takes choices."""

import time
import unicodedata

import numpy as np

from broken.broken import Broken, Table
from spelling import Spelling, SpellingCompiler
from vlmkit.types.constraint import OneOf
from vlmkit_testing import ConstraintContract
from vlmkit_testing.contracts.constraint_contract import TRIED


class AllowsTooMuch(Spelling):
    def fill(self, mask):
        mask[:] = -1


class AllowsTooLittle(Spelling):
    def fill(self, mask):
        super().fill(mask)
        mask[-1] = 0


class LosesTheSign(Spelling):
    """Sets bits in words that it takes for unsigned."""

    def fill(self, mask):
        super().fill(mask)
        mask &= np.int32(2**31 - 1)


class EndsAnywhere(Spelling):
    may_end = True


class NeverEnds(Spelling):
    may_end = False


class AcceptsAnything(Spelling):
    def accept(self, token_id):
        return super().accept(token_id) or True


class AcceptsNothing(Spelling):
    def accept(self, token_id):
        return False


class FallsOverGuesses(Spelling):
    def accept(self, token_id):
        if not super().accept(token_id):
            self.rests[-1] = []
            return False
        return True


class TakesBackTooMuch(Spelling):
    def roll_back(self, num_tokens):
        del self.rests[1:]


class TakesAllBackForNothing(Spelling):
    def roll_back(self, num_tokens):
        del self.rests[-num_tokens:]
        self.rests = self.rests or [[]]


class IsResetHalfway(Spelling):
    def reset(self):
        del self.rests[2:]


class StaysAtTheEnd(Spelling):
    """Takes nothing back of an answer that is whole."""

    def roll_back(self, num_tokens):
        if self.rests[-1] != [b""]:
            super().roll_back(num_tokens)


class ForcesGuesses(Spelling):
    def forced(self):
        return [2]


class ForcesTheFirst(Spelling):
    def forced(self):
        return [1 + byte for byte in self.rests[-1][0]]


class ForcesWhatTheTokenizerSays(SpellingCompiler):
    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.encode = vocabulary.encode

    def compile(self, constraint):
        make = super().compile(constraint)

        def made():
            matcher = make()
            if len(constraint.texts) == 1:
                matcher.forced = lambda: self.encode(constraint.texts[0])
            return matcher

        return made


class GoesOnByWhatIsForced(Spelling):
    def forced(self):
        found = super().forced()
        for token_id in found:
            self.accept(token_id)
        return found


class LooksOnce(Spelling):
    def fill(self, mask):
        super().fill(mask)
        self._after = lambda token_id: []


class AcceptsSilence(Spelling):
    def accept(self, token_id):
        return not 0 < token_id < len(self.token_bytes) or super().accept(token_id)


class SharesOneAnswer(SpellingCompiler):
    def compile(self, constraint):
        made = super().compile(constraint)()
        return lambda: made


class MakesTheNewest(SpellingCompiler):
    """Keeps what it compiles where the next one is put."""

    def compile(self, constraint):
        self.texts = constraint.texts
        return lambda: self.matcher(self.token_bytes, self.texts)


class CompilesOneAtATime(SpellingCompiler):
    count = 0

    def compile(self, constraint):
        self.count += 1
        assert self.count == 1, "two compile at once"
        time.sleep(0.01)
        self.count -= 1
        return super().compile(constraint)


class TakesAnything(SpellingCompiler):
    def compile(self, constraint):
        return super().compile(TRIED[OneOf])


class KnowsOneOfEqualTokens(Spelling):
    """Looks tokens up by their bytes."""

    def fill(self, mask):
        for token_id in {added: i for i, added in enumerate(self.token_bytes)}.values():
            if self._after(token_id):
                mask[token_id // 32] |= np.uint32(1 << token_id % 32).astype(np.int32)


class GoesOnPastTheEnd(Spelling):
    def accept(self, token_id):
        if self.rests[-1] != [b""]:
            return super().accept(token_id)
        self.rests.append([b""])
        return True


class WritesSignsAsOthers(Spelling):
    def __init__(self, token_bytes, texts):
        super().__init__(token_bytes, [unicodedata.normalize("NFKC", text) for text in texts])


class RemembersSixteen(Spelling):
    def accept(self, token_id):
        is_accepted = super().accept(token_id)
        del self.rests[:-17]
        return is_accepted

    def roll_back(self, num_tokens):
        super().roll_back(min(num_tokens, len(self.rests) - 1))


class OnSpelling(ConstraintContract):
    forms = (OneOf,)

    def __init__(self, kind):
        self.make = kind
        if issubclass(kind, Spelling):
            self.make = type(kind.__name__, (SpellingCompiler,), {"matcher": kind})

    def matcher(self):
        return self._matcher(TRIED[OneOf])


CHOICE = "every_text_of_a_choice_is_possible_and_nothing_else"
ROWS = (
    (AllowsTooMuch, "Only tokens that may follow are set.", CHOICE),
    (AllowsTooMuch, "What is set is accepted.", "every_allowed_token_is_accepted"),
    (AllowsTooLittle, "Every token that may follow is set.", CHOICE),
    (
        LosesTheSign,
        "Token i is bit i % 32 of word i // 32, the last bit too.",
        "a_choice_is_of_texts_and_not_of_patterns",
    ),
    (
        KnowsOneOfEqualTokens,
        "Every token that may follow is set, of equal ones each.",
        CHOICE,
    ),
    (
        GoesOnPastTheEnd,
        "What is whole goes on only where another text does.",
        CHOICE,
    ),
    (
        WritesSignsAsOthers,
        "A choice is of texts as they are.",
        "a_choice_is_of_texts_and_not_of_patterns",
    ),
    (
        RemembersSixteen,
        "At most as many tokens are taken back as were accepted.",
        "a_long_answer_may_be_taken_back",
    ),
    (EndsAnywhere, "A text may end where it is whole only.", "an_answer_may_end_where_it_is_whole"),
    (NeverEnds, "A text that is whole may end.", CHOICE),
    (
        NeverEnds,
        "What was allowed all the way may end.",
        "an_answer_of_allowed_tokens_is_valid",
    ),
    (
        AcceptsAnything,
        "What the constraint does not allow is refused.",
        "a_token_that_is_refused_changes_nothing",
    ),
    (AcceptsNothing, "What may follow is accepted.", "every_allowed_token_is_accepted"),
    (
        FallsOverGuesses,
        "What is refused changes nothing.",
        "a_token_that_is_refused_changes_nothing",
    ),
    (
        TakesBackTooMuch,
        "As many tokens are taken back as was said.",
        "tokens_that_are_taken_back_leave_no_trace",
    ),
    (
        TakesAllBackForNothing,
        "Of no tokens, none are taken back.",
        "taking_nothing_back_changes_nothing",
    ),
    (
        IsResetHalfway,
        "A matcher is reset to the beginning.",
        "a_matcher_is_reset_to_the_beginning",
    ),
    (
        StaysAtTheEnd,
        "The newest tokens are taken back, of a whole text too.",
        "an_answer_may_be_taken_back_as_a_whole",
    ),
    (ForcesGuesses, "What is forced may follow.", "what_is_forced_may_follow"),
    (
        ForcesTheFirst,
        "Tokens are forced where there is but one text.",
        "only_what_all_texts_have_in_common_is_forced",
    ),
    (
        ForcesWhatTheTokenizerSays,
        "The tokens of a text may begin with a space that is none of it.",
        "a_tokenizer_may_put_a_space_before_a_text",
    ),
    (GoesOnByWhatIsForced, "What is forced is not accepted.", "what_is_forced_may_follow"),
    (
        LooksOnce,
        "What may follow depends on the accepted tokens, and on nothing else.",
        "reading_a_mask_changes_nothing",
    ),
    (
        AcceptsSilence,
        "A token that adds nothing follows where a grammar names it only.",
        "a_token_without_text_is_never_accepted",
    ),
    (
        SharesOneAnswer,
        "Each answer has a matcher that has seen nothing yet.",
        "answers_grow_beside_each_other",
    ),
    (MakesTheNewest, "One constraint is not another.", "constraints_do_not_mix"),
    (
        CompilesOneAtATime,
        "Constraints are compiled in several threads at once.",
        "constraints_are_compiled_beside_each_other",
    ),
    (
        TakesAnything,
        "What makes no sense is refused.",
        "an_invalid_constraint_is_refused_when_it_is_compiled",
    ),
    (TakesAnything, "A form that is not taken is refused.", "an_unsupported_form_is_refused"),
)
TABLE = Table(
    ConstraintContract,
    OnSpelling,
    Spelling,
    tuple(Broken(kind, promise, test, raises=(IndexError,)) for kind, promise, test in ROWS),
)
