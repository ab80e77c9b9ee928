"""Anthropic's API as its official client sees it."""

import json

import anthropic
import pytest
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
from running_server import (
    eventually,
    image_part,
    image_url,
    message_content,
    mock_pipeline,
    recorded_requests,
    running,
    scripted,
)

from spelling import SpellingCompiler
from vlmkit.types.constraint import OneOf


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def test_an_answer_has_text_reason_and_usage(client):
    answer = ask(client, scripted(text="four"))
    (block,) = answer.content
    assert (block.type, block.text) == ("text", "four")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "mock")
    assert answer.id.startswith("msg")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.usage.output_tokens == 5
    assert answer._request_id.startswith("req-")


def test_a_stream_has_the_same_message_as_a_whole_answer(client):
    sent = body(scripted(text="né 🙂 end", reasoning="why"))
    with client.messages.stream(**sent) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    whole = client.messages.create(**sent)
    assert text == whole.content[-1].text == "né 🙂 end"
    same = {"content", "stop_reason", "stop_sequence", "type", "role", "model"}
    assert streamed.model_dump(include=same) == whole.model_dump(include=same)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    total = [u.input_tokens + u.cache_read_input_tokens for u in (streamed.usage, whole.usage)]
    assert total[0] == total[1]


def test_a_stream_has_the_events_of_anthropics_api(server):
    names = [name for name, _ in events(server, body(scripted(text="ab")))]
    assert names == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_the_first_event_of_a_stream_has_the_prompt_usage(server):
    (_, start), *_, (_, delta_event), _ = events(server, body(scripted(text="ab")))
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["input_tokens"] > 0
    assert start["message"]["usage"]["output_tokens"] == 0
    assert delta_event["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta_event["usage"]["output_tokens"] == 3


def test_reasoning_is_a_block_before_the_text(server, client):
    question = scripted(text="so", reasoning="why")
    answer = ask(client, question)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert answer.content[0].thinking == "why"
    assert answer.usage.output_tokens_details.thinking_tokens == 5
    blocks = [
        (data["index"], data["content_block"]["type"])
        for name, data in events(server, body(question))
        if name == "content_block_start"
    ]
    assert blocks == [(0, "thinking"), (1, "text")]


def test_a_streamed_block_of_thinking_ends_with_its_signature(server):
    for question in (scripted(text="so", reasoning="why"), scripted(text="", reasoning="why")):
        block = [data for _, data in events(server, body(question)) if data.get("index") == 0]
        assert [data["delta"]["type"] for data in block if "delta" in data] == [
            *["thinking_delta"] * 3,
            "signature_delta",
        ]
        assert block[-2]["delta"]["signature"] == ""
        assert block[-1]["type"] == "content_block_stop"


def test_an_empty_answer_has_no_blocks(server, client):
    assert ask(client, scripted(text="")).content == []
    names = [name for name, _ in events(server, body(scripted(text="")))]
    assert names == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("fields", "said", "reason", "sequence"),
    [
        ({"max_tokens": 3}, "one", "max_tokens", None),
        ({"stop_sequences": ["x", " tw"]}, "one", "stop_sequence", " tw"),
        ({"stop_sequences": ["x"]}, "one two", "end_turn", None),
        ({"stop_token_ids": [ord(" ")]}, "one", "end_turn", None),
    ],
)
def test_the_stop_reason_is_reported(server, fields, said, reason, sequence):
    sent = body(scripted(text="one two"), **fields)
    answer = server.post(sent, PATH).json()
    assert answer["content"][0]["text"] == said
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    (_, delta_event), _ = events(server, sent)[-2:]
    assert delta_event["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_an_image_is_in_the_prompt(client):
    answer = ask(client, [image(), text("what is it?")], max_tokens=128)
    assert "8x6" in answer.content[0].text


def test_an_image_url_is_fetched_only_if_the_operator_allows_it(client):
    source = {"type": "url", "url": "http://127.0.0.1:9/x.png"}
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(client, [text("look"), {"type": "image", "source": source}])
    assert refused.value.error_code == "image_url_not_allowed"
    assert refused.value.api_message.startswith("messages[0].content[1].source: ")


CALL = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 2**70}}
SAME = [
    ({"messages": [user("a")]}, [user("a")]),
    ({"messages": [user([text("a"), text("b")])]}, [user([text("a"), text("b")])]),
    (
        {"messages": [user("a")], "system": "be brief"},
        [{"role": "system", "content": "be brief"}, user("a")],
    ),
    (
        {"messages": [user("a")], "system": [text("be"), text("brief")]},
        [{"role": "system", "content": [text("be"), text("brief")]}, user("a")],
    ),
    (
        {"messages": [user("a"), {"role": "system", "content": "now"}, user("b")]},
        [user("a"), {"role": "system", "content": "now"}, user("b")],
    ),
    (
        {"messages": [user("a"), user([image(), text("b")])]},
        [user([text("a"), image_part(image_url()), text("b")])],
    ),
    (
        {
            "messages": [
                user("a"),
                assistant([{"type": "thinking", "thinking": "hm", "signature": ""}, text("b")]),
                user("c"),
            ]
        },
        [user("a"), assistant("b") | {"reasoning_content": "hm"}, user("c")],
    ),
    (
        {
            "messages": [
                user("a"),
                assistant([text("b"), CALL]),
                user(
                    [
                        {"type": "tool_result", "tool_use_id": "c1", "content": [image()]},
                        {"type": "tool_result", "tool_use_id": "c2"},
                        text("well?"),
                    ]
                ),
            ]
        },
        [
            user("a"),
            assistant("b")
            | {
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "look", "arguments": f'{{"at": {2**70}}}'},
                    }
                ]
            },
            {"role": "tool", "tool_call_id": "c1", "content": [image_part(image_url())]},
            {"role": "tool", "tool_call_id": "c2", "content": ""},
            user("well?"),
        ],
    ),
    (
        {"messages": [user("a"), assistant("b")]},
        [user("a"), assistant("b") | {"prefix": True}],
    ),
]


@pytest.mark.parametrize(("own", "chat"), SAME)
def test_messages_are_converted_like_those_of_the_chat_api(server, monkeypatch, own, chat):
    with recorded_requests(server, monkeypatch) as requests:
        for path, messages in ((PATH, own), ("/v1/chat/completions", {"messages": chat})):
            answer = server.post({"model": "mock", "max_tokens": 4} | messages, path)
            assert answer.status_code == 200, answer.text
    first, second = ([message_content(message) for message in each.messages] for each in requests)
    assert first == second
    assert requests[0].options == requests[1].options


def test_an_answer_can_be_sent_back_unchanged(client):
    answer = ask(client, scripted(text="so", reasoning="why"))
    messages = [user("a"), {"role": "assistant", "content": answer.content}, user("b")]
    response = client.messages.with_raw_response.create(**body(messages=messages))
    assert response.status_code == 200
    assert "x-vlmkit-ignored" not in response.headers


def test_an_answer_continues_the_last_assistant_message(client):
    messages = [user(scripted(text="one two")), assistant("one")]
    count = client.messages.count_tokens(model="mock", messages=messages).input_tokens
    closed = client.messages.count_tokens(model="mock", messages=[*messages, user("")])
    assert count < closed.input_tokens
    assert ask(client, messages=messages).usage.input_tokens <= count


def test_count_tokens_equals_the_usage_of_the_answer(client):
    sent = {"messages": [user([image(), text("look")])], "system": "be brief"}
    count = client.messages.count_tokens(model="mock", **sent).input_tokens
    usage = ask(client, **sent).usage
    assert count == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize(("kind", "thinks"), [("enabled", True), ("disabled", False)])
def test_thinking_is_passed_to_the_chat_template(server, monkeypatch, kind, thinks):
    with recorded_requests(server, monkeypatch) as requests:
        answer = server.post(body(thinking={"type": kind, "budget_tokens": 1024}), PATH)
    assert answer.headers.get("x-vlmkit-ignored") == (None if thinks else "thinking.budget_tokens")
    assert requests[0].params.thinking_token_budget == (1024 if thinks else None)
    variables = requests[0].options.chat_template_kwargs
    assert variables == {"enable_thinking": thinks, "thinking": thinks}


def test_parameters_reach_the_model(server, monkeypatch):
    fields = {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "seed": 7, "min_p": 0.125}
    own = {"metadata": {"user_id": "u"}, "service_tier": "auto", "stop_sequences": ["x"]}
    with recorded_requests(server, monkeypatch) as requests:
        assert server.post(body(**fields, **own), PATH).status_code == 200
    params = requests[0].params
    assert {name: getattr(params, name) for name in fields} == fields
    assert (params.stop, params.max_tokens) == (("x",), 64)


class ConstantCompiler(SpellingCompiler):
    """Compiles schemas of one value."""

    def compile(self, constraint):
        return super().compile(OneOf((json.dumps(json.loads(constraint.text)["const"]),)))


def output_config(schema):
    return {"format": {"type": "json_schema", "schema": schema}}


def test_an_answer_matches_its_schema():
    with running({"mock": mock_pipeline(constraint=ConstantCompiler)}) as formed:
        answer = ask(client_of(formed), output_config=output_config({"const": "tree"}))
    assert answer.content[0].text == '"tree"'


def test_a_schema_is_refused_without_a_constraint_compiler(client):
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(client, output_config=output_config({"const": "tree"}))
    assert refused.value.error_code == "invalid_constraint"
    assert refused.value.api_message.startswith("output_config.format: ")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temperature": 3}}, "temperature"),
        ({"stop_sequences": [""]}, "stop"),
        ({"messages": [user([image("x,AA")])]}, "messages[0].content[0].source"),
        ({"messages": [assistant([CALL])]}, "end with text"),
        (
            {"messages": [assistant([CALL | {"input": 1}]), user("a")]},
            "messages[0].content[0].input",
        ),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
                "extra_body": {"response_format": {"type": "json_object"}},
            },
            "response_format and output_config.format",
        ),
        (
            {"extra_body": {"response_format": {"type": "json_object"}}},
            "response_format: no plugin",
        ),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_an_invalid_field_is_refused_by_name(client, fields, named, stream):
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(client, stream=stream, **fields)
    assert refused.value.type == "invalid_request_error"
    assert named in refused.value.api_message
    assert refused.value.body["type"] == "error"
    assert refused.value.request_id == refused.value.body["request_id"]


@pytest.mark.parametrize(
    "value", [b'{"a":"\xff"}', b'{"\xff":1}', b'"\\ud800"', b"[" * 5000 + b"]" * 5000]
)
def test_invalid_json_in_a_tool_call_input_is_a_400(server, value):
    call = assistant([CALL | {"input": "here"}])
    sent = json.dumps(body(messages=[user("a"), call, user("b")])).encode()
    answer = server.post(sent.replace(b'"here"', value), PATH)
    assert (answer.status_code, answer.json()["error"]["details"]) == (
        400,
        {"error_code": "invalid_json"},
    )


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(anthropic.NotFoundError) as refused:
        ask(client, model="other")
    assert (refused.value.type, refused.value.error_code) == ("not_found_error", "model_not_found")


def test_errors_of_the_framework_have_anthropics_format():
    too_large = pytest.raises(anthropic.ContentTooLargeError)
    with running(max_body_bytes=100) as small, too_large as refused:
        ask(client_of(small), "x" * 100)
    assert (refused.value.type, refused.value.error_code) == ("request_too_large",) * 2


def test_extra_fields_of_agents_are_ignored_and_reported(server):
    marked = {"cache_control": {"type": "ephemeral"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "is_error": True}
    messages = [
        user([text("a") | marked]),
        assistant([CALL]),
        user([result | {"content": [text("no") | marked]}]),
    ]
    names = [
        "cache_control",
        "messages.content.cache_control",
        "messages.content.content.cache_control",
        "messages.content.is_error",
        "system.cache_control",
    ]
    before = dict(server.get("/readyz").json()["num_ignored"])
    sent = body(messages=messages, system=[text("brief") | marked], **marked)
    answer = server.post(sent, PATH)
    assert answer.status_code == 200
    assert answer.headers["x-vlmkit-ignored"] == ", ".join(names)
    counted = server.get("/readyz").json()["num_ignored"]
    assert {name for name in counted if counted[name] > before.get(name, 0)} == set(names)


def test_ignored_fields_are_reported_or_refused(server):
    sent = body([text("a") | {"cache_control": {"type": "ephemeral"}}])
    answer = server.post(sent, PATH)
    assert answer.headers["x-vlmkit-ignored"] == "messages.content.cache_control"
    refused = server.post(sent, PATH, headers={"x-vlmkit-strict": "1"})
    assert refused.status_code == 400
    assert refused.json()["error"]["details"] == {"error_code": "unknown_parameter"}


def test_overload_and_drain_have_anthropics_error_types():
    with running(max_requests=1) as busy:
        long = body(scripted(text="x", tokens=2000, latency_s=0.05), max_tokens=2000)
        held = busy.connect(long | {"stream": True}, path=PATH)
        assert held.recv(1)
        try:
            with pytest.raises(anthropic.RateLimitError) as refused:
                ask(client_of(busy))
        finally:
            held.close()
        assert refused.value.type == "rate_limit_error"
        assert eventually(busy.is_idle)
        busy.service.admission.is_draining = True
        with pytest.raises(anthropic.InternalServerError) as refused:
            ask(client_of(busy))
        assert (refused.value.status_code, refused.value.type) == (503, "overloaded_error")


def test_an_engine_error_is_raised_after_the_streamed_text(client):
    text = ""
    with pytest.raises(anthropic.APIStatusError) as raised:  # noqa: PT012
        for event in ask(client, scripted(text="abcdef", fail_at_token=3), stream=True):
            text += event.delta.text if event.type == "content_block_delta" else ""
    assert text == "abc"
    assert (raised.value.type, raised.value.error_code) == ("api_error", "engine_error")


def test_an_engine_error_of_a_whole_answer_is_an_internal_error(client):
    with pytest.raises(anthropic.InternalServerError) as raised:
        ask(client, scripted(text="abcdef", fail_at_token=3))
    assert (raised.value.status_code, raised.value.type) == (500, "api_error")


def test_an_idle_stream_has_ping_events():
    with running(keepalive_s=0.05) as server:
        received = events(server, body(scripted(text="a", prefill_latency_s=0.5)))
    assert ("ping", {"type": "ping"}) in received


@pytest.mark.parametrize("kept", ["yes", ""])
def test_redacted_thinking_of_another_server_is_ignored_and_reported(server, kept):
    def answered(blocks):
        turns = [{"role": "assistant", "content": blocks}, {"role": "user", "content": "and?"}]
        sent = [{"role": "user", "content": "look"}, *turns]
        return server.post(body("look") | {"messages": sent}, PATH)

    redacted, said = {"type": "redacted_thinking", "data": "b3BhcXVl"}, [text(kept)]
    answer = answered([redacted, *said] if kept else [redacted])
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-vlmkit-ignored"] == "messages.content.data"
    read, without = (
        each.json()["usage"]["input_tokens"] + each.json()["usage"]["cache_read_input_tokens"]
        for each in (answer, answered(said))
    )
    assert read == without


def test_anthropics_client_lists_and_finds_the_models_in_its_own_shape(server):
    client = client_of(server)
    (listed,) = client.models.list()
    found = client.models.retrieve("mock")
    assert listed == found
    assert (found.id, found.display_name, found.type) == ("mock", "mock", "model")
    assert found.created_at.timestamp() == server.get("/v1/models/mock").json()["created"]
    assert found.max_input_tokens == server.runner().facts.limits.max_sequence_tokens
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.models.retrieve("other")
    assert missing.value.body["error"]["type"] == "not_found_error"
