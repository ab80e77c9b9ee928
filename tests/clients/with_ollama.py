"""The client of Ollama for Python; the server has vlmkit-ollama."""

import ollama
import pytest
from pydantic import BaseModel

REPLIES = [
    {"to": "sunny", "text": "It is sunny."},
    {
        "to": "in Köln",
        "text": "I look.",
        "calls": [{"name": "weather", "arguments": {"city": "Köln"}}],
    },
    {"to": "as JSON", "text": '{"colour": "red", "count": 3}'},
    {"to": "think", "reasoning": "Let me see.", "text": "Yes."},
]
QUESTION = "What is in this picture?"


class Shapes(BaseModel):
    colour: str
    count: int


def weather(city: str) -> str:
    """Say how the weather is.

    Args:
        city: the name of a city.
    """
    return f"sunny in {city}"


@pytest.fixture(scope="module")
def client(server):
    with ollama.Client(server.url) as client:
        yield client


def user(text, **fields):
    return {"role": "user", "content": text} | fields


def test_an_image_is_answered_whole_and_streamed(client, png):
    messages, options = [user(QUESTION, images=[png])], {"temperature": 0, "num_predict": 100}
    whole = client.chat("demo", messages, options=options).message.content
    assert "circle" in whole
    pieces = client.chat("demo", messages, options=options, stream=True)
    assert "".join(piece.message.content for piece in pieces) == whole
    assert client.generate("demo", QUESTION, images=[png], options=options).response == whole


@pytest.mark.parametrize("streams", [False, True])
def test_a_tool_is_called_and_its_result_is_answered(client, streams):
    messages = [user("How is the weather in Köln?")]
    answer = client.chat("mock", messages, tools=[weather], stream=streams)
    answers = [*answer] if streams else [answer]
    (call,) = [call for each in answers for call in each.message.tool_calls or ()]
    messages.append({"role": "assistant", "content": "I look.", "tool_calls": [call]})
    result = weather(**call.function.arguments)
    messages.append({"role": "tool", "tool_name": "weather", "content": result})
    assert client.chat("mock", messages, tools=[weather]).message.content == "It is sunny."


def test_an_answer_has_the_requested_type(client):
    answer = client.chat("mock", [user("Tell it as JSON.")], format=Shapes.model_json_schema())
    assert Shapes.model_validate_json(answer.message.content) == Shapes(colour="red", count=3)


def test_reasoning_is_apart_from_the_answer(client):
    answer = client.chat("mock", [user("think")], think=True).message
    assert (answer.thinking, answer.content) == ("Let me see.", "Yes.")


def test_embeddings_are_returned(client):
    assert [len(each) for each in client.embed("mock", ["one", "two"]).embeddings] == [8, 8]


def test_models_are_listed_and_described(client):
    assert {model.model for model in client.list().models} == {"demo", "mock"}
    assert "vision" in client.show("demo").capabilities


def test_a_wrong_request_raises_an_error_with_its_status(client):
    for status, ask in (
        (404, lambda: client.chat("other", [user("x")])),
        (400, lambda: client.chat("mock", [user("x")], options={"temperature": 3})),
    ):
        with pytest.raises(ollama.ResponseError) as refused:
            ask()
        assert refused.value.status_code == status
