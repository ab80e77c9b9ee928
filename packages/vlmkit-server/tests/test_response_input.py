"""Input of the Responses API: items of a conversation, and each field of its bodies."""

import json
from typing import get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from openai.types.responses import (
    Response,
    ToolParam,
    input_token_count_params,
    response_create_params,
)
from responses_client import PATH, body, events, image, refused, text, user, whole
from running_server import image_part, image_url, message_content, recorded_requests, scripted

from vlmkit.types.tool_call import ToolCallPart
from vlmkit_server.apis.openai_responses.items import stored_input
from vlmkit_server.apis.openai_responses.wire import (
    RESPONSES,
    InputTokensRequest,
    Item,
    ResponsesRequest,
)
from vlmkit_server.wire.tool_fields import OTHER_TOOL_TYPES

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "fine"}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}
ANSWER = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}],
}
CALLED = {
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    ]
}
SIZED = {"detail": "low", "max_image_tokens": 3}


def assistant(content, **more):
    return {"role": "assistant", "content": content} | more


def tool(content):
    return {"role": "tool", "tool_call_id": "c1", "content": content}


def parts(*texts):
    return [{"type": "text", "text": said} for said in texts]


SAME = [
    ({"input": "a"}, [user("a")]),
    ({"input": [user("a")]}, [user("a")]),
    ({"input": [user([text("a"), text("b")])]}, [user(parts("a", "b"))]),
    (
        {"input": [user([image(image_url()), text("b")])]},
        [user([image_part(image_url()), *parts("b")])],
    ),
    (
        {"input": [user([image(image_url()) | SIZED])]},
        [user([{"type": "image_url", "image_url": {"url": image_url()} | SIZED}])],
    ),
    (
        {"input": "a", "instructions": "be brief"},
        [{"role": "system", "content": "be brief"}, user("a")],
    ),
    (
        {"input": [{"type": "message", "role": "developer", "content": [text("x")]}, user("a")]},
        [{"role": "developer", "content": parts("x")}, user("a")],
    ),
    ({"input": [user("a"), assistant("b"), user("c")]}, [user("a"), assistant("b"), user("c")]),
    ({"input": [user("a"), ANSWER, user("c")]}, [user("a"), assistant("b"), user("c")]),
    (
        {"input": [user("a"), THOUGHT, ANSWER, CALL, RESULT]},
        [user("a"), assistant("b", reasoning_content="hm", **CALLED), tool("fine")],
    ),
    (
        {"input": [user("a"), CALL, RESULT, THOUGHT, ANSWER, user("c")]},
        [
            user("a"),
            assistant(None, **CALLED),
            tool("fine"),
            assistant("b", reasoning_content="hm"),
            user("c"),
        ],
    ),
    (
        {"input": [user("a"), ANSWER, CALL, ANSWER, RESULT]},
        [user("a"), assistant(parts("b", "b"), **CALLED), tool("fine")],
    ),
    (
        {"input": [user("a"), ANSWER, THOUGHT, ANSWER, user("c")]},
        [user("a"), assistant("b"), assistant("b", reasoning_content="hm"), user("c")],
    ),
    (
        {"input": [user("a"), CALL, RESULT | {"output": [text("see"), image(image_url())]}]},
        [user("a"), assistant(None, **CALLED), tool([*parts("see"), image_part(image_url())])],
    ),
    (
        {"input": [user("a"), THOUGHT, THOUGHT, ANSWER, user("c")]},
        [user("a"), assistant("b", reasoning_content="hmhm"), user("c")],
    ),
    (
        {"input": [user("a"), THOUGHT | {"content": None, "summary": [
            {"type": "summary_text", "text": "hm"}]}, ANSWER, user("c")]},
        [user("a"), assistant("b", reasoning_content="hm"), user("c")],
    ),
    (
        {"input": [user("a"), THOUGHT | {"content": [], "encrypted_content": "x"}, user("c")]},
        [user("a"), user("c")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("own", "chat"), SAME)
def test_items_are_converted_like_messages_of_the_chat_api(server, monkeypatch, own, chat):
    with recorded_requests(server, monkeypatch) as requests:
        for path, sent in (
            (PATH, own | {"max_output_tokens": 4}),
            ("/v1/chat/completions", {"messages": chat, "max_tokens": 4}),
        ):
            answer = server.post({"model": "mock"} | sent, path)
            assert answer.status_code == 200, answer.text
    first, second = ([message_content(message) for message in each.messages] for each in requests)
    assert first == second
    assert requests[0].params == requests[1].params
    assert requests[0].options == requests[1].options


def test_parameters_reach_the_model(server, monkeypatch):
    fields = {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "seed": 7, "min_p": 0.125}
    more = {"max_output_tokens": 9, "stop": "x", "chat_template_kwargs": {"thinking": True}}
    with recorded_requests(server, monkeypatch) as requests:
        whole(server, **fields, **more, tools=[TOOL], parallel_tool_calls=True)
    (request,) = requests
    assert {name: getattr(request.params, name) for name in fields} == fields
    assert (request.params.stop, request.params.max_tokens) == (("x",), 9)
    assert request.options.chat_template_kwargs == {"thinking": True}
    function = {"name": "f", "description": "", "parameters": {"type": "object"}}
    assert request.tools == [{"type": "function", "function": function}]


def test_reasoning_effort_is_converted_like_that_of_the_chat_api(server, monkeypatch):
    with recorded_requests(server, monkeypatch) as requests:
        responses = [whole(server, reasoning={"effort": effort}) for effort in ("none", "xhigh")]
    assert [response.reasoning.effort for response in responses] == ["none", "xhigh"]
    assert [request.options.reasoning_effort for request in requests] == ["none", "high"]


def test_a_tool_outside_allowed_tools_is_not_in_the_prompt(server, monkeypatch):
    others = [TOOL, TOOL | {"name": "g"}]
    chosen = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}
    with recorded_requests(server, monkeypatch) as requests:
        response = whole(server, tools=others, tool_choice=chosen)
    assert [tool["function"]["name"] for tool in requests[0].tools] == ["g"]
    assert [tool.name for tool in response.tools] == ["f", "g"]
    assert response.tool_choice.mode == "auto"


OTHERS = [
    {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
    {"type": "web_search", "external_web_access": False},
    {"type": "mcp", "server_label": "x", "headers": {"a": "b"}},
]


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_tools_of_unsupported_types_are_ignored_and_reported(server, monkeypatch, choice):
    with recorded_requests(server, monkeypatch) as requests:
        answer = server.post(body("a", tools=[TOOL, *OTHERS], tool_choice=choice), PATH)
    assert answer.headers["x-vlmkit-ignored"] == "tools.mcp, tools.tool_search, tools.web_search"
    assert [tool["name"] for tool in answer.json()["tools"]] == ["f"]
    assert [tool["function"]["name"] for tool in requests[0].tools] == ["f"]


def test_only_unsupported_tools_are_equal_to_no_tools(server, monkeypatch):
    with recorded_requests(server, monkeypatch) as requests:
        response = whole(server, tools=OTHERS)
    assert (requests[0].tools, response.tools) == (None, [])


def test_the_strict_header_refuses_unsupported_tools(server):
    sent = body("a", tools=[TOOL, OTHERS[1]])
    answer = server.post(sent, PATH, headers={"x-vlmkit-strict": "1"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools.web_search")


def test_every_tool_type_of_openais_client_is_known():
    kinds = [get_type_hints(each)["type"] for each in get_args(ToolParam)]
    assert {tag for kind in kinds for tag in get_args(kind)} <= {
        "function",
        "namespace",
        *OTHER_TOOL_TYPES,
    }


def test_the_error_of_an_unknown_tool_type_lists_the_supported_types(server):
    error = refused(server, tools=[{"type": "telepathy"}])
    assert error["message"].endswith("; supported are function, namespace")
    error = refused(server, tools=[SPACE | {"tools": [{"type": "web_search"}]}])
    assert error["param"] == "tools[0].tools[0].type"
    assert error["message"].endswith("; supported are function")


SPACE = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [
        {"type": "function", "name": "spawn", "description": "Starts one.", "strict": False},
        {"type": "function", "name": "wait", "parameters": {"type": "object"}},
    ],
}
SPAWNS = [{"name": "agents.spawn", "arguments": {"task": "x"}}, {"name": "f", "arguments": {}}]


def test_functions_of_a_namespace_have_qualified_names_in_the_prompt(server, monkeypatch):
    own = SPACE | {"tools": [*SPACE["tools"], {"type": "custom", "name": "patch"}]}
    with recorded_requests(server, monkeypatch) as requests:
        answer = server.post(body("a", tools=[own, TOOL]), PATH)
    assert answer.headers["x-vlmkit-ignored"] == "tools.tools.custom"
    functions = [tool["function"] for tool in requests[0].tools]
    assert [(each["name"], each["description"]) for each in functions] == [
        ("f", ""),
        ("agents.spawn", "Other agents.\n\nStarts one."),
        ("agents.wait", ""),
    ]
    listed = Response.model_validate(answer.json()).tools
    assert [tool.name for tool in listed] == ["agents", "f"]
    assert [tool.name for tool in listed[0].tools] == ["spawn", "wait"]


def test_a_call_of_a_namespaced_function_has_namespace_and_name(server):
    prompt = scripted(calls=SPAWNS)
    calls = whole(server, prompt, tools=[SPACE, TOOL]).output
    done = [each.item for each in events(server, prompt, tools=[SPACE, TOOL])
            if each.type == "response.output_item.done"]  # fmt: skip
    for items in (calls, done):
        named = [(item.namespace, item.name, json.loads(item.arguments)) for item in items]
        assert named == [("agents", "spawn", {"task": "x"}), (None, "f", {})]


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_call_of_a_namespaced_function_can_be_sent_back_unchanged(server, monkeypatch, is_stored):
    tools = [SPACE, TOOL]
    first = server.post(body(scripted(calls=SPAWNS), tools=tools), PATH).json()
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "done"}
        for item in first["output"]
    ]
    if is_stored:
        more = {"input": results, "previous_response_id": first["id"]}
    else:
        more = {"input": [user("a"), *first["output"], *results]}
    with recorded_requests(server, monkeypatch) as requests:
        answer = server.post(body(tools=tools) | more, PATH)
    assert answer.status_code == 200, answer.text
    assert "x-vlmkit-ignored" not in answer.headers
    calls = [part for part in requests[0].messages[1].parts if isinstance(part, ToolCallPart)]
    assert [call.name for call in calls] == ["agents.spawn", "f"]


def test_input_items_keep_the_namespace_of_a_call(server):
    call = CALL | {"namespace": "agents"}
    answer = server.post(body([user("a"), call, RESULT]), PATH).json()
    items = server.get(f"{PATH}/{answer['id']}/input_items").json()["data"]
    assert [item.get("namespace") for item in items] == [None, "agents", None]


def test_every_parameter_of_openais_client_is_supported_or_refused_by_name():
    created = set(response_create_params.ResponseCreateParamsBase.__annotations__) | {"stream"}
    assert created <= set(ResponsesRequest.__struct_fields__)
    counted = set(input_token_count_params.InputTokenCountParams.__annotations__)
    assert counted <= set(InputTokensRequest.__struct_fields__)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": {}}, "input"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"type": "message", "role": "user"}]}, "input[0]"),
        ({"input": [{"type": "message", "role": "robot", "content": "a"}]}, "input[0].role"),
        ({"input": [user("a") | {"output": "b"}]}, "input[0].output"),
        ({"input": [user([{"type": "input_audio", "data": "x"}])]}, "input[0].content[0].type"),
        ({"input": [user([{"type": "input_file", "file_id": "x"}])]}, "input[0].content[0]"),
        ({"input": [user([image("x") | {"file_id": "x"}])]}, "input[0].content[0]"),
        ({"input": [user([image("x,AA")])]}, "input[0].content[0].image_url"),
        ({"input": [assistant([image(image_url())])]}, "input[0].content[0]"),
        ({"input": [user(THOUGHT["content"])]}, "input[0].content[0]"),
        ({"input": [THOUGHT | {"content": "hm"}]}, "input[0].content"),
        ({"input": [THOUGHT | {"content": [text("hm")]}]}, "input[0].content"),
        ({"input": [user("a"), {"type": "function_call", "name": "f"}]}, "input[1]"),
        ({"input": [user("a"), CALL | {"arguments": "[1]"}, RESULT]}, "input[1].arguments"),
        ({"input": [CALL, RESULT | {"output": [image("data:,")]}]}, "input[1].output[0].image_url"),
        ({"input": [user("a")] * 2049}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0].id"),
        ({"input": [user("a"), {"id": "msg_x"}]}, "input[1].id"),
        ({"input": "x" * 2_000_001}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"include": ["secrets"]}, "include[0]"),
        ({"tools": [TOOL, {"type": "web_search"}], "tool_choice": "required"}, "tools[1].type"),
        ({"tools": [SPACE | {"tools": [{"type": "custom"}]}], "tool_choice": "required"},
         "tools[0].tools[0].type"),
        ({"tools": [SPACE, TOOL | {"name": "agents.wait"}]}, "tools"),
        ({"tools": [SPACE, SPACE]}, "tools[1].tools"),
        ({"tools": [SPACE | {"tools": [TOOL | {"name": f"f{n}"} for n in range(128)]}, TOOL]},
         "tools"),
        ({"tools": [{"type": "telepathy"}]}, "tools[0].type"),
        ({"tools": [TOOL | {"name": "two words"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
            {"type": "function", "name": "g"}]}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"truncation": "oldest"}, "truncation"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"text": {"format": {"type": "json_object"}}, "response_format": {"type": "json_object"}},
         "response_format"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation"),
        ({"image": {"context_compression": "enabled"}}, "image.context_compression"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ],
)  # fmt: skip
def test_an_invalid_field_is_refused_by_name(server, fields, param):
    for stream in (False, True):
        assert refused(server, **{"stream": stream} | fields)["param"] == param


def test_an_unknown_model_is_not_found(server):
    assert refused(server, model="other")["code"] == "model_not_found"


def test_ignored_fields_are_reported_or_refused(server):
    items = [user("a"), THOUGHT | {"encrypted_content": "x"}]
    wishes = {"reasoning": {"summary": "detailed"}, "text": {"verbosity": "low"}}
    sent = body(items, **wishes)
    answer = server.post(sent, PATH)
    names = "input.encrypted_content, reasoning.summary, text.verbosity"
    assert answer.headers["x-vlmkit-ignored"] == names
    neutral = {"reasoning": {"summary": "auto"}, "text": {"verbosity": "medium"}}
    assert "x-vlmkit-ignored" not in server.post(body("a", **neutral), PATH).headers
    refused = server.post(sent, PATH, headers={"x-vlmkit-strict": "1"})
    assert refused.json()["error"]["code"] == "unknown_parameter"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
PART = st.one_of(
    st.builds(text, st.text(max_size=8)),
    st.builds(lambda said: {"type": "output_text", "text": said}, st.text(max_size=8)),
    st.builds(lambda said: {"type": "reasoning_text", "text": said}, st.text(max_size=8)),
    st.builds(image, st.just(image_url()) | st.text(max_size=8)),
    JSON,
)
CONTENT = st.text(max_size=8) | st.lists(PART, max_size=3) | JSON
ITEM = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(
                ["message", "function_call", "function_call_output", "reasoning", "x", None]
            ),
            "id": st.text(max_size=4),
            "role": st.sampled_from(["user", "assistant", "system", "developer", "x"]),
            "content": CONTENT,
            "output": CONTENT,
            "summary": JSON,
            "call_id": st.text(max_size=4),
            "name": st.text(max_size=4),
            "arguments": st.sampled_from(["{}", "", "[", '{"a": 1}']) | st.text(max_size=4),
        },
    ),
    st.sampled_from([user("a"), ANSWER, CALL, RESULT, THOUGHT]),
    JSON,
)
BODY = st.fixed_dictionaries(
    {"model": st.just("mock"), "input": st.text(max_size=8) | st.lists(ITEM, max_size=4)},
    optional={
        "instructions": st.text(max_size=8) | JSON,
        "tools": st.lists(st.just(TOOL) | JSON, max_size=2),
        "tool_choice": st.sampled_from(["auto", "none", "required"]) | JSON,
        "text": st.sampled_from([{"format": {"type": "text"}}]) | JSON,
        "include": st.lists(st.just("message.output_text.logprobs") | JSON, max_size=2),
        "top_logprobs": st.integers(-1, 22),
        "temperature": st.floats() | JSON,
        "max_output_tokens": st.integers(-1, 9),
        "store": st.booleans() | JSON,
        "metadata": st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3) | JSON,
        "previous_response_id": JSON,
        "extra": JSON,
    },
)


@settings(max_examples=40)
@given(BODY)
def test_any_body_is_answered_or_refused_with_400(server, sent):
    fields = {"max_output_tokens": 3} | sent
    answer = server.post(fields, PATH)
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code == 200:
        whole(server, **fields)
        assert events(server, **fields)[-1].type in ("response.completed", "response.incomplete")
    else:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@given(st.lists(st.sampled_from([user("a"), user([text("a"), image("u")]), ANSWER, CALL, RESULT,
                                 RESULT | {"output": [image("u")]}, THOUGHT])))  # fmt: skip
def test_stored_items_parse_to_the_same_items(items):
    given_items = RESPONSES.read(json.dumps(body(items)).encode())[0].input
    stored = stored_input(given_items)
    again = stored_input([msgspec.json.decode(item.content, type=Item) for item in stored])
    assert again == stored
    assert all(item.id for item in stored)


def test_text_input_is_stored_as_a_message_item(server):
    assert stored_input("a")[0].content.startswith(b'{"id":"msg_')
    assert whole(server, scripted(text="so")).output_text == "so"
