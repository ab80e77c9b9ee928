"""Anthropic's own client, through every call of its API that the server has."""

import asyncio
import base64
import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import anthropic
import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic
from conftest import serving

REPLIES = [
    {
        "to": "weather in Köln",
        "text": "I look.",
        "calls": [{"name": "weather", "arguments": {"city": "Köln"}}],
    },
    {"to": "sunny", "text": "It is sunny."},
    {"to": "think", "reasoning": "One, two.", "text": "Two."},
    {"to": "as JSON", "text": '{"colour": "red", "count": 3}'},
    {"to": "busy", "text": "so ", "tokens": 100_000, "latency_s": 0.01},
]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(server):
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def image(png):
    data = base64.b64encode(png).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


TOOLS = [
    {
        "name": "weather",
        "description": "How the weather is.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }
]


def asked(*content, model="mock"):
    return {
        "model": model,
        "max_tokens": 200,
        "messages": [{"role": "user", "content": list(content)}],
    }


def text(said):
    return {"type": "text", "text": said}


def test_an_image_is_answered_whole_and_streamed(client, image):
    question = asked(image, text("What is in this picture?"), model="demo")
    whole = client.messages.create(**question, extra_body={"temperature": 0})
    assert "circle" in whole.content[0].text
    assert (whole.type, whole.role, whole.stop_reason) == ("message", "assistant", "end_turn")
    with client.messages.stream(**question, extra_body={"temperature": 0}) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert streamed == final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_file_is_uploaded_once_and_referenced(client, png):
    files = client.beta.files
    sent = files.upload(file=("shapes.png", png, "image/png"))
    assert files.retrieve_metadata(sent.id).size_bytes == len(png)
    assert files.download(sent.id).read() == png
    assert sent.id in [file.id for file in files.list(limit=1)]
    source = {"type": "file", "file_id": sent.id}
    answers = [
        client.beta.messages.create(
            model="mock",
            max_tokens=300,
            messages=[{"role": "user", "content": [{"type": kind, "source": source}]}],
        )
        for kind in ("image", "document")
    ]
    assert answers[0].content[0].text == answers[1].content[0].text
    assert files.delete(sent.id).type == "file_deleted"
    with pytest.raises(anthropic.NotFoundError):
        files.download(sent.id)


def test_a_token_count_equals_the_input_tokens_of_the_answer(client, image):
    question = asked(image, text("hello")) | {"system": "Be brief."}
    answer = client.messages.create(**question)
    del question["max_tokens"]
    counted = client.messages.count_tokens(**question).input_tokens
    assert counted == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_thinking_precedes_the_answer_and_is_accepted_in_the_next_request(client):
    question = asked(text("think")) | {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    with client.messages.stream(**question) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert kinds.count("content_block_stop") == 2
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[1].text == "Two."
    question["messages"] += [
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": "and then?"},
    ]
    question["thinking"] = {"type": "disabled"}
    assert client.messages.create(**question).content[-1].text == "and then?"


def test_a_stop_sequence_is_reported(client):
    answer = client.messages.create(**asked(text("one two three")), stop_sequences=["two"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "two")
    assert answer.content[0].text == "one "


def test_a_schema_is_enforced(client):
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = client.messages.create(**asked(text("Tell it as JSON.")), output_config=form)
    assert json.loads(answer.content[0].text) == {"colour": "red", "count": 3}


def test_a_tool_is_called_whole_and_streamed_and_its_result_is_read(client, image):
    question = asked(text("How is the weather in Köln?")) | {"tools": TOOLS}
    whole = client.messages.create(**question)
    assert whole.stop_reason == "tool_use"
    said, call = whole.content
    assert (said.text, call.name, call.input) == ("I look.", "weather", {"city": "Köln"})
    with client.messages.stream(**question) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[1].input == {"city": "Köln"}
    shown = [text("sunny"), image]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": shown}
    question["messages"] += [
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": [result]},
    ]
    assert client.messages.create(**question).content[0].text == "It is sunny."


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_required_tool_is_called_at_once(client, choice):
    question = asked(text("How is the weather in Köln?")) | {"tools": TOOLS}
    (call,) = client.messages.create(**question, tool_choice=choice).content
    assert call.input == {"city": "Köln"}


def test_the_tool_runner_of_the_client_gets_an_answer(client):
    asked_for = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """Say how the weather is.

        Args:
            city: where.
        """
        asked_for.append(city)
        return "sunny"

    question = asked(text("How is the weather in Köln?"))
    final = client.beta.messages.tool_runner(**question, tools=[weather]).until_done()
    assert (asked_for, final.content[0].text) == (["Köln"], "It is sunny.")


def test_a_wrong_request_raises_the_error_of_its_status(client, image):
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(**asked(text("x"), model="claude"))
    assert unknown.value.body["error"]["type"] == "not_found_error"
    assert unknown.value.request_id
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**asked(text("x")), extra_body={"temperature": 3})
    broken = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**asked({"type": "image", "source": broken}))


def test_a_failing_answer_raises_during_its_stream(client):
    directive = json.dumps({"mock": {"text": "abcdef", "fail_at_token": 3}})
    pieces = []
    with (
        client.messages.stream(**asked(text(directive))) as stream,
        pytest.raises(anthropic.APIError),
    ):
        pieces.extend(stream.text_stream)
    assert "".join(pieces) == "abc"


def test_a_refused_request_is_retried_until_there_is_capacity(tmp_path):
    refused = Event()

    def seen(response):
        if response.status_code == 429:
            refused.set()

    with serving(tmp_path, REPLIES, models=["mock"], max_requests=1) as server:
        hooks = httpx2.Client(event_hooks={"response": [seen]})
        client = Anthropic(base_url=server.url, api_key="none", max_retries=20, http_client=hooks)
        with client, ThreadPoolExecutor() as pool:
            with client.messages.create(**asked(text("busy")), stream=True) as stream:
                next(iter(stream))
                later = pool.submit(client.messages.create, **asked(text("hello")))
                assert refused.wait(300)
            assert later.result().content[0].text == "hello"


def test_the_asynchronous_client_sends_concurrent_requests(server):
    async def answers():
        async with AsyncAnthropic(base_url=server.url, api_key="none") as client:
            questions = [client.messages.create(**asked(text(f"number {n}"))) for n in range(32)]
            return [each.content[0].text for each in await asyncio.gather(*questions)]

    assert asyncio.run(answers()) == [f"number {n}" for n in range(32)]


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["demo", "mock"]
    assert client.models.retrieve("demo").id == "demo"
