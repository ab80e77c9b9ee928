"""Reasoning is separated from text, however an answer is split into tokens."""

from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

from vlmkit.interfaces.chat_format import Mark
from vlmkit.kit.reasoning_parser import ReasoningParser
from vlmkit.running.engine_loop.answer_text import AnswerText
from vlmkit.types.delta import reasoning_of, text_of

START, END = 900_001, 900_002
AS_TOKENS = Mark("<think>", START), Mark("</think>", END)
SPELLED = Mark("<think>"), Mark("</think>")
PIECES = ("<think>", "</think>", "</th", "<", "think>", " ", "\n", "a", "é b")
pieces = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


class TextDetokenizer:
    """A detokenizer whose tokens are texts; delimiter tokens have no text."""

    def push(self, token):
        return token if isinstance(token, str) else ""

    def flush(self):
        return ""


def read(tokens, marks=SPELLED, *, is_open=False):
    """Return reasoning, text, and the number of reasoning tokens."""
    reader = ReasoningParser(TextDetokenizer, *marks, is_open=is_open)
    deltas = [delta for token in tokens for delta in reader.push(token)] + [*reader.finish()]
    return reasoning_of(deltas), text_of(deltas), reader.num_reasoning_tokens


@pytest.mark.parametrize(
    ("tokens", "is_open", "expected"),
    [
        ([START, "\n", "why", "\n", END, "\n\n", "so"], False, ("why", "so", 5)),
        (["\n", START, "why", END, "so"], False, ("why", "so", 4)),
        (["why", END, "so"], True, ("why", "so", 2)),
        ([START, "why", END, "so"], True, ("why", "so", 3)),
        ([START, "\n\n", END, "\n\n", "so"], False, ("", "so", 3)),
        ([END, "so"], True, ("", "so", 1)),
        ([START, "why", "\n"], False, ("why", "", 3)),
        (["so", START, "why", END], False, ("", "sowhy", 0)),
        ([START, "a", END, "b", START, "c", END, "d"], False, ("a", "bcd", 3)),
        ([" so", " it is"], False, ("", " so it is", 0)),
        (["\n"], False, ("", "\n", 0)),
        (["\n"], True, ("", "", 1)),
        ([], False, ("", "", 0)),
    ],
)
def test_delimiter_tokens_separate_reasoning_from_text(tokens, is_open, expected):
    assert read(tokens, AS_TOKENS, is_open=is_open) == expected


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>\nwhy\n</think>\n\nso", False, ("why", "so")),
        ("why</think>so", True, ("why", "so")),
        ("<think>why</think>so", True, ("why", "so")),
        ("<think></think>so", False, ("", "so")),
        ("<think>a < b </thin", False, ("a < b </thin", "")),
        ("<th", False, ("", "<th")),
        ("<th", True, ("<th", "")),
        ("so <think>why</think>", False, ("", "so <think>why</think>")),
        ("</think>so", False, ("", "</think>so")),
    ],
)
def test_spelled_delimiters_separate_reasoning_from_text(text, is_open, expected):
    assert read([text], is_open=is_open)[:2] == expected


def test_a_delimiter_token_is_not_matched_by_its_text():
    parsed = read([START, "it says </think>", "!", END, "so"], AS_TOKENS)
    assert parsed == ("it says </think>!", "so", 4)


@given(text=pieces, is_open=st.booleans(), data=st.data())
@example(text="<think>a</think>b", is_open=False, data=None)
def test_parsing_does_not_depend_on_how_an_answer_is_cut(text, is_open, data):
    cuts = data.draw(st.sets(st.integers(0, len(text)))) if data else range(len(text))
    tokens = [text[start:stop] for start, stop in pairwise(sorted({0, *cuts, len(text)}))]
    assert read(tokens, is_open=is_open)[:2] == read([text], is_open=is_open)[:2]


@given(text=pieces, is_open=st.booleans())
def test_only_delimiters_and_surrounding_white_space_are_removed(text, is_open):
    reasoning, text_part, _ = read([text], is_open=is_open)
    position = 0
    for letter in (reasoning + text_part).replace(" ", "").replace("\n", ""):
        position = text.index(letter, position) + 1
    if not reasoning and not is_open and not text.lstrip().startswith("<think>"):
        assert text_part == text


def test_reasoning_is_streamed_except_a_possible_end_delimiter():
    reader = ReasoningParser(TextDetokenizer, *SPELLED, is_open=True)
    parsed = [reasoning_of(reader.push(token)) for token in ("a", " ", "b", "</", "x", "</think>")]
    assert parsed == ["a", "", " b", "", "</x", ""]


def test_a_stop_string_in_reasoning_does_not_end_the_answer():
    answer = AnswerText(ReasoningParser(TextDetokenizer, *AS_TOKENS), stop=("END",))
    deltas = []
    for token in [START, "not the END", END, "said EN", "D more"]:
        assert answer.stop_string is None
        deltas += answer.push(token)
    assert answer.stop_string is not None
    assert (reasoning_of(deltas), text_of(deltas)) == ("not the END", "said ")
