"""Tool calls, as the official client sees them: whole, streamed and sent back."""

import json

import openai
import pytest
from running_server import chat, mock_pipeline, recorded_requests, running, scripted

from spelling import SpellingCompiler
from vlmkit.types.constraint import OneOf

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


def names_and_arguments(calls):
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


EXPECTED = [("weather", {"city": "Köln"}), ("weather", {})]


def test_tool_calls_follow_reasoning_and_text(server):
    answer = ask(server, scripted(text="I look.", reasoning="hm", calls=CALLS))
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.reasoning_content, choice.message.content) == ("hm", "I look.")
    assert names_and_arguments(choice.message.tool_calls) == EXPECTED
    assert len({call.id for call in choice.message.tool_calls}) == 2


def test_an_answer_with_only_tool_calls_has_no_content(server):
    (choice,) = ask(server, scripted(calls=CALLS[:1])).choices
    assert choice.message.content is None
    assert names_and_arguments(choice.message.tool_calls) == EXPECTED[:1]


@pytest.mark.parametrize("options", [{}, {"logprobs": True}])
def test_a_stream_has_the_same_calls_in_pieces(server, options):
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
    assert names_and_arguments(choice.message.tool_calls) == EXPECTED


def test_tool_call_marks_are_text_in_a_request_without_tools(server):
    (choice,) = ask(server, scripted(calls=CALLS[:1]), tools=openai.omit).choices
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert json.loads(choice.message.content) == CALLS[0]


def test_tool_choice_none_bans_the_tool_call_token(server):
    answer = ask(server, scripted(text="so", calls=CALLS[:1]), tool_choice="none")
    (choice,) = answer.choices
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


def test_calls_and_results_can_be_sent_back_unchanged(server):
    client = server.client()
    question = {"role": "user", "content": scripted(calls=CALLS)}
    message = ask(server, question["content"]).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "fine"} for call in message.tool_calls
    ]
    messages = [question, message, *results, {"role": "user", "content": "and?"}]
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
        ({"tools": [TOOL | {"type": "functoin"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "function"}]}, "tools[1]"),
    ],
)
def test_an_invalid_tool_field_is_refused_by_name(server, options, param):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(server, "hello", **options)
    assert refused.value.param == param


@pytest.mark.parametrize("max_tokens", range(1, 14))
def test_the_mark_of_a_call_cut_off_by_max_tokens_is_not_in_the_answer(server, max_tokens):
    for stream in (False, True):
        sent = chat(scripted(calls=CALLS[:1]), tools=[TOOL], max_tokens=max_tokens, stream=stream)
        answer = server.post(sent)
        assert '"finish_reason":"length"' in answer.text
        assert "<|call|>" not in answer.text
    assert "<|call|>" in server.post(chat(scripted(text="<|call|>"), max_tokens=90)).text


OTHERS = [
    {"type": "web_search", "search_context_size": "low"},
    {"type": "custom", "custom": {"name": "x"}},
    {"type": "a tool\r\nx-of: tomorrow"},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_tools_of_unsupported_types_are_ignored_and_reported(server, monkeypatch, choice, stream):
    with recorded_requests(server, monkeypatch) as requests:
        sent = chat(tools=[OTHERS[0], TOOL, *OTHERS[1:]], tool_choice=choice, stream=stream)
        answer = server.post(sent)
        alone = server.post(chat(tools=OTHERS, tool_choice=choice, stream=stream))
    for each in (answer, alone):
        assert each.headers["x-vlmkit-ignored"] == "tools.custom, tools.other, tools.web_search"
    assert [tool["function"]["name"] for tool in requests[0].tools] == ["weather"]
    assert requests[1].tools is None
    assert "x-vlmkit-unconstrained" not in alone.headers


def test_tools_of_unsupported_types_are_refused_if_a_call_is_required(server):
    error = server.post(chat(tools=[TOOL, OTHERS[0]], tool_choice="required")).json()["error"]
    assert error["message"].endswith("where a call is required; supported are function")
    assert (error["param"], error["code"]) == ("tools[1].type", "unsupported_value")
    for path in ("/tokenize", "/v1/chat/completions/render"):
        sent = chat(tools=[TOOL | {"type": "functoin"}])
        assert server.post(sent, path).json()["error"]["param"] == "tools[0].type"


def test_the_strict_header_refuses_unsupported_tools(server):
    answer = server.post(chat(tools=[TOOL, OTHERS[0]]), headers={"x-vlmkit-strict": "1"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools.web_search")


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
def test_unconstrained_tool_calls_are_reported_without_a_compiler(server, path, fields, is_told):
    before = server.get("/readyz").json()["num_unconstrained"]
    answer = server.post(({"model": "mock"} if "input" in fields else chat()) | fields, path)
    assert answer.status_code == 200
    assert answer.headers.get("x-vlmkit-unconstrained") == ("tools" if is_told else None)
    assert server.get("/readyz").json()["num_unconstrained"] - before == is_told


def test_constrained_tool_calls_are_not_reported_as_unconstrained():
    class FixedText(SpellingCompiler):
        """Compiles each constraint to one text."""

        def compile(self, constraint):
            return super().compile(OneOf(("so",)))

    with running({"mock": mock_pipeline(constraint=FixedText)}) as server:
        answer = server.post(chat(tools=[TOOL]))
        assert answer.json()["choices"][0]["message"]["content"] == "so"
        assert "x-vlmkit-unconstrained" not in answer.headers
        assert server.get("/readyz").json()["num_unconstrained"] == 0


def test_tool_definitions_are_in_the_prompt(server):
    without = ask(server, "hello", tools=openai.omit).usage.prompt_tokens
    assert ask(server, "hello").usage.prompt_tokens > without + len("How the weather is.")
