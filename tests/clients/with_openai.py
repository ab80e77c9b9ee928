"""OpenAI's own client, through every call that the server has."""

import asyncio
import json
import math
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx2
import openai
import pytest
from conftest import serving
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

REPLIES = [
    {
        "to": "weather in Köln",
        "text": "I look.",
        "calls": [{"name": "weather", "arguments": {"city": "Köln", "days": 2}}],
    },
    {"to": "sunny", "text": "It is sunny."},
    {"to": "as JSON", "text": '{"colour": "red", "count": 3}'},
    {"to": "think", "reasoning": "One, two.", "text": "Two."},
    {"to": "busy", "text": "so ", "tokens": 100_000, "latency_s": 0.01},
]


class Shapes(BaseModel):
    colour: str
    count: int


class Weather(BaseModel):
    """How the weather is."""

    city: str
    days: int


@pytest.fixture(scope="module")
def client(server):
    with OpenAI(base_url=server.v1, api_key="none", max_retries=0) as client:
        yield client


def asked(text, *urls):
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [*images, {"type": "text", "text": text}] if urls else text
    return {"messages": [{"role": "user", "content": content}], "model": "mock"}


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["demo", "mock"]
    assert client.models.retrieve("demo").owned_by
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_an_image_is_answered_whole_and_streamed(client, data_url):
    question = asked("What is in this picture?", data_url) | {"model": "demo", "temperature": 0}
    whole = client.chat.completions.create(**question)
    assert "circle" in whole.choices[0].message.content
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(
        client.chat.completions.create(
            **question, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_several_answers_have_log_probabilities(client):
    answer = client.chat.completions.create(
        **asked("hello"), n=2, seed=1, temperature=1.0, logprobs=True, top_logprobs=3
    )
    assert [choice.message.content for choice in answer.choices] == ["hello", "hello"]
    first = answer.choices[0].logprobs.content[0]
    assert (first.token, first.bytes, len(first.top_logprobs)) == ("h", [ord("h")], 3)


def test_a_schema_is_parsed_whole_and_streamed(client):
    question = asked("Tell it as JSON.")
    answer = client.chat.completions.parse(**question, response_format=Shapes)
    assert answer.choices[0].message.parsed == Shapes(colour="red", count=3)
    with client.chat.completions.stream(**question, response_format=Shapes) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == Shapes(colour="red", count=3)


def test_a_tool_is_called_whole_and_streamed_and_its_result_is_read(client):
    tools = [openai.pydantic_function_tool(Weather, name="weather")]
    question = asked("How is the weather in Köln?")
    message = client.chat.completions.parse(**question, tools=tools).choices[0].message
    call = message.tool_calls[0]
    assert call.function.parsed_arguments == Weather(city="Köln", days=2)
    with client.chat.completions.stream(**question, tools=tools) as stream:
        done = [each for each in stream if each.type == "tool_calls.function.arguments.done"]
    assert [each.parsed_arguments for each in done] == [Weather(city="Köln", days=2)]
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    question["messages"] += [message, result]
    answer = client.chat.completions.create(**question, tools=tools)
    assert answer.choices[0].message.content == "It is sunny."


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_required_tool_is_called_at_once(client, choice):
    tools = [openai.pydantic_function_tool(Weather, name="weather")]
    question = asked("How is the weather in Köln?")
    answer = client.chat.completions.parse(**question, tools=tools, tool_choice=choice)
    message = answer.choices[0].message
    assert message.content is None
    assert [call.function.parsed_arguments for call in message.tool_calls] == [
        Weather(city="Köln", days=2)
    ]


def test_reasoning_is_separate_from_the_answer(client):
    message = client.chat.completions.create(**asked("think")).choices[0].message
    assert (message.reasoning_content, message.content) == ("One, two.", "Two.")


def shown(text, url):
    parts = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url}]
    return [{"role": "user", "content": [part | {"detail": "auto"} for part in parts]}]


def test_a_response_about_an_image_comes_whole_and_streamed(client, data_url):
    question = {"model": "demo", "temperature": 0}
    question["input"] = shown("What is in this picture?", data_url)
    whole = client.responses.create(**question)
    assert "circle" in whole.output_text
    with client.responses.stream(**question) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_response_is_parsed_whole_and_streamed(client):
    question = {"model": "mock", "input": "Tell it as JSON.", "text_format": Shapes}
    shapes = Shapes(colour="red", count=3)
    assert client.responses.parse(**question).output_parsed == shapes
    with client.responses.stream(**question) as stream:
        assert stream.get_final_response().output_parsed == shapes


def test_a_response_calls_a_tool_and_the_next_one_reads_its_result(client, data_url):
    tools = [openai.pydantic_function_tool(Weather, name="weather")["function"]]
    tools[0]["type"] = "function"
    first = client.responses.parse(
        model="mock", input="How is the weather in Köln?", tools=tools, instructions="Be brief."
    )
    call = first.output[-1]
    assert json.loads(call.arguments) == {"city": "Köln", "days": 2}
    for output in ("sunny", shown("sunny", data_url)[0]["content"]):
        result = {"type": "function_call_output", "call_id": call.call_id, "output": output}
        answer = client.responses.create(
            model="mock", input=[result], tools=tools, previous_response_id=first.id
        )
        assert answer.output_text == "It is sunny."
    items = list(client.responses.input_items.list(answer.id, order="asc", limit=1))
    assert [item.type for item in items] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
    ]


def test_a_background_response_is_answered_and_retrieved(client):
    told = client.responses.create(model="mock", input="think", background=True)
    while told.status == "in_progress":
        told = client.responses.retrieve(told.id)
    thought, message = told.output
    assert (thought.content[0].text, message.content[0].text) == ("One, two.", "Two.")
    client.responses.delete(told.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(told.id)
    busy = client.responses.create(model="mock", input="busy", background=True)
    assert client.responses.cancel(busy.id).status == "cancelled"


def test_the_stream_of_a_background_response_is_resumed(client):
    stream = client.responses.create(model="mock", input="think", background=True, stream=True)
    events = list(stream)
    assert events[-1].response.output_text == "Two."
    response_id = events[0].response.id
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=4))
    assert [event.sequence_number for event in rest] == list(range(5, len(events)))
    with client.responses.stream(response_id=response_id) as again:
        assert again.get_final_response().output_text == "Two."


def test_errors_of_a_response_are_raised_before_and_during_its_stream(client):
    with pytest.raises(openai.BadRequestError) as hot:
        client.responses.create(model="mock", input="x", temperature=3)
    assert hot.value.param == "temperature"
    directive = json.dumps({"mock": {"text": "abcdef", "fail_at_token": 3}})
    with client.responses.create(model="mock", input=directive, stream=True) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert ("".join(deltas), events[-1].type) == ("abc", "response.failed")


def test_tokens_of_a_response_are_counted(client):
    counted = client.responses.input_tokens.count(model="mock", input="hello")
    assert (
        counted.input_tokens
        == client.responses.create(model="mock", input="hello").usage.input_tokens
    )


def test_a_file_is_uploaded_once_used_in_both_apis_and_deleted(client, png):
    sent = client.files.create(file=("shapes.png", png), purpose="vision")
    assert client.files.wait_for_processing(sent.id).status == "processed"
    assert client.files.content(sent.id).read() == png
    assert sent.id in [file.id for file in client.files.list(limit=1)]
    parts = [{"type": "file", "file": {"file_id": sent.id}}, {"type": "text", "text": "what?"}]
    chat = client.chat.completions.create(
        model="mock", messages=[{"role": "user", "content": parts}]
    )
    items = [
        {"type": "input_file", "file_id": sent.id},
        {"type": "input_text", "text": "what?"},
    ]
    response = client.responses.create(model="mock", input=[{"role": "user", "content": items}])
    assert response.output_text == chat.choices[0].message.content
    assert client.files.delete(sent.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="mock", input=[{"role": "user", "content": items}])


def test_texts_are_completed(client):
    answer = client.completions.create(
        model="mock", prompt=["one", "two"], max_tokens=3, echo=True, logprobs=1
    )
    assert [choice.text for choice in answer.choices] == ["oneone", "twotwo"]
    assert answer.choices[0].logprobs.tokens == ["", *"oneone"]
    stream = client.completions.create(model="mock", prompt="abc", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "abc"


def test_embeddings_have_unit_length_in_every_encoding(client):
    for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        one, two = client.embeddings.create(model="mock", input=["one", "two"], **form).data
        assert one.embedding != two.embedding
        if form.get("encoding_format") != "base64":
            assert math.hypot(*two.embedding) == pytest.approx(1)


def test_a_wrong_request_raises_the_error_of_its_status(client):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**asked("x") | {"model": "gpt-5"})
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as hot:
        client.chat.completions.create(**asked("x"), temperature=3)
    assert hot.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as broken:
        client.chat.completions.create(**asked("x", "data:image/png;base64,AAAA"))
    assert broken.value.code == "invalid_image"
    with pytest.raises(openai.BadRequestError) as far:
        client.chat.completions.create(**asked("x", "https://example.com/a.png"))
    assert far.value.code == "image_url_not_allowed"


def test_a_failing_answer_raises_during_its_stream(client):
    directive = json.dumps({"mock": {"text": "abcdef", "fail_at_token": 3}})
    pieces = []
    with (
        client.chat.completions.create(**asked(directive), stream=True) as stream,
        pytest.raises(openai.APIError),
    ):
        pieces.extend(chunk.choices[0].delta.content for chunk in stream)
    assert "".join(pieces) == "abc"


def test_a_refused_request_is_retried_until_there_is_capacity(tmp_path):
    refused = Event()

    def seen(response):
        if response.status_code == 429:
            refused.set()

    with serving(tmp_path, REPLIES, models=["mock"], max_requests=1) as server:
        hooks = httpx2.Client(event_hooks={"response": [seen]})
        client = OpenAI(base_url=server.v1, api_key="none", max_retries=20, http_client=hooks)
        with client, ThreadPoolExecutor() as pool:
            with client.chat.completions.create(**asked("busy"), stream=True) as stream:
                next(stream)
                later = pool.submit(client.chat.completions.create, **asked("hello"))
                assert refused.wait(300)
            assert later.result().choices[0].message.content == "hello"


def test_the_asynchronous_client_sends_concurrent_requests(server):
    async def answers():
        async with AsyncOpenAI(base_url=server.v1, api_key="none") as client:
            questions = [client.chat.completions.create(**asked(f"number {n}")) for n in range(32)]
            return [each.choices[0].message.content for each in await asyncio.gather(*questions)]

    assert asyncio.run(answers()) == [f"number {n}" for n in range(32)]


def test_no_field_of_the_client_is_ignored(client, data_url):
    raw = client.chat.completions.with_raw_response.create(**asked("hello", data_url))
    assert "x-vlmkit-ignored" not in raw.headers
    assert raw.headers["x-request-id"] == raw.request_id
