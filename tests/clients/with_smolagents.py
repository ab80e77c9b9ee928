"""Smolagents: its model for OpenAI's API, and agents that call tools and write programs."""

import io

import pytest
from PIL import Image
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

CODE = "Thought: I add.\n<code>\nfinal_answer(3 + 4)\n</code>"
REPLIES = [
    {"to": "sunny", "calls": [{"name": "final_answer", "arguments": {"answer": "It is sunny."}}]},
    {
        "to": "weather in Köln",
        "text": "I look.",
        "calls": [{"name": "weather", "arguments": {"city": "Köln"}}],
    },
    {"to": "What is 3 + 4", "text": CODE},
    {"to": "What is 5 + 6", "text": '{"thought": "I add.", "code": "final_answer(5 + 6)"}'},
]


@tool
def weather(city: str) -> str:
    """Say how the weather is.

    Args:
        city: where.
    """
    return f"sunny in {city}"


@pytest.fixture(scope="module")
def model(server):
    """Return a function that gives a model by its name."""
    return lambda name, **options: OpenAIModel(
        model_id=name, api_base=server.v1, api_key="none", **options
    )


def said(*content):
    return [{"role": "user", "content": list(content)}]


def test_an_image_is_answered_whole_and_streamed(model, png):
    picture = {"type": "image", "image": Image.open(io.BytesIO(png))}
    messages = said(picture, {"type": "text", "text": "What is in this picture?"})
    demo = model("demo", temperature=0, max_tokens=100)
    whole = demo.generate(messages).content
    assert "circle" in whole
    assert "".join(part.content or "" for part in demo.generate_stream(messages)) == whole


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_agent_calls_a_tool_and_reads_its_result(model, is_streamed):
    agent = ToolCallingAgent(
        tools=[weather], model=model("mock"), max_steps=3, stream_outputs=is_streamed
    )
    assert agent.run("How is the weather in Köln?") == "It is sunny."


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_agent_writes_a_program(model, is_streamed):
    agent = CodeAgent(tools=[], model=model("mock"), max_steps=2, stream_outputs=is_streamed)
    assert agent.run("What is 3 + 4?") == 7


def test_an_agent_sees_an_image(model, png):
    agent = CodeAgent(tools=[], model=model("mock"), max_steps=2)
    answer = agent.run("What is 3 + 4?", images=[Image.open(io.BytesIO(png))])
    assert answer == 7


def test_an_agent_writes_a_program_that_matches_a_schema(model):
    agent = CodeAgent(
        tools=[], model=model("mock"), max_steps=2, use_structured_outputs_internally=True
    )
    assert agent.run("What is 5 + 6?") == 11
