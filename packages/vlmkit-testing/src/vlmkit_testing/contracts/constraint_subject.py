"""The subject of the constraint contract: a vocabulary, constraints and helpers. No tests."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import ConstraintCompiler, Matcher, Vocabulary
from vlmkit.types.constraint import Constraint, JsonObject, JsonSchema, Lark, OneOf, Regex

WORDS = ('{"', '":', '": ', '", "', "na", "name", "number", "red", "re", "blue", "true", "one")
TOKEN_BYTES = [
    b"",
    *(bytes([i]) for i in range(256)),
    *(w.encode() for w in WORDS),
    b"a",
    b"re",
    b"",
    b"",
]
"""A vocabulary: every byte, some words, of which two come twice, and tokens that add nothing."""

PERSON = JsonSchema.of(
    {
        "type": "object",
        "properties": {"name": {"enum": ["Ann", "Bob"]}, "number": {"type": "integer"}},
        "required": ["name", "number"],
        "additionalProperties": False,
    }
)
COLOURS = OneOf(("red", "reddish", "blue", "blüte"))
TRIED: dict[type, Constraint] = {
    JsonSchema: PERSON,
    JsonObject: JsonObject(),
    Regex: Regex("[a-c]{2,3}(one|two)?"),
    OneOf: COLOURS,
    Lark: Lark('start: "(" start ")" | "x"'),
}
VALID: dict[type, Callable[[str], bool]] = {
    JsonSchema: lambda text: _is_person(json.loads(text)),
    Regex: lambda text: re.fullmatch("[a-c]{2,3}(one|two)?", text) is not None,
    OneOf: lambda text: text in COLOURS.texts,
    Lark: lambda text: text == "(" * (len(text) // 2) + "x" + ")" * (len(text) // 2),
}
"""How a text that is generated within a constraint is checked; few JSON objects are short."""


class ConstraintSubject:
    """What a compiler's author provides, and what the tests share.

    Attributes:
        forms: the constraints that it supports; others are refused. None supports those that it
            does not refuse.
        examples: for a compiler that supports some constraints of a form, such as one pattern: by
            form, one that it supports, and whether a text satisfies it.
    """

    forms: tuple[type, ...] | None = tuple(TRIED)
    examples: Mapping[type, tuple[Constraint, Callable[[str], bool]]] = {}

    _form: type = OneOf  # of the fixture's matcher

    def make(self, vocabulary: Vocabulary) -> ConstraintCompiler:
        """Return a compiler for a vocabulary."""
        raise NotImplementedError

    @pytest.fixture(params=TRIED, ids=lambda form: form.__name__)
    def matcher(self, request: pytest.FixtureRequest) -> Matcher:
        """Return a matcher of each supported form."""
        self._form = self._taken(request.param)
        return self._matcher(self._example(self._form))

    # Helpers

    def _taken(self, form: type) -> type:
        if form not in self._forms():
            pytest.skip("constraints of this form are not taken")
        return form

    def _any_choice_is_taken(self) -> None:
        if self._taken(OneOf) in self.examples:
            pytest.skip("only some choices are taken")

    def _example(self, form: type) -> Constraint:
        return self.examples[form][0] if form in self.examples else TRIED[form]

    def _is_valid(self, form: type, said: bytes) -> bool:
        check = self.examples[form][1] if form in self.examples else VALID[form]
        try:
            return check(said.decode())
        except ValueError:  # half a character, or half a JSON value
            return False

    def _forms(self) -> tuple[type, ...]:
        if self.forms is not None:
            return self.forms
        forms = tuple(form for form in TRIED if self._is_taken(self._example(form)))
        assert forms, (
            f"it refuses all that is tried of any form, {TRIED[Regex]!r} for one; the tests of a "
            "compiler that takes only some constraints name one in ConstraintContract.examples"
        )
        return forms

    def _is_taken(self, constraint: Constraint) -> bool:
        try:
            self._compiler().compile(constraint)
        except ConstraintError:
            return False
        return True

    def _compiler(self) -> ConstraintCompiler:
        return self.make(Vocabulary(TOKEN_BYTES, byte_tokens))

    def _matcher(self, constraint: Constraint) -> Matcher:
        return self._compiler().compile(constraint)()


def byte_tokens(text: str) -> list[int]:
    """Return a token for each byte."""
    return [1 + byte for byte in text.encode()]


def allowed_tokens(matcher: Matcher) -> list[int]:
    """Return the tokens that may follow."""
    mask = np.zeros(-(-len(TOKEN_BYTES) // 32), np.int32)
    matcher.fill(mask)
    is_set = np.unpackbits(mask.astype("<i4").view(np.uint8), bitorder="little")
    assert not is_set[len(TOKEN_BYTES) :].any(), "a bit after the last token is set"
    return [int(i) for i in np.flatnonzero(is_set[: len(TOKEN_BYTES)])]


def _is_person(said: Any) -> bool:
    is_whole = list(said) == ["name", "number"] and isinstance(said["number"], int)
    return is_whole and said["name"] in ("Ann", "Bob")
