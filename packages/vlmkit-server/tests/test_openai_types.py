"""Answers and events match the types of OpenAI's client exactly.

The client itself accepts missing and wrong fields. These tests validate strictly: a field outside
of OpenAI's types must be one that the reference lists as an extension.
"""

import json

import pytest
from openai.pagination import SyncPage
from openai.types import Completion, CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.shared import ErrorObject
from pydantic import BaseModel, TypeAdapter
from running_server import chat, image_part, image_url, scripted

IMAGES = "usage.prompt_tokens_details.image_tokens_each"
CALLS = [
    {"name": "weather", "arguments": {"city": "Köln"}},
    {"name": "weather", "arguments": {}},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
SHOWN = chat([image_part(image_url()), {"type": "text", "text": "what?"}])
CHATS = {
    "plain": (chat(), set()),
    "several": (chat(n=3, seed=1, temperature=1.0), set()),
    "logprobs": (chat(logprobs=True, top_logprobs=3), set()),
    "cut": (chat(max_tokens=2), set()),
    "image": (SHOWN, set()),
    "tools": (chat(scripted(text="I look.", calls=CALLS), tools=TOOLS), set()),
    "only tools": (chat(scripted(calls=CALLS), tools=TOOLS, logprobs=True, n=2), set()),
    "thought": (chat(scripted(text="so", reasoning="hm")), {"reasoning", "reasoning_content"}),
    "tokens": (chat(return_token_ids=True), {"token_ids", "prompt_token_ids"}),
}
TEXTS = {
    "plain": {"prompt": "once"},
    "several": {"prompt": ["once", "upon"], "n": 2},
    "logprobs": {"prompt": "once", "logprobs": 2},
    "echo": {"prompt": "once", "logprobs": 2, "echo": True},
}


def unknown(value, prefix=""):
    """Yield the locations of fields that a type does not have."""
    if isinstance(value, BaseModel):
        yield from (f"{prefix}{name}" for name in value.model_extra or ())
        for name in type(value).model_fields:
            yield from unknown(getattr(value, name), f"{prefix}{name}.")
    elif isinstance(value, list):
        for each in value:
            yield from unknown(each, prefix)


def checked(kind, content, ours=frozenset()):
    """Validate JSON strictly, and return it if each unknown field is one of ours."""
    value = TypeAdapter(kind).validate_json(content, strict=True)
    for field_path in unknown(value):
        assert field_path == IMAGES or field_path.rpartition(".")[2] in ours
    return value


def streamed(server, body, path, kind, ours=frozenset(), read=bytes):
    """Return the validated events of a stream."""
    stream = server.post(body | {"stream": True, "stream_options": {"include_usage": True}}, path)
    lines = [line for line in stream.content.split(b"\n") if line]
    assert lines.pop() == b"data: [DONE]"
    events = [checked(kind, read(line.removeprefix(b"data: ")), ours) for line in lines]
    assert all(event.usage is None for event in events[:-1])
    assert events[-1].usage.total_tokens > 0
    assert events[-1].choices == []
    return events


def as_typed(content):
    """Fill in values that OpenAI's older types require, though the API sends null.

    A choice of an event without a finish reason gets one, and a prompt's first token a logprob.
    """
    value = json.loads(content)
    for choice in value["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        for column in (choice["logprobs"] or {}).values():
            if column and column[0] is None:
                column.pop(0)
    return json.dumps(value)


@pytest.mark.parametrize("name", CHATS)
def test_chats_match_openais_types(server, name):
    body, ours = CHATS[name]
    whole = checked(ChatCompletion, server.post(body).content, ours)
    assert len(whole.choices) == body.get("n", 1)
    events = streamed(server, body, "/v1/chat/completions", ChatCompletionChunk, ours)
    reasons = [c.finish_reason for e in events for c in e.choices if c.finish_reason]
    assert reasons == [choice.finish_reason for choice in whole.choices]


@pytest.mark.parametrize("name", TEXTS)
def test_completions_match_openais_types(server, name):
    body = {"model": "mock"} | TEXTS[name]
    whole = checked(Completion, as_typed(server.post(body, "/v1/completions").content))
    events = streamed(server, body, "/v1/completions", Completion, read=as_typed)
    assert {c.index for e in events for c in e.choices} == {c.index for c in whole.choices}


RESPONSES = {
    "plain": {"input": "hello"},
    "logprobs": {
        "input": "hello",
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
    },
    "cut": {"input": "hello", "max_output_tokens": 2},
    "thought": {"input": scripted(text="so", reasoning="hm")},
    "tools": {
        "input": scripted(text="I look.", calls=CALLS),
        "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}],
    },
}


@pytest.mark.parametrize("name", RESPONSES)
def test_responses_match_openais_types(server, name):
    body = {"model": "mock"} | RESPONSES[name]
    # OpenAI's reference has "store" and an event's "name"; an event's token "bytes" are ours.
    ours = {"image_tokens", "image_tokens_each", "store", "name", "bytes"}
    whole = checked(Response, server.post(body, "/v1/responses").content, ours)
    stream = server.post(body | {"stream": True}, "/v1/responses").text
    data = [line.removeprefix("data: ") for line in stream.split("\n") if line.startswith("data: ")]
    events = [checked(ResponseStreamEvent, each, ours) for each in data]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert [item.type for item in events[-1].response.output] == [i.type for i in whole.output]


@pytest.mark.parametrize("body", [{"input": "a"}, {"input": ["a", "b"]}, {"input": [1, 2]}])
def test_embeddings_match_openais_types(server, body):
    answer = server.post({"model": "mock"} | body, "/v1/embeddings")
    value = checked(CreateEmbeddingResponse, answer.content, {"prompt_tokens_details"})
    assert value.data[0].embedding


def test_models_match_openais_types(server):
    ours = {"root", "state", "modalities", "max_model_len"}
    page = checked(SyncPage[Model], server.get("/v1/models").content, ours)
    assert page.data == [checked(Model, server.get("/v1/models/mock").content, ours)]


@pytest.mark.parametrize("body", [{}, {"model": "x", "messages": []}, chat(temperature=9)])
def test_errors_match_openais_types(server, body):
    answer = server.post(body).json()
    assert list(answer) == ["error"]
    checked(ErrorObject, json.dumps(answer["error"]))
