"""Pydantic AI, by its models for both of OpenAI's APIs and for Anthropic's."""

import asyncio
import json

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    BinaryContent,
    ModelHTTPError,
    NativeOutput,
    PromptedOutput,
    ToolOutput,
)
from pydantic_ai.embeddings import Embedder
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def calls(name, **arguments):
    return {"calls": [{"name": name, "arguments": arguments}]}


SHAPES = {"colour": "red", "count": 3}
REPLIES = [
    {"to": "weather in Köln"} | calls("weather", city="Köln"),
    {"to": "sunny", "text": "It is sunny."},
    {"to": "Which shapes"} | calls("final_result", **SHAPES),
    {"to": "as JSON", "text": json.dumps(SHAPES)},
    {"to": "think", "reasoning": "One, two.", "text": "Two."},
]


class Shapes(BaseModel):
    """What shapes there are."""

    colour: str
    count: int


@pytest.fixture(params=["openai", "responses", "anthropic"])
def model(request, server):
    """Return a function that gives a model of one of the APIs by its name."""
    if request.param != "anthropic":
        kind = OpenAIChatModel if request.param == "openai" else OpenAIResponsesModel
        provider = OpenAIProvider(base_url=server.v1, api_key="none")
        return lambda name: kind(name, provider=provider)
    provider = AnthropicProvider(base_url=server.url, api_key="none")
    # What it thinks a model can do it reads off Anthropic's names.
    profile = ModelProfile(supports_json_schema_output=True)
    return lambda name: AnthropicModel(name, provider=provider, profile=profile)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_image_is_answered(model, png, is_streamed):
    agent = Agent(model("demo"), model_settings={"max_tokens": 100})
    asked = ["What is in this picture?", BinaryContent(png, media_type="image/png")]
    if not is_streamed:
        assert (await agent.run(asked)).output
        return
    async with agent.run_stream(asked) as streamed:
        pieces = [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_tool_is_called_and_its_result_is_read(model, is_streamed):
    agent = Agent(model("mock"))
    asked = []

    @agent.tool_plain
    def weather(city: str) -> str:
        """Say how the weather is."""
        asked.append(city)
        return "sunny"

    if is_streamed:
        async with agent.run_stream("How is the weather in Köln?") as streamed:
            output = await streamed.get_output()
    else:
        output = (await agent.run("How is the weather in Köln?")).output
    assert (asked, output) == (["Köln"], "It is sunny.")


@pytest.mark.parametrize("way", [ToolOutput, NativeOutput, PromptedOutput])
async def test_each_output_mode_returns_the_type(model, way):
    agent = Agent(model("mock"), output_type=way(Shapes))
    question = "Which shapes?" if way is ToolOutput else "Tell the shapes as JSON."
    assert (await agent.run(question)).output == Shapes(**SHAPES)


async def test_thinking_is_separate_from_the_answer_and_may_be_sent_back(model):
    agent = Agent(model("mock"))
    first = await agent.run("think")
    assert first.output == "Two."
    (thought,) = [part for part in first.response.parts if part.part_kind == "thinking"]
    # What the Responses API calls reasoning text, this client keeps beside its own summaries.
    raw = (thought.provider_details or {}).get("raw_content")
    assert (raw or [thought.content]) == ["One, two."]
    more = await agent.run("and then?", message_history=first.all_messages())
    assert more.output == "and then?"


async def test_a_wrong_request_raises_an_error_with_its_status(model):
    with pytest.raises(ModelHTTPError) as unknown:
        await Agent(model("other")).run("x")
    assert unknown.value.status_code == 404
    with pytest.raises(ModelHTTPError) as broken:
        await Agent(model("mock")).run(["x", BinaryContent(b"AAAA", media_type="image/png")])
    assert broken.value.status_code == 400


async def test_concurrent_requests_are_answered(model):
    agent = Agent(model("mock"))
    results = await asyncio.gather(*(agent.run(f"number {n}") for n in range(16)))
    assert [result.output for result in results] == [f"number {n}" for n in range(16)]


async def test_embeddings_are_returned(server):
    provider = OpenAIProvider(base_url=server.v1, api_key="none")
    embedder = Embedder(OpenAIEmbeddingModel("mock", provider=provider))
    found = await embedder.embed_documents(["one", "two"])
    assert [len(vector) for vector in found.embeddings] == [8, 8]
