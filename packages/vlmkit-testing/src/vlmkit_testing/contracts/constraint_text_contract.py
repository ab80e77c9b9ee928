"""What texts a constraint takes: all that satisfy it, token by token, and no others."""

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from vlmkit.interfaces.constraint import DeclaresSchemaSupport, MakeMatcher, Matcher, Vocabulary
from vlmkit.types.constraint import JsonObject, JsonSchema, Lark, OneOf, Regex
from vlmkit_testing.contracts.constraint_subject import (
    COLOURS,
    TOKEN_BYTES,
    TRIED,
    ConstraintSubject,
    allowed_tokens,
    byte_tokens,
)

Spacing = tuple[str, str]
SPACINGS: tuple[Spacing, ...] = ((", ", ": "), (",", ":"), (", ", ":"), (",", ": "))
"""Between members of JSON, and behind their names; a compiler need not allow each."""

OBJECTS = (
    "{}",
    '{"a"#1}',
    '{"a"#-1.5e3@"b"#null}',
    '{"ü €"#true@"b"#"say \\"x\\""}',
    '{"a"#{"b"#{"c"#[]}}@"d"#[{"e"#false}@0@"x"]}',
)
NO_OBJECTS = ("[1]", "7", "null", '"a"', '{"a"}', '{"a"#}', '{"a"#1@}', "{a#1}", '{"a"#01}', "{")
PERSONS = tuple(f'{{"name"#"{n}"@"number"#{i}}}' for n in ("Ann", "Bob") for i in (0, 7, -12))
NO_PERSONS = (
    '{"number"#7@"name"#"Ann"}',
    '{"name"#"Ann"}',
    '{"name"#"Ann"@"number"#"7"}',
    '{"name"#"Al"@"number"#7}',
    '{"name"#"Ann"@"number"#7@"more"#1}',
    '{"name"#"Ann"@"number"#7.5}',
    "{}",
)
LETTERS = ("".join(each) for n in (2, 3) for each in itertools.product("abc", repeat=n))
WORDS = tuple(letters + end for letters in LETTERS for end in ("", "one", "two"))
TEXTS: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {
    JsonSchema: (PERSONS, NO_PERSONS),
    JsonObject: (OBJECTS, NO_OBJECTS),
    Regex: (WORDS, ("", "a", "abcd", "ad", "abon", "one", "ab two", "aboneone", "AB")),
    OneOf: (COLOURS.texts, ("", "re", "redd", "reddishred", "Red", " red", "blute")),
    Lark: (tuple("(" * n + "x" + ")" * n for n in range(9)), ("", "()", "(x", "x)", "((x)", "xx")),
}
"""By form, texts that satisfy the constraint that is tried, and others; # and @ are spacings."""

PATTERNS = ("^a+$", "a{2,3}", "[^b-d]", "(a|b)c?", "(?=a)b", r"(a)\1", r"\bword", "(?<!a)b", r"\d")
NUM_STATES = 25
MAX_FORCED = 24  # bytes of a forced text that are checked


class ConstraintTextContract(ConstraintSubject):
    """The part of the contract about whole texts, masks in memory and declared support."""

    @pytest.mark.parametrize("form", TEXTS, ids=lambda form: form.__name__)
    def test_all_texts_that_satisfy_a_constraint_are_taken_and_no_others(self, form: type) -> None:
        """A mask that forbids too much leaves every answer valid, but not every answer possible."""
        if self._taken(form) in self.examples:
            pytest.skip("only some constraints of this form are taken")
        make = self._compiler().compile(TRIED[form])
        taken, refused = TEXTS[form]
        for text in taken:
            assert any(_is_answer(make, each) for each in _spaced(text)), f"{text} is not taken"
        for text in refused:
            assert not any(_is_answer(make, each) for each in _spaced(text)), f"{text} is taken"

    def test_a_mask_agrees_with_the_bytes_of_its_tokens(self, matcher: Matcher) -> None:
        """A longer token may follow where its bytes may; one text alone needs only usual tokens."""
        chance = random.Random(13)
        for _ in range(NUM_STATES):
            allowed = allowed_tokens(matcher)
            is_open = len({TOKEN_BYTES[token_id][:1] for token_id in allowed}) > 1
            for token_id, added in enumerate(TOKEN_BYTES):
                if added and (token_id in allowed or is_open):
                    is_possible = _takes_bytes(matcher, added)
                    assert is_possible == (token_id in allowed), f"{added!r}: mask and bytes differ"
            if not allowed:
                break
            assert matcher.accept(chance.choice(allowed))

    def test_nothing_is_forced_where_texts_differ(self, matcher: Matcher) -> None:
        """Of any form: only one byte may follow before each forced one, and no end."""
        chance = random.Random(16)
        for _ in range(NUM_STATES):
            forced = b"".join(TOKEN_BYTES[token_id] for token_id in matcher.forced())[:MAX_FORCED]
            for number in range(len(forced)):
                assert not matcher.may_end, f"{forced!r} is forced after a whole text"
                firsts = {TOKEN_BYTES[token_id][:1] for token_id in allowed_tokens(matcher)}
                assert firsts == {forced[number : number + 1]}, f"{forced!r} is forced"
                assert matcher.accept(1 + forced[number])
            matcher.roll_back(len(forced))
            if not (allowed := allowed_tokens(matcher)):
                break
            assert matcher.accept(chance.choice(allowed))

    def test_a_mask_is_filled_where_it_is(self, matcher: Matcher) -> None:
        """It is a row of the masks of a step, and the other rows are of other answers."""
        chance = random.Random(14)
        for _ in range(4):
            expected = allowed_tokens(matcher)
            masks = np.zeros((3, -(-len(TOKEN_BYTES) // 32)), np.int32)
            matcher.fill(masks[1])
            assert not masks[[0, 2]].any(), "bits of another answer are set"
            bits = np.unpackbits(masks[1].astype("<i4").view(np.uint8), bitorder="little")
            assert np.flatnonzero(bits).tolist() == expected
            if not expected:
                break
            assert matcher.accept(chance.choice(expected))

    def test_equal_constraints_are_compiled_twice(self) -> None:
        """A compiler may keep a grammar; its answers are two; a vocabulary may be a tuple."""
        form = self._forms()[0]
        compiler = self.make(Vocabulary(tuple(TOKEN_BYTES), byte_tokens))
        first, second = (compiler.compile(self._example(form))() for _ in range(2))
        chance, alone = random.Random(15), self._matcher(self._example(form))
        before = allowed_tokens(second), second.may_end
        for _ in range(8):
            allowed = allowed_tokens(first)
            assert allowed == allowed_tokens(alone)
            if not allowed:
                break
            token_id = chance.choice(allowed)
            assert first.accept(token_id)
            assert alone.accept(token_id)
        assert (allowed_tokens(second), second.may_end) == before

    def test_what_is_declared_of_schemas_is_enforced(self) -> None:
        """Formats and patterns: those that it declares are compiled, and others are refused."""
        compiler = self._compiler()
        if not isinstance(compiler, DeclaresSchemaSupport) or JsonSchema not in self._forms():
            pytest.skip("this compiler declares no support of schemas")
        support = compiler.schema_support
        if "pattern" not in support.unsupported:
            for pattern in PATTERNS:
                schema = JsonSchema.of({"type": "string", "pattern": pattern})
                assert self._is_taken(schema) == support.takes_pattern(pattern), pattern
            support.takes_pattern("(" * 2**16)
        if "format" not in support.unsupported and support.formats is not None:
            for name in (*support.formats, "no such format"):
                schema = JsonSchema.of({"type": "string", "format": name})
                assert self._is_taken(schema) == (name in support.formats), name
        found = compiler.schema_support
        assert (found.unsupported, found.formats) == (support.unsupported, support.formats)

    def test_a_declared_format_is_no_other_text(self) -> None:
        """Where a date is asked for, an answer without digits is none."""
        compiler = self._compiler()
        if not isinstance(compiler, DeclaresSchemaSupport) or JsonSchema not in self._forms():
            pytest.skip("this compiler declares no support of schemas")
        known = {"date", "time", "date-time", "uuid", "ipv4"} & (
            compiler.schema_support.formats or frozenset()
        )
        for name in known:
            make = compiler.compile(JsonSchema.of({"type": "string", "format": name}))
            for text in ('"x"', '"-"', '""', '"2026"'):
                assert not _is_answer(make, text), f"{text} is a {name}"
            assert _is_answer(make, f'"{_FORMATTED[name]}"'), name


_FORMATTED = {
    "date": "2026-02-28",
    "time": "23:59:59Z",
    "date-time": "2026-02-28T23:59:59Z",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "ipv4": "192.168.0.1",
}


def _spaced(text: str) -> Iterator[str]:
    """Yield a text in each spacing."""
    for between, behind in SPACINGS:
        yield text.replace("@", between).replace("#", behind)


def _is_answer(make: MakeMatcher, text: str) -> bool:
    """Return whether a whole answer may be a text."""
    matcher = make()
    return all(map(matcher.accept, byte_tokens(text))) and matcher.may_end


def _takes_bytes(matcher: Matcher, added: bytes) -> bool:
    """Return whether bytes may follow one after the other, and take them back."""
    num = 0
    while num < len(added) and matcher.accept(1 + added[num]):
        num += 1
    matcher.roll_back(num)
    return num == len(added)
