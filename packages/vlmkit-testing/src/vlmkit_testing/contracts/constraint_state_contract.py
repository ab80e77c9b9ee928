"""What a matcher's answers depend on: the accepted tokens alone, in whatever way they came."""

import contextlib
import itertools
import random
from typing import Any

import pytest

from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import DeclaresSchemaSupport, MakeMatcher, Matcher, Resettable
from vlmkit.types.constraint import Constraint, JsonObject, JsonSchema, Lark, OneOf, Regex
from vlmkit_testing.contracts.constraint_subject import (
    TOKEN_BYTES,
    ConstraintSubject,
    allowed_tokens,
    byte_tokens,
)

NUM_MOVES = 80
NUM_TEXTS = 1000
LOOKED_AHEAD = "xyzwvk " * 32  # of bytes that no longer token of the vocabulary has
PLACES = (0, 30, 140)  # in it
AMBIGUOUS = Lark('start: x\nx: x x | x x x | x x x x | x x x x x | "a" | ""')
NUM_AMBIGUOUS = 200  # tokens, of which many matchers cannot follow all readings
KEYWORDS: dict[str, Any] = {
    "not": {"type": "string"},
    "if": {"type": "array"},
    "uniqueItems": True,
    "contains": {"type": "string"},
    "propertyNames": {"maxLength": 3},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {"type": "object"}},
    "patternProperties": {"^a": {"type": "string"}},
    "multipleOf": 3,
    "pattern": "^a+$",
    "minProperties": 2,
    "unevaluatedProperties": False,
    "unevaluatedItems": False,
}
"""Keywords of JSON Schema that a compiler may not enforce, each with a value."""
ENDS = "the same beginning and end of a long text " * 24  # more than a key of 1,000 characters


class ConstraintStateContract(ConstraintSubject):
    """The part of the contract about histories and about long constraints."""

    def test_a_state_depends_on_the_accepted_tokens_alone(self, matcher: Matcher) -> None:
        """After any sequence of calls it is that of a new matcher that accepts these tokens."""
        chance, tokens = random.Random(12), list[int]()
        make = self._compiler().compile(self._example(self._form))
        for move in range(NUM_MOVES):
            allowed, kind = allowed_tokens(matcher), chance.random()
            if kind < 0.6 and allowed:
                tokens.append(chance.choice(allowed))
                assert matcher.accept(tokens[-1])
            elif kind < 0.7:
                refused = chance.choice(sorted({*range(len(TOKEN_BYTES))} - {*allowed}))
                if matcher.accept(refused):
                    matcher.roll_back(1)
            elif kind < 0.95:
                num = chance.randint(0, min(4, len(tokens)))
                matcher.roll_back(num)
                del tokens[len(tokens) - num :]
            elif isinstance(matcher, Resettable):
                matcher.reset()
                tokens.clear()
            if move % 3 == 0:  # and otherwise nothing that was computed is read
                fresh = make()
                assert all(map(fresh.accept, tokens))
                assert _state(matcher) == _state(fresh), [TOKEN_BYTES[i] for i in tokens]

    def test_what_is_forced_depends_on_the_accepted_tokens_alone(self) -> None:
        """In a long text, too, of which a compiler may look a bounded part ahead."""
        self._any_choice_is_taken()
        make = self._compiler().compile(OneOf((LOOKED_AHEAD,)))
        asked, tokens = make(), byte_tokens(LOOKED_AHEAD)
        for place, token_id in enumerate(tokens):
            if place % 25 == 5:
                fresh = make()  # it was never asked before
                assert all(map(fresh.accept, tokens[:place]))
                assert _state(asked) == _state(fresh), f"after {place} bytes"
            assert asked.accept(token_id)

    def test_no_history_changes_what_is_forced_in_a_long_text(self) -> None:
        """Neither a long answer that is taken back, nor one before a reset."""
        self._any_choice_is_taken()
        make = self._compiler().compile(OneOf((LOOKED_AHEAD,)))
        matcher, tokens = make(), byte_tokens(LOOKED_AHEAD)
        expected = dict[int, tuple[Any, ...]]()
        for place in PLACES:
            fresh = make()
            assert all(map(fresh.accept, tokens[:place]))
            expected[place] = _state(fresh)
        for resets, before, place in itertools.product((False, True), (70, 150), PLACES):
            assert all(map(matcher.accept, tokens[:before]))
            matcher.forced()
            if resets and isinstance(matcher, Resettable):
                matcher.reset()
            else:
                matcher.roll_back(before)
            assert all(map(matcher.accept, tokens[:place]))
            assert _state(matcher) == expected[place], f"{before} bytes were before {place}"
            matcher.roll_back(place)

    def test_a_matcher_is_reset_after_it_raised(self) -> None:
        """It fails in an ambiguous grammar, and is then as new."""
        self._taken(Lark)
        if not self._is_taken(AMBIGUOUS):
            pytest.skip("this compiler refuses ambiguous grammars")
        matcher = self._matcher(AMBIGUOUS)
        if not isinstance(matcher, Resettable):
            pytest.skip("its matchers cannot be reset")
        first, tokens = _state(matcher), byte_tokens("a" * NUM_AMBIGUOUS)
        with contextlib.suppress(ConstraintError):
            all(map(matcher.accept, tokens))
            pytest.skip("its matchers do not fail in ambiguous grammars")
        matcher.reset()
        assert _state(matcher) == first
        assert matcher.accept(tokens[0])

    def test_a_json_object_is_no_other_value(self) -> None:
        """Its first character, behind white space, is a brace."""
        self._taken(JsonObject)
        first = {TOKEN_BYTES[i].lstrip()[:1] for i in allowed_tokens(self._matcher(JsonObject()))}
        assert b"{" in first
        assert first <= {b"{", b""}

    def test_each_rule_of_a_grammar_has_its_own_schema(self) -> None:
        """A grammar may have several, as one of calls to several tools has."""
        schemas = [
            ("first", JsonSchema.of({"enum": ["ab"]})),
            ("last", JsonSchema.of({"enum": [7]})),
        ]
        make = self._grammar(Lark('start: first "," last', tuple(schemas)))
        assert _takes(make(), b'"ab",7')
        for other in (b'"ab","ab"', b'7,"ab"', b"7,7"):
            assert not _takes(make(), other), other

    def test_a_token_without_text_is_possible_where_a_grammar_names_it(self) -> None:
        """There, and nowhere else; another such token is not."""
        named, other = (i for i in range(len(TOKEN_BYTES) - 2, len(TOKEN_BYTES)))
        matcher = self._grammar(Lark('start: "a" mark "b"', tokens=(("mark", named),)))()
        expected = [1 + ord("a"), named, 1 + ord("b")]
        for token_id in expected:
            for silent in {named, other} - {token_id}:
                assert not matcher.accept(silent)
            assert token_id in allowed_tokens(matcher)
            assert matcher.accept(token_id)
        assert matcher.may_end

    def test_constraints_that_differ_in_the_middle_do_not_mix(self) -> None:
        """Equal lengths, starts and ends do not make two constraints the same."""
        compiler = self._compiler()
        for form, constraints in _similar().items():
            if form not in self._forms() or form in self.examples:
                continue
            made = [compiler.compile(constraint) for constraint in constraints]
            for own, make in enumerate(made):
                for other in range(len(made)):
                    said = f"{ENDS}{other}{ENDS}".encode()
                    told = b'"' + said + b'"' if form is JsonSchema else said
                    assert _takes(make(), told) == (own == other), (form.__name__, own, other)

    def test_keywords_that_are_not_enforced_are_refused(self) -> None:
        """A schema is never enforced in part without an error, wherever its keyword stands."""
        compiler = self._compiler()
        if not isinstance(compiler, DeclaresSchemaSupport) or JsonSchema not in self._forms():
            pytest.skip("this compiler declares no support of schemas")
        for keyword in KEYWORDS.keys() & compiler.schema_support.unsupported:
            schema: Any = {keyword: KEYWORDS[keyword]}
            for whole in (schema, {"type": "object", "properties": {"a": schema}}):
                with pytest.raises(ConstraintError):
                    compiler.compile(JsonSchema.of(whole))

    def test_a_choice_may_have_many_texts(self) -> None:
        """Each is possible, wherever it stands among them, and no other is."""
        self._any_choice_is_taken()
        texts = tuple(f"choice {number * 7919 % 100_003:06}" for number in range(NUM_TEXTS))
        make = self._compiler().compile(OneOf(texts))
        for number in (0, 1, *range(60, NUM_TEXTS, 97), NUM_TEXTS - 2, NUM_TEXTS - 1):
            assert _takes(make(), texts[number].encode()), f"text {number} is not possible"
        assert not _takes(make(), b"choice 100003")

    def _grammar(self, grammar: Lark) -> MakeMatcher:
        self._taken(Lark)
        if Lark in self.examples:
            pytest.skip("only some grammars are taken")
        return self._compiler().compile(grammar)


def _similar() -> dict[type, list[Constraint]]:
    """Return constraints of each form that differ in one character, each for one text."""
    texts = [f"{ENDS}{number}{ENDS}" for number in range(3)]
    return {
        OneOf: [OneOf((text,)) for text in texts],
        Regex: [Regex(text) for text in texts],
        Lark: [Lark(f'start: "{text}"') for text in texts],
        JsonSchema: [JsonSchema.of({"enum": [text]}) for text in texts],
    }


def _takes(matcher: Matcher, text: bytes) -> bool:
    """Return whether a whole answer may be a text."""
    return all(matcher.accept(1 + byte) for byte in text) and matcher.may_end


def _state(matcher: Matcher) -> tuple[Any, ...]:
    return allowed_tokens(matcher), matcher.may_end, list(matcher.forced())
