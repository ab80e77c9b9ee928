"""LiteLLM, by its provider for servers that speak OpenAI's API, and by the one for vLLM."""

import asyncio
import json

import litellm
import pytest
from pydantic import BaseModel

REPLIES = [
    {
        "to": "weather in Köln",
        "text": "I look.",
        "calls": [{"name": "weather", "arguments": {"city": "Köln"}}],
    },
    {"to": "sunny", "text": "It is sunny."},
    {"to": "as JSON", "text": '{"colour": "red", "count": 3}'},
    {"to": "think", "reasoning": "One, two.", "text": "Two."},
]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How the weather is.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class Shapes(BaseModel):
    colour: str
    count: int


@pytest.fixture(params=["openai", "hosted_vllm"])
def options(request, server):
    """What says which model is asked, and where."""
    return {"model": f"{request.param}/mock", "api_base": server.v1, "api_key": "none"}


def asked(text):
    return [{"role": "user", "content": text}]


def picture_and(text, url):
    parts = [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": url, "detail": "auto"}},
    ]
    return asked(parts)


def test_an_image_is_answered_whole_and_streamed(options, data_url):
    options |= {"model": options["model"].replace("mock", "demo"), "temperature": 0}
    messages = picture_and("What is in this picture?", data_url)
    whole = litellm.completion(messages=messages, **options)
    assert "circle" in whole.choices[0].message.content
    chunks = list(
        litellm.completion(
            messages=messages, stream=True, stream_options={"include_usage": True}, **options
        )
    )
    built = litellm.stream_chunk_builder(chunks, messages=messages)
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_tool_is_called_whole_and_streamed_and_its_result_is_read(options):
    messages = asked("How is the weather in Köln?")
    whole = litellm.completion(messages=messages, tools=[TOOL], **options).choices[0].message
    (call,) = whole.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Köln"}
    chunks = list(litellm.completion(messages=messages, tools=[TOOL], stream=True, **options))
    built = litellm.stream_chunk_builder(chunks).choices[0].message
    assert built.tool_calls[0].function.arguments == call.function.arguments
    result = {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "sunny"}
    answer = litellm.completion(messages=[*messages, whole, result], tools=[TOOL], **options)
    assert answer.choices[0].message.content == "It is sunny."


def test_a_schema_is_enforced(options):
    answer = litellm.completion(
        messages=asked("Tell it as JSON."), response_format=Shapes, **options
    )
    shapes = Shapes.model_validate_json(answer.choices[0].message.content)
    assert shapes == Shapes(colour="red", count=3)


def test_reasoning_is_separate_from_the_answer_and_may_be_sent_back(options):
    message = litellm.completion(messages=asked("think"), **options).choices[0].message
    assert (message.reasoning_content, message.content) == ("One, two.", "Two.")
    more = [*asked("think"), message, *asked("and then?")]
    answer = litellm.completion(messages=more, **options)
    assert answer.choices[0].message.content == "and then?"


def test_embeddings_are_returned(options):
    vectors = litellm.embedding(input=["one", "two"], **options).data
    assert [len(vector["embedding"]) for vector in vectors] == [8, 8]


def test_texts_are_completed(options):
    provider = options["model"].replace("openai", "text-completion-openai")
    answer = litellm.text_completion(prompt="abc", **options | {"model": provider})
    assert answer.choices[0].text == "abc"


def test_a_wrong_request_raises_the_error_of_its_type(options):
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=asked("x"), **options | {"model": "openai/other"})
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=asked("x"), temperature=3, **options)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=asked("x" * 40_000), **options)


def test_concurrent_requests_are_answered(options):
    async def answers():
        questions = [
            litellm.acompletion(messages=asked(f"number {n}"), **options) for n in range(16)
        ]
        return [each.choices[0].message.content for each in await asyncio.gather(*questions)]

    assert asyncio.run(answers()) == [f"number {n}" for n in range(16)]


def test_the_anthropic_api_is_answered(server, data_url):
    answer = litellm.completion(
        model="anthropic/demo",
        api_base=server.url,
        api_key="none",
        messages=picture_and("What is in this picture?", data_url),
        max_tokens=100,
        temperature=0,
    )
    assert "circle" in answer.choices[0].message.content


@pytest.mark.parametrize("provider", ["ollama", "ollama_chat"])
def test_ollamas_api_is_answered(server, data_url, provider):
    """LiteLLM sends its bodies without a media type."""
    options = {"model": f"{provider}/mock", "api_base": server.url}
    assert "abc" in litellm.completion(messages=asked("abc"), **options).choices[0].message.content
    shown = litellm.completion(messages=picture_and("abc", data_url), **options)
    assert "image 1: 336x336" in shown.choices[0].message.content
    chunks = litellm.completion(messages=asked("abc"), stream=True, **options)
    assert "abc" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=asked("x"), **options | {"model": f"{provider}/other"})


def test_a_tool_is_called_over_ollamas_api(server):
    answer = litellm.completion(
        model="ollama_chat/mock",
        api_base=server.url,
        messages=asked("How is the weather in Köln?"),
        tools=[TOOL],
    )
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Köln"}


@pytest.mark.parametrize(
    ("provider", "path"),
    [("hosted_vllm", ""), ("hosted_vllm", "/v1"), ("jina_ai", "/v1"), ("cohere", "")],
)
def test_documents_are_ranked(server, provider, path):
    options = {"api_base": f"{server.url}{path}", "api_key": "none"}
    body = {"query": "red", "documents": ["one", "two", "three"], "top_n": 2}
    found = litellm.rerank(model=f"{provider}/mock", **body, **options).results
    scores = [each["relevance_score"] for each in found]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    with pytest.raises(litellm.NotFoundError):
        litellm.rerank(model=f"{provider}/other", **body, **options)
