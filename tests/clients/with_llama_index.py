"""LlamaIndex, by its classes for servers that speak OpenAI's API."""

import asyncio

import openai
import pytest
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


def calls(name, **arguments):
    return {"calls": [{"name": name, "arguments": arguments}]}


SHAPES = {"colour": "red", "count": 3}
REPLIES = [
    {"to": "weather in Köln"} | calls("weather", city="Köln"),
    {"to": "sunny", "text": "It is sunny."},
    {"to": "Which shapes", "text": '{"colour": "red", "count": 3}'} | calls("Shapes", **SHAPES),
]


class Shapes(BaseModel):
    """What shapes there are."""

    colour: str
    count: int


def weather(city: str) -> str:
    """Say how the weather is."""
    return f"sunny in {city}"


@pytest.fixture(scope="module")
def model(server):
    """Return a function that gives a model by its name."""

    def named(name, **options):
        options = {"is_chat_model": True, "is_function_calling_model": True} | options
        return OpenAILike(model=name, api_base=server.v1, api_key="none", **options)

    return named


def test_an_image_is_answered_whole_and_streamed(model, png):
    blocks = [ImageBlock(image=png), TextBlock(text="What is in this picture?")]
    messages = [ChatMessage(role="user", blocks=blocks)]
    demo = model("demo", temperature=0, max_tokens=100)
    whole = demo.chat(messages).message.content
    assert "circle" in whole
    assert "".join(part.delta for part in demo.stream_chat(messages)) == whole


def test_a_tool_is_called_whole_and_streamed_and_its_result_is_read(model):
    tool, mock = FunctionTool.from_defaults(weather), model("mock")
    answer = mock.chat_with_tools([tool], user_msg="How is the weather in Köln?")
    (call,) = mock.get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs) == ("weather", {"city": "Köln"})
    *_, last = mock.stream_chat_with_tools([tool], user_msg="How is the weather in Köln?")
    (streamed,) = mock.get_tool_calls_from_response(last)
    assert streamed.tool_kwargs == {"city": "Köln"}
    done = mock.predict_and_call([tool], user_msg="How is the weather in Köln?")
    assert str(done) == "sunny in Köln"


@pytest.mark.parametrize("has_calls", [True, False])
def test_tool_calls_and_schemas_return_the_requested_type(model, has_calls):
    options = {
        "is_function_calling_model": has_calls,
        "should_use_structured_outputs": not has_calls,
    }
    asker = model("mock", **options).as_structured_llm(Shapes)
    answer = asker.chat([ChatMessage(role="user", content="Which shapes?")])
    assert answer.raw == Shapes(**SHAPES)


def test_texts_are_completed_whole_and_streamed(model):
    plain = model("mock", is_chat_model=False)
    assert plain.complete("abc").text == "abc"
    assert "".join(part.delta for part in plain.stream_complete("abc")) == "abc"


def test_embeddings_are_returned(server):
    embedder = OpenAILikeEmbedding(model_name="mock", api_base=server.v1, api_key="none")
    vectors = embedder.get_text_embedding_batch(["one", "two"])
    assert [len(vector) for vector in vectors] == [8, 8]
    assert vectors[0] != vectors[1]


def test_a_wrong_request_raises_the_error_of_its_status(model):
    with pytest.raises(openai.NotFoundError):
        model("other").complete("x")
    with pytest.raises(openai.BadRequestError):
        model("mock").complete("x", top_p=3)


def test_concurrent_requests_are_answered(model):
    async def answers():
        mock = model("mock")
        found = await asyncio.gather(*(mock.acomplete(f"number {n}") for n in range(16)))
        return [each.text for each in found]

    assert asyncio.run(answers()) == [f"number {n}" for n in range(16)]
