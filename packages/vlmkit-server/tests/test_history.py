"""Reasoning and tool calls of earlier answers are part of the prompt."""

import json

import pytest
from running_server import scripted

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather_of", "arguments": '{"city": "Köln"}'},
}
QUESTION = {"role": "user", "content": "How is the weather?"}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "fine"}


def prompt_tokens(server, *messages):
    answer = server.client().chat.completions.create(model="mock", messages=messages, max_tokens=1)
    return answer.usage.prompt_tokens


def test_an_earlier_tool_call_and_its_result_are_in_the_prompt(server):
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    without = prompt_tokens(server, QUESTION, {"role": "assistant", "content": ""}, QUESTION)
    marks = 2
    written = json.dumps({"id": "call_1", "name": "weather_of", "arguments": {"city": "Köln"}})
    assert prompt_tokens(server, QUESTION, called, QUESTION) == without + len(written) + marks
    result = len('"call_1"') + len("fine") + 2  # as the mock writes it, with the role and the end
    assert prompt_tokens(server, QUESTION, called, RESULT, QUESTION) == (
        without + len(written) + marks + result
    )


def test_earlier_reasoning_is_in_the_prompt(server):
    message = {"role": "assistant", "content": "fine"}
    thought = message | {"reasoning_content": "let me see"}
    marks = 2
    assert prompt_tokens(server, QUESTION, thought, QUESTION) == (
        prompt_tokens(server, QUESTION, message, QUESTION) + len("let me see") + marks
    )


def test_an_answer_with_reasoning_can_be_sent_back_unchanged(server):
    client = server.client()
    question = {"role": "user", "content": scripted(text="so", reasoning="why")}
    first = client.chat.completions.create(model="mock", messages=[question])
    messages = [question, first.choices[0].message, {"role": "user", "content": "and?"}]
    second = client.chat.completions.with_raw_response.create(model="mock", messages=messages)
    assert second.parse().choices[0].message.content == "and?"
    assert "x-vlmkit-ignored" not in second.headers
    without = first.usage.prompt_tokens + len("so") + 1 + len("and?") + 3
    assert second.parse().usage.prompt_tokens == without + len("why") + 2


@pytest.mark.parametrize("field", ["name", "arguments", "reasoning_content"])
def test_long_texts_count_in_every_field_of_a_message(server, field):
    long = "x" * 3_000_000
    message = {"role": "assistant", "content": "hi"}
    if field == "reasoning_content":
        message[field] = long
    else:
        function = CALL["function"] | {field: long if field == "name" else f'{{"a": "{long}"}}'}
        message["tool_calls"] = [CALL | {"function": function}]
    refused = server.post({"model": "mock", "messages": [QUESTION, message]})
    assert refused.status_code == 400
    code = refused.json()["error"]["code"]
    assert code == ("invalid_request" if field == "name" else "context_length_exceeded")


def test_tool_call_ids_count_as_text(server):
    calls = [CALL | {"id": f"{number:0512d}"} for number in range(1024)]
    messages = [{"role": "assistant", "tool_calls": calls}] * 6
    refused = server.post({"model": "mock", "messages": [QUESTION, *messages]})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "the text is over 2000000 characters" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"tool_calls": [CALL, CALL | {"function": {"name": "f", "arguments": "[secret]"}}]},
         "messages[1].tool_calls[1].function.arguments"),
        ({"tool_calls": [CALL | {"function": {"name": "f", "arguments": "9"}}]},
         "messages[1].tool_calls[0].function.arguments"),
    ],
)  # fmt: skip
def test_an_invalid_earlier_answer_is_refused_with_its_location(server, message, param):
    refused = server.post(
        {"model": "mock", "messages": [QUESTION, {"role": "assistant", **message}]}
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert "secret" not in refused.text


def test_the_index_of_a_streamed_tool_call_is_reported_as_ignored(server):
    message = {"role": "assistant", "tool_calls": [CALL | {"index": 0}]}
    answer = server.post({"model": "mock", "messages": [QUESTION, message, RESULT]})
    assert answer.status_code == 200
    assert answer.headers["x-vlmkit-ignored"] == "messages.tool_calls.index"
