"""The compiler keeps vlmkit's contract for the one form that it takes."""

import pytest

from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import ConstraintCompiler, Vocabulary
from vlmkit.types.constraint import OneOf, Regex
from vlmkit_testing import ConstraintContract
from vlmkit_yourname.plugin import ChoiceCompiler

LETTERS = Vocabulary(
    [b"", *(bytes([i]) for i in range(256)), b"re"], lambda text: list(text.encode())
)


class TestChoiceCompiler(ConstraintContract):
    forms = (OneOf,)

    def make(self, vocabulary: Vocabulary) -> ConstraintCompiler:
        return ChoiceCompiler(vocabulary)


def test_the_rest_is_forced_once_only_one_text_is_left() -> None:
    matcher = ChoiceCompiler(LETTERS).compile(OneOf(("red", "green")))()
    assert list(matcher.forced()) == []
    assert matcher.accept(1 + ord("g"))
    assert list(matcher.forced()) == [257, 1 + ord("e"), 1 + ord("n")]


def test_a_pattern_is_refused_with_a_hint() -> None:
    with pytest.raises(ConstraintError) as error:
        ChoiceCompiler(LETTERS).compile(Regex("a+"))
    assert "vlmkit-guidance" in error.value.hint
