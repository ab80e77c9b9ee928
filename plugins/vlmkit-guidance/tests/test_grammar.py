"""Lexer states: exhausting them fails only one answer, and cached grammars stay small."""

import random

import numpy as np
import pytest

from vlmkit.errors import ConstraintError
from vlmkit.interfaces.constraint import Vocabulary
from vlmkit.types.constraint import JsonSchema, Regex
from vlmkit_guidance import grammar
from vlmkit_guidance.compiler import GuidanceCompiler

BYTES = Vocabulary([bytes([i]) for i in range(256)], lambda text: [])
QUOTE = ord('"')
LONG = JsonSchema.of({"type": "string", "maxLength": 8192})
MANY_STATES = Regex(r"(\p{L}\p{N}?){1,3000}")
NUM_TOKENS = 600


def mask_of(matcher):
    """Return the mask of the tokens that may follow."""
    mask = np.zeros(8, np.int32)
    matcher.fill(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def follow(matcher, seed, num_tokens=NUM_TOKENS):
    """Generate an answer of random tokens; return it with the mask of each step."""
    chance, answer, masks = random.Random(seed), [], []
    while len(answer) < num_tokens:
        allowed = mask_of(matcher)
        masks.append(allowed.tobytes())
        longer = allowed[allowed != QUOTE] if answer else allowed
        answer.append(int(chance.choice(longer)))
        matcher.forced()
        assert matcher.accept(answer[-1])
    return answer, masks


@pytest.mark.parametrize("constraint", [LONG, MANY_STATES], ids=["maxLength", "pattern"])
def test_answers_that_exhaust_the_shared_states_continue(constraint, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(grammar, "MAX_SHARED_STATES", grammar.MAX_OWN_STATES)
        make = GuidanceCompiler(BYTES).compile(constraint)
        expected = follow(make(), 1)
    make = GuidanceCompiler(BYTES).compile(constraint)
    matchers = [make() for _ in range(3)]
    follow(matchers[0], 0)
    follow(matchers[0], 9, num_tokens=100)
    assert follow(matchers[1], 1) == expected
    assert follow(matchers[2], 1) == expected
    assert follow(make(), 1) == expected


def test_an_answer_with_its_own_lexer_rolls_back_and_resets():
    matcher = GuidanceCompiler(BYTES).compile(LONG)()
    answer, masks = follow(matcher, 2)
    matcher.roll_back(len(answer) - 1)
    assert mask_of(matcher).tobytes() == masks[1]
    matcher.reset()
    assert follow(matcher, 2) == (answer, masks)


def test_an_answer_that_needs_too_many_states_fails_alone():
    make = GuidanceCompiler(BYTES).compile(LONG)
    with pytest.raises(ConstraintError, match="too many states"):
        follow(make(), 0, num_tokens=8000)
    assert len(follow(make(), 0)[0]) == NUM_TOKENS


def test_a_slow_grammar_is_recompiled_only_before_an_answer(monkeypatch):
    monkeypatch.setattr(grammar, "MAX_RECOMPILE_S", -1.0)
    make = GuidanceCompiler(BYTES).compile(LONG)
    with pytest.raises(ConstraintError, match="too many states"):
        follow(make(), 0)
    assert len(follow(make(), 0)[0]) == NUM_TOKENS
