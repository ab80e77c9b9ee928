"""OpenAI's Agents SDK, which speaks the Responses API."""

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
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
    {"to": "Who am I", "text": "You are you."},
]


class Shapes(BaseModel):
    colour: str
    count: int


@function_tool
def weather(city: str) -> str:
    """Tell how the weather is.

    Args:
        city: where.
    """
    return f"{city}: sunny"


@pytest.fixture
async def model(server):
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0) as client:
        yield lambda name: OpenAIResponsesModel(name, client)


def asked(text, url):
    """A question about a picture."""
    content = [
        {"type": "input_image", "image_url": url, "detail": "auto"},
        {"type": "input_text", "text": text},
    ]
    return [{"role": "user", "content": content}]


async def test_an_image_is_answered_whole_and_streamed(model, data_url):
    settings = ModelSettings(temperature=0, max_tokens=100)
    agent = Agent("seer", model=model("demo"), model_settings=settings)
    question = asked("What is in this picture?", data_url)
    whole = (await Runner.run(agent, question)).final_output
    assert "circle" in whole
    streamed = Runner.run_streamed(agent, question)
    deltas = [
        event.data.delta
        async for event in streamed.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(deltas) == streamed.final_output == whole


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_agent_calls_its_tool_and_reads_its_result(model, is_streamed):
    agent = Agent("forecaster", model=model("mock"), tools=[weather])
    if is_streamed:
        result = Runner.run_streamed(agent, "How is the weather in Köln?")
        names = [e.name async for e in result.stream_events() if e.type == "run_item_stream_event"]
        assert names == [
            "message_output_created",
            "tool_called",
            "tool_output",
            "message_output_created",
        ]
    else:
        result = await Runner.run(agent, "How is the weather in Köln?")
    assert result.final_output == "It is sunny."


async def test_an_answer_has_the_requested_type(model):
    agent = Agent("counter", model=model("mock"), output_type=Shapes)
    result = await Runner.run(agent, "Tell it as JSON.")
    assert result.final_output == Shapes(colour="red", count=3)


async def test_reasoning_is_sent_back(model):
    agent = Agent("thinker", model=model("mock"))
    first = await Runner.run(agent, "think")
    assert first.final_output == "Two."
    kinds = [item.type for item in first.new_items]
    assert kinds == ["reasoning_item", "message_output_item"]
    following = [*first.to_input_list(), {"role": "user", "content": "Who am I?"}]
    assert (await Runner.run(agent, following)).final_output == "You are you."


async def test_a_conversation_continues_from_stored_responses(model):
    agent = Agent("forecaster", model=model("mock"), tools=[weather])
    first = await Runner.run(agent, "How is the weather in Köln?", auto_previous_response_id=True)
    assert first.final_output == "It is sunny."
    second = await Runner.run(agent, "Who am I?", previous_response_id=first.last_response_id)
    assert second.final_output == "You are you."


async def test_one_agent_hands_over_to_another(model):
    first = Agent("first", model=model("mock"), handoffs=[Agent("second", model=model("mock"))])
    assert (await Runner.run(first, "Who am I?")).final_output == "You are you."
