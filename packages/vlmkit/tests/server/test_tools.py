"""Calls of tools, as the official client sees them: whole and streamed, and sent back."""

import json

import openai
import pytest
from running_server import chat, mock_pipeline, running, scripted
from spelling import SpellingCompiler

from vlmkit.ask.constraint import OneOf

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How the weather is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALLS = [
    {"name": "weather", "arguments": {"city": "Köln"}},
    {"name": "weather", "arguments": {}},
]


def ask(server, text, **options):
    options = {"tools": [TOOL], **options}
    return server.client().chat.completions.create(
        model="mock", messages=[{"role": "user", "content": text}], **options
    )


def told(calls):
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


EXPECTED = [("weather", {"city": "Köln"}), ("weather", {})]


def test_an_answer_calls_tools_behind_what_it_thinks_and_says(server):
    answer = ask(server, scripted(text="I look.", reasoning="hm", calls=CALLS))
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.reasoning_content, choice.message.content) == ("hm", "I look.")
    assert told(choice.message.tool_calls) == EXPECTED
    assert len({call.id for call in choice.message.tool_calls}) == 2


def test_an_answer_that_only_calls_has_no_content(server):
    (choice,) = ask(server, scripted(calls=CALLS[:1])).choices
    assert choice.message.content is None
    assert told(choice.message.tool_calls) == EXPECTED[:1]


@pytest.mark.parametrize("options", [{}, {"logprobs": True}])
def test_a_stream_tells_the_same_calls_piece_by_piece(server, options):
    client = server.client()
    with client.chat.completions.stream(
        model="mock",
        messages=[{"role": "user", "content": scripted(text="I look.", calls=CALLS)}],
        tools=[TOOL],
        **options,
    ) as stream:
        kinds = [event.type for event in stream]
        (choice,) = stream.get_final_completion().choices
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert kinds.count("tool_calls.function.arguments.delta") > 10
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    assert told(choice.message.tool_calls) == EXPECTED


def test_without_tools_marks_of_calls_are_no_calls(server):
    (choice,) = ask(server, scripted(calls=CALLS[:1]), tools=openai.omit).choices
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert json.loads(choice.message.content) == CALLS[0]


def test_tool_choice_none_bans_the_mark_of_a_call(server):
    answer = ask(server, scripted(text="so", calls=CALLS[:1]), tool_choice="none")
    (choice,) = answer.choices
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


def test_calls_and_results_are_sent_back_as_they_came(server):
    client = server.client()
    asked = {"role": "user", "content": scripted(calls=CALLS)}
    message = ask(server, asked["content"]).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "fine"} for call in message.tool_calls
    ]
    messages = [asked, message, *results, {"role": "user", "content": "and?"}]
    answer = client.chat.completions.with_raw_response.create(
        model="mock", messages=messages, tools=[TOOL]
    )
    assert answer.parse().choices[0].message.content == "and?"
    assert "x-vlmkit-ignored" not in answer.headers


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        (
            {"tools": [{"type": "function", "function": {"name": "two words"}}]},
            "tools[0].function.name",
        ),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(server, options, param):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(server, "hello", **options)
    assert refused.value.param == param


NAMED = {"type": "function", "name": "f"}
TELLING = [
    ("/v1/chat/completions", {"tools": [TOOL]}, True),
    ("/v1/chat/completions", {"tools": [TOOL], "stream": True}, True),
    ("/v1/chat/completions", {"tools": [TOOL], "tool_choice": "none"}, False),
    ("/v1/chat/completions", {}, False),
    ("/v1/messages", {"tools": [{"name": "f", "input_schema": {}}], "max_tokens": 9}, True),
    ("/v1/responses", {"tools": [NAMED], "input": "x"}, True),
    ("/v1/responses", {"tools": [NAMED], "input": "x", "stream": True}, True),
    ("/v1/responses/input_tokens", {"tools": [NAMED], "input": "x"}, False),
    ("/v1/messages/count_tokens", {"tools": [{"name": "f", "input_schema": {}}]}, False),
]


@pytest.mark.parametrize(("path", "fields", "is_told"), TELLING)
def test_it_is_told_where_nothing_keeps_calls_to_their_schemas(server, path, fields, is_told):
    before = server.get("/readyz").json()["num_unconstrained"]
    answer = server.post(({"model": "mock"} if "input" in fields else chat()) | fields, path)
    assert answer.status_code == 200
    assert answer.headers.get("x-vlmkit-unconstrained") == ("tools" if is_told else None)
    assert server.get("/readyz").json()["num_unconstrained"] - before == is_told


def test_nothing_is_told_where_a_plugin_keeps_calls_to_their_schemas():
    class Free(SpellingCompiler):
        """Keeps answers to one text, whatever is asked."""

        def compile(self, constraint):
            return super().compile(OneOf(("so",)))

    with running({"mock": mock_pipeline(constraint=Free)}) as server:
        answer = server.post(chat(tools=[TOOL]))
        assert answer.json()["choices"][0]["message"]["content"] == "so"
        assert "x-vlmkit-unconstrained" not in answer.headers
        assert server.get("/readyz").json()["num_unconstrained"] == 0


def test_definitions_of_tools_are_read_by_the_model(server):
    without = ask(server, "hello", tools=openai.omit).usage.prompt_tokens
    assert ask(server, "hello").usage.prompt_tokens > without + len("How the weather is.")
