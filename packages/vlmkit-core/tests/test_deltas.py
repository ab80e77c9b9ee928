"""Deltas of a reader reach the Python API as text, reasoning and tool calls."""

import json
import pickle
from itertools import permutations

import pytest

from vlmkit.errors import RequestError
from vlmkit.model import Model
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.types.delta import (
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    reasoning_of,
    text_of,
    tool_calls_of,
)
from vlmkit.types.message import Message, ReasoningPart, TextPart
from vlmkit.types.tool_call import ToolCallPart
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.tokenizer import MockTokenizer, MockTokenStream

CALLS = [ToolCallPart("1", "f", '{"a": 1}'), ToolCallPart("2", "g", "")]
DELTAS = [
    ReasoningDelta("I "),
    TextDelta("It"),
    ToolCallDelta(0, "1", "f"),
    ToolCallDelta(0, arguments='{"a"'),
    ReasoningDelta("think"),
    ToolCallDelta(1, "2", "g"),
    ToolCallDelta(0, arguments=": 1}"),
    TextDelta(" is"),
]


class CallingTokenizer(MockTokenizer):
    """Its readers turn each letter into a call of the tool with that name."""

    def reader(self, prompt, *, shows_special=False):
        return ToolCallParser(MockTokenStream())


class ToolCallParser:
    num_reasoning_tokens = 0

    def __init__(self, tokens):
        self._tokens, self._num_calls = tokens, 0

    def push(self, token_id):
        self._num_calls += 1
        name = self._tokens.push(token_id)
        return (ToolCallDelta(self._num_calls, f"call_{self._num_calls}", name, "{}"),)

    def finish(self):
        return (TextDelta("done"),)


def test_deltas_of_one_kind_are_joined_in_their_order():
    assert text_of(DELTAS) == "It is"
    assert reasoning_of(DELTAS) == "I think"
    assert tool_calls_of(DELTAS) == CALLS


@pytest.mark.parametrize("kinds", list(permutations([TextDelta, ReasoningDelta, ToolCallDelta])))
def test_the_order_between_kinds_of_deltas_does_not_matter(kinds):
    moved = sorted(DELTAS, key=lambda delta: kinds.index(type(delta)))
    assert (text_of(moved), reasoning_of(moved)) == ("It is", "I think")
    assert tool_calls_of(moved) == CALLS


def test_deltas_of_two_kinds_are_never_equal():
    assert TextDelta("a") != ReasoningDelta("a")
    assert pickle.loads(pickle.dumps(DELTAS)) == DELTAS


@pytest.mark.parametrize("stop", [(), ("never said",)])
def test_tool_calls_of_a_reader_are_those_of_the_choice(stop):
    with Model(Pipeline(tokenizer=CallingTokenizer(), engine=MockEngine())) as model:
        (choice,) = model.generate(json.dumps({"mock": {"text": "fg"}}), stop=stop).choices
    assert choice.tool_calls == [ToolCallPart("call_1", "f"), ToolCallPart("call_2", "g")]
    assert (choice.text, choice.reasoning, len(choice.samples)) == ("done", "", 3)


def test_reasoning_and_calls_can_be_sent_back_as_a_message():
    question = Message.of("user", "How is the weather?")
    parts = (ReasoningPart("hm"), TextPart("I look."), *CALLS)
    result = Message("tool", (TextPart("fine"),), "1")
    with Model(Pipeline(tokenizer=MockTokenizer(), engine=MockEngine())) as model:
        done = model.generate([question, Message("assistant", parts), result])
    assert done.text == "fine", "the mock says what was said last"


@pytest.mark.parametrize(
    ("role", "part", "call_id"),
    [
        ("user", ReasoningPart("hm"), None),
        ("tool", CALLS[0], "1"),
        ("system", CALLS[0], None),
        ("assistant", TextPart("hi"), "1"),
        ("user", TextPart("hi"), "1"),
    ],
)
def test_parts_of_another_role_are_refused(role, part, call_id):
    with pytest.raises(RequestError, match="belong"):
        Message(role, (part,), call_id)
