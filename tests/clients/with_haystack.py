"""Haystack, by its components for OpenAI's API."""

import openai
import pytest
from haystack.components.agents import Agent
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, Document, ImageContent
from haystack.tools import tool
from haystack.utils import Secret
from pydantic import BaseModel

REPLIES = [
    {
        "to": "weather in Köln",
        "text": "I look.",
        "calls": [{"name": "weather", "arguments": {"city": "Köln"}}],
    },
    {"to": "sunny", "text": "It is sunny."},
    {"to": "as JSON", "text": '{"colour": "red", "count": 3}'},
]
KEY = Secret.from_token("none")


class Shapes(BaseModel):
    colour: str
    count: int


@tool
def weather(city: str) -> str:
    """Say how the weather is."""
    return f"sunny in {city}"


@pytest.fixture(scope="module")
def generator(server):
    """Return a function that gives a generator by the name of its model."""

    def named(name, **options):
        return OpenAIChatGenerator(model=name, api_base_url=server.v1, api_key=KEY, **options)

    return named


def test_an_image_is_answered_whole_and_streamed(generator, png, tmp_path):
    (tmp_path / "shapes.png").write_bytes(png)
    parts = [ImageContent.from_file_path(tmp_path / "shapes.png"), "What is in this picture?"]
    messages = [ChatMessage.from_user(content_parts=parts)]
    demo = generator("demo", generation_kwargs={"temperature": 0, "max_completion_tokens": 100})
    whole = demo.run(messages)["replies"][0].text
    assert "circle" in whole
    pieces = []
    streamed = demo.run(messages, streaming_callback=lambda part: pieces.append(part.content))
    assert "".join(pieces) == streamed["replies"][0].text == whole


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_agent_calls_a_tool_and_reads_its_result(generator, is_streamed):
    pieces = []
    callback = (lambda part: pieces.append(part.content)) if is_streamed else None
    agent = Agent(chat_generator=generator("mock"), tools=[weather], streaming_callback=callback)
    messages = [ChatMessage.from_user("How is the weather in Köln?")]
    answer = agent.run(messages=messages)
    assert answer["last_message"].text == "It is sunny."
    assert bool(pieces) == is_streamed


def test_an_answer_has_the_requested_type(generator):
    asker = generator("mock", generation_kwargs={"response_format": Shapes})
    (reply,) = asker.run([ChatMessage.from_user("Tell it as JSON.")])["replies"]
    assert Shapes.model_validate_json(reply.text) == Shapes(colour="red", count=3)


def test_embeddings_are_returned(server):
    options = {"model": "mock", "api_base_url": server.v1, "api_key": KEY}
    assert len(OpenAITextEmbedder(**options).run("one")["embedding"]) == 8
    documents = [Document(content="one"), Document(content="two")]
    found = OpenAIDocumentEmbedder(**options).run(documents)["documents"]
    assert [len(document.embedding) for document in found] == [8, 8]


def test_a_wrong_request_raises_the_error_of_its_status(generator):
    with pytest.raises(openai.NotFoundError):
        generator("other").run([ChatMessage.from_user("x")])
    hot = generator("mock", generation_kwargs={"temperature": 3})
    with pytest.raises(openai.BadRequestError):
        hot.run([ChatMessage.from_user("x")])


async def test_asynchronous_requests_are_answered(generator):
    answer = await generator("mock").run_async([ChatMessage.from_user("hello")])
    assert answer["replies"][0].text == "hello"
