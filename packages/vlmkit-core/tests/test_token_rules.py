"""Token rules: allowed tokens and bad words, with or without a constraint, drafts or a sampler."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mock_model import answers, hesitant, script
from spelling import SpellingCompiler
from vlmkit.errors import ConstraintError, RequestError
from vlmkit.interfaces.sampler import FOLLOWED
from vlmkit.running.constraints.token_rules import (
    AllowedTokens,
    BadWords,
    RuledGrammarState,
    spellings,
)
from vlmkit.running.sampling.token_sets import holds
from vlmkit.types.constraint import OneOf
from vlmkit.types.message import Message
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_mock.engine import MockEngine
from vlmkit_testing import new_sequence

VOCAB = 40


def allowed(mask):
    return {token_id for token_id in range(VOCAB) if holds(mask, token_id)}


def masks(rules, sequence, drafts=()):
    state = RuledGrammarState(rules, VOCAB)
    made = state.allocate_bitmask(1 + len(drafts))
    state.fill(sequence, drafts, made)
    return [allowed(mask) for mask in made]


def forbidden_by_definition(words, output):
    """Return the tokens that vLLM's bad_words forbids: compare every word with the answer's end."""
    return {
        word[-1]
        for word in words
        if len(word) <= len(output) + 1 and output[len(output) - len(word) + 1 :] == word[:-1]
    }


TOKENS = st.integers(0, 3)


@settings(max_examples=200)
@given(
    words=st.lists(st.lists(TOKENS, min_size=1, max_size=4), max_size=5),
    prompt=st.lists(TOKENS, min_size=1, max_size=4),
    output=st.lists(TOKENS, max_size=6),
    drafts=st.lists(TOKENS, max_size=4),
)
def test_bad_words_are_compared_with_the_end_of_the_answer(words, prompt, output, drafts):
    sequence = new_sequence(prompt, output_ids=output, max_tokens=99)
    found = masks([BadWords(words)], sequence, drafts)
    for index, mask in enumerate(found):
        expected = set(range(VOCAB)) - forbidden_by_definition(words, output + drafts[:index])
        assert mask == expected
        if index < len(drafts) and drafts[index] not in expected:
            assert not any(found[index + 1 :])
            break


def test_rules_combine_with_bans_and_min_tokens():
    params = SamplingParams(min_tokens=2, suppress_tokens=(7,))
    sequence = new_sequence((1,), params=params, eos_ids=frozenset({2}), banned_ids=(5, 99))
    rules = [AllowedTokens((2, 3, 4, 5, 6, 7), VOCAB), BadWords([(4,), (3, 6)])]
    assert masks(rules, sequence) == [{3, 6}]
    assert masks(rules, sequence, [3, 3, 6]) == [{3, 6}, {3}, {2, 3}, set()]
    state = RuledGrammarState(rules, VOCAB)
    found = [state.num_possible(sequence, each) for each in ([3, 3, 2], [6, 6, 6, 5], [2])]
    assert found == [3, 3, 0]
    with pytest.raises(ConstraintError, match="no token is left"):
        masks([AllowedTokens((4,), VOCAB), BadWords([(4,)])], sequence)


def test_a_bad_word_is_tokenized_alone_and_after_a_space():
    made = {"New York": [1, 2], " New York": [3, 2], "a": [4], " a": [9, 4], "b": [5], " b": [5]}
    assert spellings(["New York", " a", "b"], made.__getitem__) == [[1, 2], [3, 2], [4], [5]]
    with pytest.raises(RequestError, match=r"bad_words\[0\] has 0 tokens, not 1 to 64"):
        spellings([" "], lambda _: [])
    with pytest.raises(RequestError, match=r"bad_words\[1\] has 65 tokens"):
        spellings(["a", "b"], lambda text: [1] * (65 if "b" in text else 1))


def text_of(model, text, **params):
    return model.generate(script(text=text), **params).text


def test_bad_words_remove_only_the_bad_word():
    with hesitant(engine=MockEngine) as model:
        assert text_of(model, "a red circle") == "a red circle"
        assert "red" not in text_of(model, "a red circle", bad_words=("red",))
        assert text_of(model, "a red circle", bad_words=("blue", "redder")) == "a red circle"
        assert "c" not in text_of(model, "a red circle", bad_words=("c",))


def test_an_answer_has_only_allowed_tokens():
    letters = {ord(letter) for letter in "abc"}
    with hesitant(engine=MockEngine) as model:
        for kind in ({}, {"temperature": 1.0, "seed": 3}):
            answer = model.generate("x", allowed_token_ids=tuple(letters), max_tokens=20, **kind)
            assert set(answer.text) <= set("abc")
            assert len(answer.text) == 20


@pytest.mark.parametrize("field", ["allowed_token_ids", "bad_words"])
def test_rules_hold_for_a_sampler_that_ignores_them(field):
    class GreedySampler:
        ignores = FOLLOWED

        def prepare(self, rows):
            return lambda logits: np.asarray(logits).argmax(-1)

    value = {"allowed_token_ids": (97, 98), "bad_words": ("e",)}[field]
    with hesitant(engine=MockEngine, sampler=GreedySampler()) as model:
        answer = model.generate("seen and read", max_tokens=9, **{field: value})
        if field == "bad_words":
            assert "e" not in answer.text
        else:
            assert set(answer.text) <= set("ab")


def test_rules_that_allow_no_token_are_refused_at_submission():
    with hesitant(engine=MockEngine) as model:
        ends = tuple(model.facts.eos_ids)
        with pytest.raises(RequestError, match="none of allowed_token_ids may be chosen") as caught:
            model.generate("x", allowed_token_ids=ends, min_tokens=1)
        assert caught.value.param == "allowed_token_ids"
        assert model.generate("x", allowed_token_ids=ends).text == ""
        with pytest.raises(RequestError, match="token id 99999 is not in the vocabulary"):
            model.generate("x", allowed_token_ids=(99999,))


class ScriptedProposer:
    """Proposes the answer without rules, which the rules partly forbid."""

    def propose(self, sequence, num_tokens):
        scripted = b"a red circle"
        return list(scripted[len(sequence.output_ids) :][:num_tokens])

    def note(self, sequence, num_drafted, num_accepted):
        pass

    def forget(self, sequence):
        pass


@pytest.mark.parametrize(
    "params",
    [
        {"bad_words": ("red", "cle")},
        {"allowed_token_ids": tuple(b"a redci")},
        {"bad_words": ("re",), "temperature": 1.0, "seed": 5},
        {"repeat_last_n": 4, "repetition_penalty": 1.8, "temperature": 0.7, "seed": 2},
        {"typical_p": 0.6, "temperature": 1.5, "seed": 2},
        {"xtc_probability": 0.6, "temperature": 0.8, "seed": 4},
        {"dry_multiplier": 3.0, "dry_allowed_length": 1, "temperature": 0.5, "seed": 4},
    ],
    ids=str,
)
def test_drafts_do_not_change_answers(params):
    request = Request(
        messages=[Message.of("user", script(text="a red circle"))],
        params=SamplingParams(max_tokens=14, **params),
    )
    found = []
    for proposer in (None, ScriptedProposer()):
        with hesitant(proposer=proposer) as made:
            found.append(answers(made, [request]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("word", "expected"),
    [("a r", "a blue circle"), ("a", "two"), ("two", "a red circle"), ("red", None)],
)
def test_a_constraint_and_a_token_rule_hold_together(word, expected):
    """The rule forbids the last token of a word, so the constraint may have no other token."""
    request = Request(
        messages=[Message.of("user", script(text="a red circle and"))],
        params=SamplingParams(bad_words=(word,), max_tokens=20),
        constraint=OneOf(("a red circle", "a blue circle", "two")),
    )
    with hesitant(engine=MockEngine, constraint=SpellingCompiler) as made:
        if expected is None:
            with pytest.raises(ConstraintError, match="no token is left"):
                answers(made, [request])
        else:
            assert answers(made, [request])[0][0][0] == expected
