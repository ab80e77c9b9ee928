"""Tools in Anthropic's API, as its official client sees them: whole, streamed and sent back."""

import asyncio
import json
from typing import get_args, get_type_hints

import anthropic
import pytest
from anthropic.types import ToolUnionParam
from anthropic.types.beta import BetaToolUnionParam
from anthropic_client import (
    PATH,
    ask,
    assistant,
    body,
    client_of,
    events,
    image,
    text,
    user,
)
from running_server import image_part, image_url, message_content, recorded_requests, scripted

from vlmkit_server.wire.tool_fields import shown_type

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOL = {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
CALLS = [{"name": "look", "arguments": {"at": "Köln"}}, {"name": "look", "arguments": {}}]
INPUTS = [call["arguments"] for call in CALLS]
CALL = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "Köln"}}


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def inputs(answer):
    return [block.input for block in answer.content if block.type == "tool_use"]


def test_tool_calls_follow_reasoning_and_text(client):
    answer = ask(client, scripted(text="I look.", reasoning="hm", calls=CALLS), tools=[TOOL],
                 max_tokens=400)  # fmt: skip
    kinds = [block.type for block in answer.content]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert inputs(answer) == INPUTS
    assert answer.stop_reason == "tool_use"
    assert len({block.id for block in answer.content[2:]}) == 2
    assert {block.name for block in answer.content[2:]} == {"look"}


@pytest.mark.parametrize("said", ["", "I look."])
def test_the_streaming_helper_builds_the_same_message_as_a_whole_answer(client, said):
    sent = body(scripted(text=said, calls=CALLS), tools=[TOOL], max_tokens=400)
    with client.messages.stream(**sent) as stream:
        received = list(stream)
        streamed = stream.get_final_message()
    whole = client.messages.create(**sent)
    assert inputs(streamed) == inputs(whole) == INPUTS
    assert [b.type for b in streamed.content] == [b.type for b in whole.content]
    assert (streamed.stop_reason, whole.stop_reason) == ("tool_use", "tool_use")
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    pieces = [event.partial_json for event in received if event.type == "input_json"]
    assert len(pieces) > 10
    assert json.loads("".join(pieces[:-2])) == INPUTS[0]


def test_a_stream_has_the_events_of_anthropics_api(server):
    sent = body(scripted(text="ab", calls=CALLS), tools=[TOOL], max_tokens=400)
    received = events(server, sent)
    starts = [(d["index"], d["content_block"]) for n, d in received if n == "content_block_start"]
    assert [(index, block["type"]) for index, block in starts] == [
        (0, "text"), (1, "tool_use"), (2, "tool_use"),
    ]  # fmt: skip
    for _, block in starts[1:]:
        assert set(block) == {"type", "id", "name", "input"}
        assert block["input"] == {}
    assert [d["index"] for n, d in received if n == "content_block_stop"] == [0, 1, 2]
    deltas = [d for n, d in received if n == "content_block_delta" and d["index"] == 1]
    assert {d["delta"]["type"] for d in deltas} == {"input_json_delta"}
    assert json.loads("".join(d["delta"]["partial_json"] for d in deltas)) == INPUTS[0]
    names = [name for name, _ in received if name != "content_block_delta"]
    assert names[-2:] == ["message_delta", "message_stop"]
    assert received[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_cut_off_by_max_tokens_is_returned_in_part(client, stream):
    sent = body(scripted(calls=CALLS[:1]), tools=[TOOL], max_tokens=40)
    if stream:
        with client.messages.stream(**sent) as made:
            answer = made.get_final_message()
    else:
        answer = client.messages.create(**sent)
    assert answer.stop_reason == "max_tokens"
    (block,) = answer.content
    assert (block.type, block.name) == ("tool_use", "look")
    if not stream:  # arguments that are no JSON object are text within one
        assert block.input == {"INVALID_JSON": '{"at": "K'}


def test_a_request_without_tools_has_no_tool_calls(client):
    answer = ask(client, scripted(calls=CALLS[:1]))
    assert answer.stop_reason == "end_turn"
    assert json.loads(answer.content[0].text) == CALLS[0]


def test_tool_choice_none_prevents_tool_calls(client):
    answer = ask(client, scripted(text="so", calls=CALLS[:1]), tools=[TOOL],
                 tool_choice={"type": "none"})  # fmt: skip
    assert {block.type for block in answer.content} == {"text"}
    assert answer.stop_reason == "end_turn"


def test_calls_and_results_with_images_can_be_sent_back_unchanged(server, client):
    asked_first = user(scripted(text="I look.", reasoning="hm", calls=CALLS))
    first = client.messages.create(**body(messages=[asked_first], tools=[TOOL], max_tokens=400))
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [image(), text("there")]}
        for block in first.content
        if block.type == "tool_use"
    ]
    messages = [asked_first, {"role": "assistant", "content": first.content}]
    messages.append(user([*results, text("What is it?")]))
    sent = body(messages=messages, tools=[TOOL])
    response = client.messages.with_raw_response.create(**sent)
    assert "x-vlmkit-ignored" not in response.headers
    assert "8x6" in response.parse().content[0].text
    counted = client.messages.count_tokens(model="mock", messages=messages, tools=[TOOL])
    usage = response.parse().usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_the_clients_tool_runner_runs_until_there_are_no_more_calls(server):
    places = []

    @anthropic.beta_tool
    def look(at: str = "") -> str:
        """Looks."""
        places.append(at)
        return "a tree"

    runner = client_of(server).beta.messages.tool_runner(
        model="mock", max_tokens=400, messages=[user(scripted(calls=CALLS))], tools=[look]
    )
    answers = list(runner)
    assert [answer.stop_reason for answer in answers] == ["tool_use", "end_turn"]
    assert answers[-1].content[0].text == "a tree"
    assert places == ["Köln", ""]


def test_tool_definitions_are_in_the_prompt(client):
    def num_tokens(**fields):
        return client.messages.count_tokens(
            model="mock", messages=[user("x")], **fields
        ).input_tokens

    plain = num_tokens()
    assert num_tokens(tools=[TOOL]) > plain + len("Looks.")
    with_examples = TOOL | {"input_examples": [{"at": "Paris"}]}
    assert num_tokens(tools=[with_examples]) >= num_tokens(tools=[TOOL]) + len('[{"at": "Paris"}]')
    chosen = {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    assert num_tokens(tools=[TOOL], tool_choice=chosen) == num_tokens(tools=[TOOL])


FUNCTION = {"type": "function", "function": {"name": "look", "description": "Looks.",
                                             "parameters": SCHEMA}}  # fmt: skip
SAME = [
    ({"tools": [TOOL]}, {"tools": [FUNCTION]}),
    ({"tools": []}, {}),
    ({"tools": [TOOL | {"type": "custom", "strict": True}]}, {"tools": [FUNCTION]}),
    (
        {"tools": [TOOL], "tool_choice": {"type": "auto"}},
        {"tools": [FUNCTION], "tool_choice": "auto"},
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tools": [FUNCTION], "parallel_tool_calls": False},
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
        {"tools": [FUNCTION], "tool_choice": "required"},
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "none"}},
        {"tools": [FUNCTION], "tool_choice": "none"},
    ),
    (
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "look"}},
        {
            "tools": [FUNCTION],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
        },
    ),
]


@pytest.mark.parametrize(("own", "chat"), SAME)
def test_tools_and_tool_choice_are_converted_like_those_of_the_chat_api(
    server, monkeypatch, own, chat
):
    with recorded_requests(server, monkeypatch) as requests:
        for path, fields in ((PATH, own), ("/v1/chat/completions", chat)):
            server.post(body(**fields), path)
    first, second = ((r.tools, r.tool_choice, r.parallel_tool_calls) for r in requests)
    assert first == second


def test_tool_results_with_images_are_converted_like_those_of_the_chat_api(server, monkeypatch):
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [text("see"), image()]}
    own = {"messages": [user("a"), assistant([CALL]), user([result])]}
    call = {"name": "look", "arguments": json.dumps(CALL["input"], ensure_ascii=False)}
    chat = [
        user("a"),
        {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c1", "content": [text("see"), image_part(image_url())]},
    ]
    with recorded_requests(server, monkeypatch) as requests:
        for path, messages in ((PATH, own), ("/v1/chat/completions", {"messages": chat})):
            assert server.post(body() | messages, path).status_code == 200
    first, second = ([message_content(message) for message in each.messages] for each in requests)
    assert first[2] == second[2]


SEARCH = {
    "type": "web_search_20260209",
    "name": "web_search",
    "max_uses": 3,
    "defer_loading": True,
    "allowed_callers": ["code_execution_20260120"],
}
TYPED = [SEARCH, {"type": "mcp_toolset", "mcp_server_name": "x", "configs": {}}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [None, {"type": "auto"}, {"type": "none"}])
def test_tools_of_unsupported_types_are_ignored_and_reported(server, monkeypatch, choice, stream):
    with recorded_requests(server, monkeypatch) as requests:
        for tools in ([*TYPED, TOOL], TYPED):
            answer = server.post(body(tools=tools, tool_choice=choice, stream=stream), PATH)
            assert answer.status_code == 200, answer.text
            named = "tools.mcp_toolset, tools.web_search_20260209"
            assert answer.headers["x-vlmkit-ignored"] == named
    assert [tool["function"]["name"] for tool in requests[0].tools] == ["look"]
    assert requests[1].tools is None
    counts = [
        server.post({"messages": [user("a")], "tools": tools}, f"{PATH}/count_tokens").json()
        for tools in ([TOOL], [TOOL, *TYPED])
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("union", [ToolUnionParam, BetaToolUnionParam])
def test_each_tool_type_of_anthropics_client_is_reported_by_name(union):
    kinds = {kind for each in get_args(union) for kind in get_args(get_type_hints(each)["type"])}
    known = {kind for kind in kinds if isinstance(kind, str)} - {"custom"}
    assert len(known) > 10
    assert {shown_type(kind, "custom") for kind in known} == known


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"name": "two words", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "x" * 129, "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "x"}]}, "input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [TOOL | {"type": "bash_20250124"}]}, "tools[0].type"),
        ({"tools": [TOOL, SEARCH], "tool_choice": {"type": "any"}}, "tools[1].type"),
        ({"tools": [TOOL, SEARCH], "tool_choice": {"type": "any"}}, "supported are custom"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [TOOL | {"allowed_callers": ["code_execution_20260120"]}]},
         "tools[0].allowed_callers"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice cannot be kept"),
        ({"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
         "tool_choice.disable_parallel_tool_use: "),
        ({"tools": [TOOL], "tool_choice": {"type": "any"},
          "messages": [user("a"), assistant("It is")]}, "tool_choice"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_an_invalid_field_is_refused_by_name(client, fields, named, stream):
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(client, stream=stream, **fields)
    assert refused.value.type == "invalid_request_error"
    assert named in refused.value.api_message


def test_cache_control_is_reported_as_ignored(server):
    sent = body(tools=[TOOL | {"cache_control": {"type": "ephemeral"}}])
    answer = server.post(sent, PATH)
    assert answer.headers["x-vlmkit-ignored"] == "tools.cache_control"
    assert server.get("/readyz").json()["num_ignored"]["tools.cache_control"] >= 1


def test_an_api_key_may_be_sent_in_either_header(server):
    for own in ({"auth_token": "k", "api_key": None}, {"api_key": "k"}):
        client = anthropic.Anthropic(
            base_url=server.url, max_retries=0, http_client=server.http, **own
        )
        assert ask(client, "hello").content[0].text == "hello"


def test_continuing_a_thread_is_refused_so_that_clients_send_all_messages(server, client):
    thread = {"type": "continue", "previous_message_id": "msg-1"}
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(client, extra_body={"thread": thread})
    assert refused.value.error_code == "thread_unsupported_request"


def test_the_async_client_streams_the_same_calls(server):
    async def answer():
        async with (
            anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0) as client,
            client.messages.stream(
                **body(scripted(calls=CALLS), tools=[TOOL], max_tokens=400)
            ) as stream,
        ):
            return await stream.get_final_message()

    assert inputs(asyncio.run(answer())) == INPUTS
