"""OpenAI's Responses API as its official client sees it: answers, whole and streamed."""

import json

import openai
import pytest
from pydantic import BaseModel
from responses_client import PATH, body, checked, events, image, refused, text, user, whole
from running_server import eventually, image_url, mock_pipeline, running, scripted

from spelling import SpellingCompiler
from vlmkit.types.constraint import OneOf

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "How the weather is.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALLS = [
    {"name": "weather", "arguments": {"city": "Köln"}},
    {"name": "weather", "arguments": {}},
]
LOGPROBS = ["message.output_text.logprobs"]


def ask(server, said="hello", **fields):
    return server.client().responses.create(**body(said, **fields))


def outputs(response):
    """Return the content of a response's items, without their ids."""
    items = [item.model_dump(exclude_none=True) for item in response.output]
    for item in items:
        assert item.pop("id").startswith(
            {"message": "msg_", "reasoning": "rs_"}.get(item["type"], "fc_")
        )
        item.pop("call_id", None)
    return items


def test_an_answer_has_text_status_and_usage(server):
    answer = ask(server, scripted(text="four"))
    assert answer.output_text == "four"
    assert (answer.object, answer.status, answer.model) == ("response", "completed", "mock")
    assert answer.id.startswith("resp_")
    assert (answer.error, answer.incomplete_details) == (None, None)
    assert (answer.usage.output_tokens, answer.usage.total_tokens) == (
        5,
        answer.usage.input_tokens + 5,
    )
    assert answer.completed_at >= answer.created_at
    assert answer.store is True


def test_the_response_repeats_the_fields_of_the_request(server):
    fields = {
        "temperature": 0.5,
        "top_p": 0.25,
        "max_output_tokens": 64,
        "metadata": {"a": "b"},
        "instructions": "be brief",
        "tools": [TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
        "max_tool_calls": 3,
    }
    response = whole(server, scripted(text="so"), **fields)
    for name, value in fields.items():
        held = getattr(response, name)
        if name == "tools":
            held = [tool.model_dump(exclude_none=True) for tool in held]
        elif name == "text":
            held = held.model_dump(exclude_none=True)
        assert held == value, name


QUESTIONS = [
    {"text": "né 🙂 end"},
    {"text": "so", "reasoning": "né 🙂: why"},
    {"text": "I look.", "reasoning": "hm", "calls": CALLS},
    {"calls": CALLS[:1]},
    {"text": ""},
]


@pytest.mark.parametrize("script", QUESTIONS)
@pytest.mark.parametrize("include", [[], LOGPROBS])
def test_the_last_event_of_a_stream_has_the_response_of_a_whole_answer(server, script, include):
    fields = {"tools": [TOOL], "include": include}
    *_, last = events(server, scripted(**script), **fields)
    answered = whole(server, scripted(**script), **fields)
    assert last.type == "response.completed"
    assert outputs(last.response) == outputs(answered)
    assert last.response.usage.output_tokens == answered.usage.output_tokens
    same = {"tools", "temperature", "text", "status", "tool_choice", "instructions"}
    assert last.response.model_dump(include=same) == answered.model_dump(include=same)


def test_a_stream_has_the_events_of_openais_api(server):
    received = events(server, scripted(text="ab", reasoning="c", calls=CALLS[1:]), tools=[TOOL])
    assert [event.type.removeprefix("response.") for event in received] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert len({event.response.id for event in received if hasattr(event, "response")}) == 1
    assert [event.output_index for event in received if event.type.endswith("item.done")] == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("script", QUESTIONS)
def test_the_official_client_assembles_a_stream(server, script):
    with server.client().responses.stream(**body(scripted(**script), tools=[TOOL])) as stream:
        deltas = {"text": "", "arguments": "", "thought": ""}
        for event in stream:
            if event.type == "response.output_text.delta":
                deltas["text"] += event.delta
                assert event.snapshot == deltas["text"]
            elif event.type == "response.function_call_arguments.delta":
                deltas["arguments"] += event.delta
            elif event.type == "response.reasoning_text.delta":
                deltas["thought"] += event.delta
        final = stream.get_final_response()
    assert final.output_text == deltas["text"] == script.get("text", "")
    assert deltas["thought"] == script.get("reasoning", "")
    called = [item for item in final.output if item.type == "function_call"]
    assert "".join(call.arguments for call in called) == deltas["arguments"]
    assert [json.loads(call.arguments) for call in called] == [
        call["arguments"] for call in script.get("calls", ())
    ]


def test_a_finished_item_is_sent_whole(server):
    received = events(server, scripted(text="I look.", reasoning="hm", calls=CALLS), tools=[TOOL])
    done = [event.item for event in received if event.type == "response.output_item.done"]
    added = [event.item for event in received if event.type == "response.output_item.added"]
    assert [item.id for item in added] == [item.id for item in done]
    assert {item.status for item in added} == {"in_progress"}
    assert done == received[-1].response.output
    texts = [event.part.text for event in received if event.type == "response.content_part.done"]
    assert texts == ["hm", "I look."]


@pytest.mark.parametrize(
    ("script", "most", "expected"),
    [
        ({"text": "one two"}, 3, [("message", "one")]),
        ({"text": "so", "reasoning": "why not"}, 4, [("reasoning", "why")]),
        ({"text": "so", "reasoning": "why"}, 6, [("reasoning", "why"), ("message", "s")]),
    ],
)
def test_an_answer_that_reaches_max_output_tokens_is_incomplete(server, script, most, expected):
    fields = {"max_output_tokens": most}
    *_, last = events(server, scripted(**script), **fields)
    assert last.type == "response.incomplete"
    for response in (last.response, whole(server, scripted(**script), **fields)):
        assert response.status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.completed_at is None
        assert [(item.type, item.content[0].text) for item in response.output] == expected
        statuses = [item.status for item in response.output]
        assert statuses == ["completed"] * (len(expected) - 1) + ["incomplete"]
        assert response.usage.output_tokens == most


def test_reasoning_tokens_are_counted(server):
    answer = whole(server, scripted(text="so", reasoning="why"))
    assert answer.usage.output_tokens_details.reasoning_tokens == len("why") + 2


def test_an_image_is_in_the_prompt(server):
    answer = ask(server, [user([image(image_url()), text("what is it?")])])
    assert "8x6" in answer.output_text
    details = answer.usage.input_tokens_details
    assert details.image_tokens == sum(details.image_tokens_each) > 0


def test_an_image_url_is_fetched_only_if_the_operator_allows_it(server):
    error = refused(server, [user([text("look"), image("http://127.0.0.1:9/x.png")])])
    assert error["code"] == "image_url_not_allowed"
    assert error["param"] == "input[0].content[1].image_url"


def test_calls_and_results_can_be_sent_back_unchanged(server):
    client, question = server.client(), user(scripted(text="hm", reasoning="so", calls=CALLS))
    first = client.responses.create(model="mock", input=[question], tools=[TOOL])
    calls = [item for item in first.output if item.type == "function_call"]
    assert [call.name for call in calls] == ["weather", "weather"]
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "fine"}
        for call in calls
    ]
    items = [question, *first.output, *results, user("and?")]
    raw = client.responses.with_raw_response.create(model="mock", input=items, tools=[TOOL])
    assert raw.parse().output_text == "and?"
    assert "x-vlmkit-ignored" not in raw.headers


def test_logprobs_cover_the_text_of_the_message_only(server):
    prompt = scripted(text="né, so.", reasoning="\nwhy\n", calls=CALLS)
    fields = {"include": LOGPROBS, "top_logprobs": 2, "tools": [TOOL]}
    received = events(server, prompt, **fields)
    deltas = [
        entry
        for event in received
        if "text.delta" in event.type
        for entry in getattr(event, "logprobs", None) or ()
    ]
    (done,) = [event for event in received if event.type == "response.output_text.done"]
    message = next(item for item in received[-1].response.output if item.type == "message")
    answered = next(
        item for item in whole(server, prompt, **fields).output if item.type == "message"
    )
    for entries in (
        deltas,
        done.logprobs,
        message.content[0].logprobs,
        answered.content[0].logprobs,
    ):
        assert [entry.token for entry in entries][-4:] == list(" so.")
        assert len(entries) == len("né, so.".encode())
        assert all(len(entry.top_logprobs) == 2 for entry in entries)
    tokens = [entry.bytes for entry in message.content[0].logprobs]
    assert bytes(byte for token in tokens for byte in token) == "né, so.".encode()


def test_logprobs_are_returned_only_on_request(server):
    assert whole(server).output[0].content[0].logprobs == []
    assert refused(server, top_logprobs=2)["param"] == "top_logprobs"


class Tree(BaseModel):
    name: str


class NamedCompiler(SpellingCompiler):
    """Compiles the schema of a tree to its possible answers."""

    def compile(self, constraint):
        assert json.loads(constraint.text)["properties"].keys() == {"name"}
        return super().compile(OneOf(('{"name": "elm"}',)))


def test_an_answer_matches_its_schema_and_is_parsed():
    with running({"mock": mock_pipeline(constraint=NamedCompiler)}) as formed:
        client = formed.client().responses
        assert client.parse(**body("which?"), text_format=Tree).output_parsed == Tree(name="elm")
        with client.stream(**body("which?"), text_format=Tree) as stream:
            assert stream.get_final_response().output_parsed == Tree(name="elm")
        answer = formed.post(body("which?", text={"format": {"type": "json_schema", "name": "tree",
            "schema": Tree.model_json_schema(), "strict": True}}), PATH).json()  # fmt: skip
        assert answer["text"]["format"]["schema"] == Tree.model_json_schema()
        assert checked(answer).output_text == '{"name": "elm"}'


class OneCompiler(SpellingCompiler):
    """Compiles each constraint to one text."""

    def compile(self, constraint):
        return super().compile(OneOf(("1",)))


def test_the_response_repeats_its_constraint():
    with running({"mock": mock_pipeline(constraint=OneCompiler)}) as formed:
        for form in ({"type": "json_object"}, {"type": "json_object", "schema": {"const": 1}}):
            answer = formed.post(body("which?", text={"format": form}), PATH)
            assert answer.json()["text"]["format"] == form


def test_a_schema_is_refused_without_a_constraint_compiler(server):
    schema = {"type": "json_schema", "name": "tree", "schema": {"type": "object"}}
    for form in (schema, {"type": "json_object"}):
        error = refused(server, text={"format": form})
        assert (error["code"], error["param"]) == ("invalid_constraint", "text.format")


def test_input_token_counts_equal_the_usage_of_the_answer(server):
    messages = [user([image(image_url()), text("look")])]
    fields = {"input": messages, "instructions": "be brief", "tools": [TOOL]}
    counted = server.client().responses.input_tokens.count(model="mock", **fields)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == ask(server, **fields | {"said": messages}).usage.input_tokens


def test_an_engine_error_is_the_last_event_of_a_stream(server):
    received = events(server, scripted(text="abcdef", fail_at_token=3))
    assert "".join(event.delta for event in received if event.type.endswith("text.delta")) == "abc"
    assert received[-1].type == "response.failed"
    assert (received[-1].response.status, received[-1].response.error.code) == (
        "failed",
        "server_error",
    )
    assert received[-1].response.output[0].content[0].text == "abc"
    assert server.get(f"{PATH}/{received[-1].response.id}").status_code == 404


def test_an_engine_error_of_a_whole_answer_is_an_internal_error(server):
    with pytest.raises(openai.InternalServerError) as raised:
        ask(server, scripted(text="abcdef", fail_at_token=3))
    assert raised.value.code == "engine_error"


def test_a_disconnect_aborts_the_answer():
    with running() as server:
        prompt = scripted(text="x", tokens=4000, latency_s=0.05)
        held = server.connect(body(prompt, stream=True), path=PATH)
        assert held.recv(1)
        held.close()
        assert eventually(server.is_idle)


def test_an_idle_stream_has_ping_comments():
    with running(keepalive_s=0.05) as server:
        sent = body(scripted(text="a", prefill_latency_s=0.5), stream=True)
        assert ": ping\n\n" in server.post(sent, PATH).text
