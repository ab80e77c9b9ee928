"""Answer text: shown text is final, and a stop string is shown only on request."""

from hypothesis import given, strategies as st

from vlmkit.running.engine_loop.answer_text import AnswerText
from vlmkit.types.delta import TextDelta, text_of


class CharacterReader:
    """A reader whose tokens are code points."""

    num_reasoning_tokens = 0

    def push(self, token_id):
        return (TextDelta(chr(token_id)),)

    def finish(self):
        return ()


def feed(text, stop=(), min_tokens=0, **how):
    """Feed a text letter by letter; return the shown pieces."""
    answer, pieces = AnswerText(CharacterReader(), tuple(stop), min_tokens, **how), []
    for letter in text:
        pieces.append(text_of(answer.push(ord(letter))))
        if answer.stop_string is not None:
            break
    pieces.append(text_of(answer.finish()))
    return pieces


def test_text_without_stop_strings_is_shown_immediately():
    assert feed("abc") == ["a", "b", "c", ""]


def test_a_stop_string_ends_the_answer_and_is_not_included():
    assert "".join(feed("hello END more", ["END"])) == "hello "


def test_a_stop_string_is_included_on_request():
    assert "".join(feed("hello END more", ["END", "D"], shows_stop=True)) == "hello END"


def test_text_that_may_become_a_stop_string_is_held_back():
    assert feed("xENx", ["END"]) == ["x", "", "", "ENx", ""]


def test_held_text_is_released_when_the_answer_ends():
    assert feed("xEN", ["END"]) == ["x", "", "", "EN"]


def test_a_stop_string_is_ignored_before_the_minimum():
    assert "".join(feed("ENDxENDy", ["END"], min_tokens=5)) == "ENDx"


@given(
    text=st.text("ab", max_size=30),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_the_stop_string_that_completes_first_ends_the_answer(text, stop):
    shown = "".join(feed(text, stop))
    ends = [text.index(s) + len(s) for s in stop if s in text]
    if not ends:
        assert shown == text
    else:
        complete = text[: min(ends)]
        assert shown == complete[: min(complete.find(s) for s in stop if s in complete)]
