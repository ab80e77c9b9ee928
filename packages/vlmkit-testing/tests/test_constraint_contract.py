"""The contract of constraint compilers: a correct compiler passes it, and broken ones fail."""

import numpy as np
import pytest

from spelling import Spelling, SpellingCompiler
from vlmkit.types.constraint import OneOf, Regex
from vlmkit_testing import ConstraintContract
from vlmkit_testing.contracts.constraint_contract import TRIED


class TestSpelling(ConstraintContract):
    forms = (OneOf,)

    def make(self, vocabulary):
        return SpellingCompiler(vocabulary)


class ReadsPatternsAsTexts(SpellingCompiler):
    def compile(self, constraint):
        return super().compile(OneOf((constraint.pattern,)))


class CompilesAnything(SpellingCompiler):
    def compile(self, constraint):
        return super().compile(TRIED[OneOf])


@pytest.mark.parametrize("broken", [ReadsPatternsAsTexts, CompilesAnything])
def test_a_compiler_that_misreads_patterns_is_detected(broken):
    contract = TestSpelling()
    contract.make, contract.forms = broken, (Regex,)
    with pytest.raises(AssertionError, match=r"a-c|red|bl"):
        contract.test_an_answer_of_allowed_tokens_is_valid(0, Regex)


def test_masks_are_signed_words():
    mask = np.zeros(1, np.int32)
    Spelling([b"x"] * 32, ["x"]).fill(mask)
    assert mask[0] == -1
