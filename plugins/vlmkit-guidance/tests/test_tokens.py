"""Forced texts get the tokens of the model's tokenizer, if these decode to the text."""

import pytest

from vlmkit.interfaces.constraint import Vocabulary
from vlmkit_guidance.tokens import Tokens

WORDS = [b"", *(bytes([i]) for i in range(256)), b"na", b"name", b" name", b"me"]
NA, NAME, SPACED, ME = range(257, 261)


def fails(text):
    raise RuntimeError("no such text")


@pytest.mark.parametrize(
    ("encode", "expected"),
    [
        (lambda text: [NA, ME], [NA, ME]),
        (lambda text: [SPACED], [NAME]),
        (lambda text: [9999], [NAME]),
        (lambda text: [0, NAME, 0], [0, NAME, 0]),
        (lambda text: [len(WORDS)], [NAME]),
        (fails, [NAME]),
    ],
)
def test_tokens_of_a_text_decode_to_it(encode, expected):
    tokens = Tokens(Vocabulary(WORDS, encode))
    assert tokens("name") == tokens(b"name") == expected


def test_an_incomplete_character_has_tokens():
    tokens = Tokens(Vocabulary(WORDS, lambda text: [NAME]))
    assert tokens(b"name\xc3") == [NAME, 1 + 0xC3]


def test_bytes_without_a_token_are_left_out():
    assert Tokens(Vocabulary([b"", b"a"], lambda text: []))("aab") == [1, 1]
