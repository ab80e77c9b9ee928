"""What every constraint compiler must do."""

import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import Matcher, Resettable, Vocabulary
from vlmkit.types.constraint import Constraint, JsonSchema, Lark, OneOf, Regex
from vlmkit_testing.contracts.constraint_state_contract import ConstraintStateContract
from vlmkit_testing.contracts.constraint_subject import (
    COLOURS,
    TOKEN_BYTES,
    TRIED,
    VALID,
    allowed_tokens,
    byte_tokens,
)
from vlmkit_testing.contracts.constraint_text_contract import ConstraintTextContract

SIGNS = OneOf(("a.c", "a+", 'say "x"\\', "(", "a\nb", "\x7f~", "^>", "_\x1e", "ﬁ½", "e\u0301"))
SENSELESS = (JsonSchema.of({"type": "nothing"}), Regex("("), Lark("start: nowhere"))


class ConstraintContract(ConstraintStateContract, ConstraintTextContract):
    """Inherit it, override :meth:`make`, and run pytest.

    Attributes describe the compiler:
    :class:`vlmkit_testing.contracts.constraint_subject.ConstraintSubject`.
    """

    # What may follow

    def test_every_text_of_a_choice_is_possible_and_nothing_else(self) -> None:
        """The masks are right byte by byte, also within a character."""
        self._any_choice_is_taken()
        self._check_choice(COLOURS)

    def test_a_choice_is_of_texts_and_not_of_patterns(self) -> None:
        """Characters with a meaning in patterns are literal, at every bit of a mask."""
        self._any_choice_is_taken()
        self._check_choice(SIGNS)

    @pytest.mark.parametrize("form", VALID, ids=lambda form: form.__name__)
    def test_an_answer_may_end_where_it_is_whole(self, form: type) -> None:
        """The end is allowed where the text is complete, and nowhere else."""
        matcher, chance, said = (
            self._matcher(self._example(self._taken(form))),
            random.Random(3),
            b"",
        )
        for _ in range(60):
            assert matcher.may_end == self._is_valid(form, said), said
            if not (allowed := allowed_tokens(matcher)):
                break
            token_id = chance.choice(allowed)
            assert matcher.accept(token_id)
            said += TOKEN_BYTES[token_id]

    @pytest.mark.parametrize("form", VALID, ids=lambda form: form.__name__)
    @pytest.mark.parametrize("seed", range(5))
    def test_an_answer_of_allowed_tokens_is_valid(self, seed: int, form: type) -> None:
        """Any path through the masks gives a valid text."""
        matcher = self._matcher(self._example(self._taken(form)))
        said = _said(matcher, random.Random(seed), num_tokens=200).decode()
        assert self._is_valid(form, said.encode()), said

    def test_every_allowed_token_is_accepted(self, matcher: Matcher) -> None:
        """Each adds text."""
        chance = random.Random(4)
        for _ in range(20):
            allowed = allowed_tokens(matcher)
            for token_id in allowed:
                assert TOKEN_BYTES[token_id], token_id
                assert matcher.accept(token_id), token_id
                matcher.roll_back(1)
            if not allowed:
                assert matcher.may_end, "it can neither go on nor end"
                break
            assert matcher.accept(chance.choice(allowed))

    def test_a_token_without_text_is_never_accepted(self, matcher: Matcher) -> None:
        """Nor is an id beyond the vocabulary."""
        silent = [token_id for token_id, added in enumerate(TOKEN_BYTES) if not added]
        for token_id in (*silent, -1, len(TOKEN_BYTES), 2**31 - 1):
            assert not matcher.accept(token_id), token_id

    # Looking ahead

    def test_tokens_that_are_taken_back_leave_no_trace(self, matcher: Matcher) -> None:
        """For any number of tokens."""
        chance = random.Random(7)
        for _ in range(12):
            before = (allowed_tokens(matcher), matcher.may_end, list(matcher.forced()))
            num = 0
            while num < 5 and (allowed := allowed_tokens(matcher)):
                assert matcher.accept(chance.choice(allowed))
                num += 1
            matcher.roll_back(num)
            assert (allowed_tokens(matcher), matcher.may_end, list(matcher.forced())) == before
            if not before[0]:
                break
            matcher.accept(chance.choice(before[0]))

    def test_taking_nothing_back_changes_nothing(self, matcher: Matcher) -> None:
        """A rollback of zero tokens, as after drafts that were all accepted, changes nothing."""
        chance = random.Random(8)
        for _ in range(4):
            before = allowed_tokens(matcher), matcher.may_end
            matcher.roll_back(0)
            assert (allowed_tokens(matcher), matcher.may_end) == before
            if not before[0]:
                break
            assert matcher.accept(chance.choice(before[0]))

    def test_an_answer_may_be_taken_back_as_a_whole(self, matcher: Matcher) -> None:
        """In one rollback, or token by token."""
        chance, states = random.Random(9), [(allowed_tokens(matcher), matcher.may_end)]
        while states[-1][0] and len(states) < 25:
            assert matcher.accept(chance.choice(states[-1][0]))
            states.append((allowed_tokens(matcher), matcher.may_end))
        num_accepted = len(states) - 1
        for num in itertools.cycle((1, 3, 2)):
            num_back = min(num, num_accepted)
            matcher.roll_back(num_back)
            num_accepted -= num_back
            assert (allowed_tokens(matcher), matcher.may_end) == states[num_accepted]
            if not num_accepted:
                break

    def test_a_long_answer_may_be_taken_back(self) -> None:
        """At any length."""
        self._taken(OneOf)
        matcher = self._compiler().compile(OneOf(("b" * 80, "a")))()
        before = allowed_tokens(matcher), matcher.may_end
        assert all(matcher.accept(1 + ord("b")) for _ in range(80))
        assert matcher.may_end
        matcher.roll_back(80)
        assert (allowed_tokens(matcher), matcher.may_end) == before

    def test_reading_a_mask_changes_nothing(self, matcher: Matcher) -> None:
        """In any order, any number of times."""
        chance = random.Random(10)
        for _ in range(10):
            allowed, may_end, forced = (
                allowed_tokens(matcher),
                matcher.may_end,
                list(matcher.forced()),
            )
            for _ in range(2):
                assert list(matcher.forced()) == forced
                assert matcher.may_end == may_end
                assert allowed_tokens(matcher) == allowed
            if not allowed:
                break
            assert matcher.accept(chance.choice(allowed))

    def test_a_token_that_is_refused_changes_nothing(self, matcher: Matcher) -> None:
        """It may have been a draft."""
        before, num_refused = (allowed_tokens(matcher), matcher.may_end), 0
        for token_id in range(len(TOKEN_BYTES)):
            if matcher.accept(token_id):
                matcher.roll_back(1)
            else:
                num_refused += 1
        assert num_refused
        assert (allowed_tokens(matcher), matcher.may_end) == before

    def test_what_is_forced_may_follow(self, matcher: Matcher) -> None:
        """Forced tokens are allowed, and are not accepted until they are passed."""
        chance = random.Random(2)
        for _ in range(20):
            forced, allowed = list(matcher.forced()), allowed_tokens(matcher)
            assert all(isinstance(token_id, int) for token_id in forced)
            for token_id in forced:
                assert matcher.accept(token_id)
            matcher.roll_back(len(forced))
            assert allowed_tokens(matcher) == allowed
            if not allowed:
                break
            matcher.accept(chance.choice(allowed))

    def test_only_what_all_texts_have_in_common_is_forced(self) -> None:
        """Nothing is forced where the text may end."""
        self._any_choice_is_taken()
        compiled = self._compiler().compile(COLOURS)
        texts = [text.encode() for text in COLOURS.texts]
        for text in texts:
            matcher = compiled()
            for place in range(len(text) + 1):
                rests = [t[place:] for t in texts if t[:place] == text[:place]]
                said = b"".join(TOKEN_BYTES[token_id] for token_id in matcher.forced())
                assert all(rest.startswith(said) for rest in rests), (text[:place], said)
                assert place == len(text) or matcher.accept(1 + text[place])

    def test_a_tokenizer_may_put_a_space_before_a_text(self) -> None:
        """A space before the first word is not forced."""
        self._any_choice_is_taken()
        vocabulary = Vocabulary(TOKEN_BYTES, lambda text: byte_tokens(f" {text}"))
        matcher = self.make(vocabulary).compile(OneOf(("lighthouse",)))()
        said = b"".join(TOKEN_BYTES[token_id] for token_id in matcher.forced())
        assert b"lighthouse".startswith(said)

    def test_a_matcher_is_reset_to_the_beginning(self, matcher: Matcher) -> None:
        """A matcher with ``reset`` starts again, whatever it accepted."""
        if not isinstance(matcher, Resettable):
            pytest.skip("its matchers cannot be reset")
        chance = random.Random(11)
        first = allowed_tokens(matcher), matcher.may_end, list(matcher.forced())
        for num_tokens in (0, 1, 9):
            for _ in range(num_tokens):
                if allowed := allowed_tokens(matcher):
                    assert matcher.accept(chance.choice(allowed))
            matcher.reset()
            assert (allowed_tokens(matcher), matcher.may_end, list(matcher.forced())) == first

    # Beside each other

    def test_answers_grow_beside_each_other(self) -> None:
        """Each answer has its own matcher, and threads make them concurrently."""
        constraint = self._example(self._forms()[0])
        make = self._compiler().compile(constraint)
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda _: make(), range(3)))
        chances = [random.Random(seed) for seed in range(3)]
        grown: list[list[int]] = [[], [], []]
        for _ in range(30):
            for matcher, chance, tokens in zip(together, chances, grown, strict=True):
                if allowed := allowed_tokens(matcher):
                    tokens.append(chance.choice(allowed))
                    assert matcher.accept(tokens[-1])
        for seed, tokens in enumerate(grown):
            alone, chance = make(), random.Random(seed)
            for token_id in tokens:
                assert chance.choice(allowed_tokens(alone)) == token_id
                assert alone.accept(token_id)

    def test_constraints_are_compiled_beside_each_other(self) -> None:
        """Several threads compile at the same time."""
        compiler = self._compiler()
        constraint = self._example(self._forms()[0])
        expected = allowed_tokens(compiler.compile(constraint)())
        with ThreadPoolExecutor(4) as pool:
            found = list(
                pool.map(lambda _: allowed_tokens(compiler.compile(constraint)()), range(8))
            )
        assert found == [expected] * 8

    def test_constraints_do_not_mix(self) -> None:
        """Neither concurrently compiled constraints nor successive ones."""
        self._any_choice_is_taken()
        compiler, letters = self._compiler(), "abcdefgh"
        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(lambda letter: compiler.compile(OneOf((letter * 2,))), letters))
        for letter, make in zip(letters, made, strict=True):
            assert allowed_tokens(make())
            assert all(TOKEN_BYTES[i] in (letter * 2).encode() for i in allowed_tokens(make())), (
                letter
            )

    # Refusals

    @pytest.mark.parametrize("constraint", SENSELESS, ids=lambda c: type(c).__name__)
    def test_an_invalid_constraint_is_refused_when_it_is_compiled(
        self, constraint: Constraint
    ) -> None:
        """The error is a RequestError, and it comes before the answer starts."""
        with pytest.raises(ConstraintError):
            self._compiler().compile(constraint)

    @pytest.mark.parametrize("form", TRIED, ids=lambda form: form.__name__)
    def test_an_unsupported_form_is_refused(self, form: type) -> None:
        """It is never ignored."""
        if form in self._forms():
            self._compiler().compile(self._example(form))()
            return
        with pytest.raises(ConstraintError):
            self._compiler().compile(TRIED[form])

    def _check_choice(self, choice: OneOf) -> None:
        """Fail unless a choice allows its texts, byte by byte."""
        compiled = self._compiler().compile(choice)
        texts = [text.encode() for text in choice.texts]
        for text in texts:
            matcher = compiled()
            for place, byte in enumerate(text):
                begun = [t[place:] for t in texts if t[:place] == text[:place]]
                expected = {
                    token_id
                    for token_id, added in enumerate(TOKEN_BYTES)
                    if added and any(rest.startswith(added) for rest in begun)
                }
                found = set(allowed_tokens(matcher))
                if len(begun) > 1:
                    assert found == expected, text[:place]
                else:  # its usual tokens will do
                    assert found <= expected, text[:place]
                    assert found, text[:place]
                assert matcher.may_end == (b"" in begun), text[:place]
                assert matcher.accept(1 + byte)
            assert matcher.may_end
            longer = {t[len(text)] for t in texts if t.startswith(text) and t != text}
            for byte in range(256):
                is_accepted = matcher.accept(1 + byte)
                assert is_accepted == (byte in longer), "the text is whole"
                if is_accepted:
                    matcher.roll_back(1)


def _said(matcher: Matcher, chance: random.Random, num_tokens: int) -> bytes:
    """Return a random allowed text; every choice ends it sooner or later."""
    said = b""
    for _ in range(num_tokens):
        allowed = allowed_tokens(matcher)
        if matcher.may_end and (not allowed or chance.random() < 0.5):
            return said
        token_id = chance.choice(allowed)
        assert matcher.accept(token_id)
        said += TOKEN_BYTES[token_id]
    pytest.fail("it did not end")
