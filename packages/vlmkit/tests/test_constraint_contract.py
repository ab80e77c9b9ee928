"""The contract of compilers holds for one without a library, and catches those that are broken."""

import numpy as np
import pytest
from spelling import Spelling, SpellingCompiler

from vlmkit.ask.constraint import OneOf, Regex
from vlmkit.testing import ConstraintContract
from vlmkit.testing.constraint_contract import TRIED


class TestSpelling(ConstraintContract):
    forms = (OneOf,)

    def make(self, vocabulary):
        return SpellingCompiler(vocabulary)


class AllowsTooMuch(Spelling):
    def fill(self, mask):
        mask[:] = -1


class AllowsTooLittle(Spelling):
    def fill(self, mask):
        super().fill(mask)
        mask[-1] = 0


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


class ForcesGuesses(Spelling):
    def forced(self):
        return [2]


class GoesOnByWhatIsForced(Spelling):
    def forced(self):
        found = super().forced()
        for token_id in found:
            self.accept(token_id)
        return found


class AcceptsSilence(Spelling):
    def accept(self, token_id):
        return not 0 < token_id < len(self.token_bytes) or super().accept(token_id)


class SharesOneAnswer(SpellingCompiler):
    def compile(self, constraint):
        made = super().compile(constraint)()
        return lambda: made


class TakesAnything(SpellingCompiler):
    def compile(self, constraint):
        return super().compile(TRIED[OneOf])


CHOICE = "every_word_of_a_choice_may_be_said_and_nothing_else"
BROKEN = [
    (AllowsTooMuch, CHOICE),
    (AllowsTooMuch, "whatever_is_set_is_accepted"),
    (AllowsTooLittle, CHOICE),
    (EndsAnywhere, CHOICE),
    (NeverEnds, CHOICE),
    (AcceptsAnything, "a_token_that_is_refused_changes_nothing"),
    (AcceptsAnything, "what_adds_nothing_is_never_accepted"),
    (AcceptsNothing, "whatever_is_set_is_accepted"),
    (FallsOverGuesses, "a_token_that_is_refused_changes_nothing"),
    (TakesBackTooMuch, "tokens_that_are_taken_back_leave_no_trace"),
    (ForcesGuesses, "what_is_forced_may_follow"),
    (GoesOnByWhatIsForced, "what_is_forced_may_follow"),
    (AcceptsSilence, "what_adds_nothing_is_never_accepted"),
    (SharesOneAnswer, "answers_grow_beside_each_other"),
    (TakesAnything, "what_makes_no_sense_is_refused_when_it_is_compiled"),
    (TakesAnything, "a_form_that_is_not_taken_is_refused"),
]


@pytest.mark.parametrize(("broken", "test"), BROKEN, ids=lambda v: getattr(v, "__name__", v))
def test_a_broken_compiler_is_caught(broken, test):
    contract = TestSpelling()
    if issubclass(broken, Spelling):

        class Compiler(SpellingCompiler):
            matcher = broken

        contract.make = Compiler
    else:
        contract.make = broken
    subjects = {
        "what_makes_no_sense_is_refused_when_it_is_compiled": [Regex("(")],
        "a_form_that_is_not_taken_is_refused": [Regex],
    }
    needs_none = {CHOICE, "answers_grow_beside_each_other"}
    given = subjects.get(test) or ([] if test in needs_none else [contract._matcher(TRIED[OneOf])])
    with pytest.raises((AssertionError, IndexError, pytest.fail.Exception)):
        getattr(contract, f"test_{test}")(*given)


class ReadsPatternsAsTexts(SpellingCompiler):
    def compile(self, constraint):
        return super().compile(OneOf((constraint.pattern,)))


@pytest.mark.parametrize("broken", [ReadsPatternsAsTexts, TakesAnything])
def test_a_compiler_that_misreads_patterns_is_caught(broken):
    contract = TestSpelling()
    contract.make, contract.forms = broken, (Regex,)
    with pytest.raises(AssertionError, match=r"a-c|red|bl"):
        contract.test_what_was_allowed_all_the_way_is_valid(0, Regex)


def test_masks_are_signed_words():
    mask = np.zeros(1, np.int32)
    Spelling([b"x"] * 32, ["x"]).fill(mask)
    assert mask[0] == -1
