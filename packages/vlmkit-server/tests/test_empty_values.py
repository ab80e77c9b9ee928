"""Empty values within messages, and tool-call arguments as objects."""

import pytest
from running_server import chat, message_content, recorded_requests

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
ABSENT = "absent"


def user(text):
    return {"role": "user", "content": text}


def held(name, value):
    return {} if value == ABSENT else {name: value}


def calling(arguments="{}", result="fine"):
    """Return a chat conversation with one tool call and its result."""
    function = {"name": "look"} | held("arguments", arguments)
    call = {"id": "c1", "type": "function", "function": function}
    back = {"role": "tool", "tool_call_id": "c1"} | held("content", result)
    return [user("a"), {"role": "assistant", "content": None, "tool_calls": [call]}, back]


def calling_items(arguments="{}", result="fine"):
    """Return the same conversation for the Responses API."""
    call = {"type": "function_call", "call_id": "c1", "name": "look"}
    back = {"type": "function_call_output", "call_id": "c1"}
    return [user("a"), call | held("arguments", arguments), back | held("output", result)]


def body(path, conversation):
    if path == RESPONSES:
        return {"model": "mock", "input": conversation, "max_output_tokens": 4}
    return chat(messages=conversation, max_tokens=4)


def messages_and_ignored(server, monkeypatch, path, conversation):
    """Return the messages that reach the model, and the header of ignored fields."""
    with recorded_requests(server, monkeypatch) as requests:
        answer = server.post(body(path, conversation), path)
    assert answer.status_code == 200, answer.text
    return [message_content(message) for message in requests[0].messages], answer.headers.get(
        "x-vlmkit-ignored"
    )


def check_same(server, monkeypatch, path, one, other):
    assert messages_and_ignored(server, monkeypatch, path, one) == messages_and_ignored(
        server, monkeypatch, path, other
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"at": 1, "é": [True, None, "x"]}, '{"at":1,"é":[true,null,"x"]}'),
        ({"n": 12345678901234567890123}, '{"n":12345678901234567890123}'),
        ({}, "{}"),
    ],
)
@pytest.mark.parametrize(("path", "make"), [(CHAT, calling), (RESPONSES, calling_items)])
def test_tool_call_arguments_may_be_an_object(server, monkeypatch, path, make, given, text):
    check_same(server, monkeypatch, path, make(given), make(text))


@pytest.mark.parametrize("given", [None, ABSENT])
def test_absent_tool_call_arguments_are_an_empty_text(server, monkeypatch, given):
    check_same(server, monkeypatch, CHAT, calling(given), calling(""))


@pytest.mark.parametrize(("path", "make"), [(CHAT, calling), (RESPONSES, calling_items)])
@pytest.mark.parametrize("given", [[1], 3, True, "[1]"])
def test_tool_call_arguments_of_another_type_are_refused(server, path, make, given):
    answer = server.post(body(path, make(given)), path)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].endswith("arguments")


def test_tool_call_arguments_given_as_an_object_are_listed_as_text(server):
    answer = server.post(body(RESPONSES, calling_items({"at": 1})), RESPONSES).json()
    items = server.get(f"{RESPONSES}/{answer['id']}/input_items?order=asc").json()["data"]
    assert items[1]["arguments"] == '{"at":1}'


@pytest.mark.parametrize(("path", "make"), [(CHAT, calling), (RESPONSES, calling_items)])
@pytest.mark.parametrize("given", [None, ABSENT, []])
def test_a_tool_result_may_be_empty(server, monkeypatch, path, make, given):
    check_same(server, monkeypatch, path, make(result=given), make(result=""))


@pytest.mark.parametrize("given", [None, ABSENT])
def test_a_tool_result_of_anthropics_api_may_be_empty(server, monkeypatch, given):
    def conversation(result):
        use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
        block = {"type": "tool_result", "tool_use_id": "c1"} | held("content", result)
        return [user("a"), {"role": "assistant", "content": [use]}, user([block])]

    check_same(server, monkeypatch, MESSAGES, conversation(given), conversation(""))


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("given", [None, ABSENT, []])
def test_an_earlier_answer_may_be_empty(server, monkeypatch, path, given):
    def conversation(content):
        return [user("a"), {"role": "assistant"} | held("content", content), user("b")]

    check_same(server, monkeypatch, path, conversation(given), conversation(""))


@pytest.mark.parametrize("given", [None, ABSENT, [], ""])
def test_an_empty_last_assistant_message_of_anthropics_api_is_ignored(server, monkeypatch, given):
    turn = {"role": "assistant"} | held("content", given)
    check_same(server, monkeypatch, MESSAGES, [user("a"), turn], [user("a")])


def test_a_message_with_only_redacted_thinking_is_empty_and_reported(server, monkeypatch):
    hidden = [{"type": "redacted_thinking", "data": "abc"}]
    turns = [user("a"), {"role": "assistant", "content": hidden}, user("b")]
    empty = [user("a"), {"role": "assistant", "content": ""}, user("b")]
    messages, ignored = messages_and_ignored(server, monkeypatch, MESSAGES, turns)
    assert messages == messages_and_ignored(server, monkeypatch, MESSAGES, empty)[0]
    assert ignored == "messages.content.data"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", MESSAGES, RESPONSES])
@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": []},
        {"context_management": {"edits": []}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"verbosity": "medium"},
    ],
)
def test_fields_without_effect_are_accepted_by_every_api(server, path, fields):
    is_chat = path != "/v1/completions"
    sent = body(path, [user("a")]) if is_chat else {"model": "mock", "prompt": "x"}
    answer = server.post(sent | fields, path)
    assert answer.status_code == 200, answer.text
    assert "x-vlmkit-ignored" not in answer.headers


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_verbosity_is_reported_as_ignored(server, path):
    sent = body(path, [user("a")])
    assert server.post(sent | {"verbosity": "low"}, path).headers["x-vlmkit-ignored"] == "verbosity"
    if path == RESPONSES:
        answer = server.post(sent | {"text": {"verbosity": "low"}}, path)
        assert answer.headers["x-vlmkit-ignored"] == "text.verbosity"


def test_context_management_is_refused(server):
    for edit in (
        {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}},
        {"type": "clear_tool_uses_20250919"},
    ):
        sent = body(MESSAGES, [user("a")]) | {"context_management": {"edits": [edit]}}
        answer = server.post(sent, MESSAGES)
        assert answer.status_code == 400
        assert "context_management is not supported" in answer.json()["error"]["message"]
