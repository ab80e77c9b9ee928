"""DSPy, by the language model that it has for all providers; its prompts are its own."""

import asyncio
import json

import dspy
import pytest

ANSWER = "[[ ## answer ## ]]\ntwo shapes\n\n[[ ## completed ## ]]"
REPLIES = [
    {
        "to": "weather in Köln",
        "calls": [{"name": "weather", "arguments": {"city": "Köln"}}],
    },
    {"to": "[[ ## answer ## ]]", "text": ANSWER},
    {
        "to": "[[ ## shapes ## ]]",
        "text": '[[ ## shapes ## ]]\n["red", "blue"]\n\n[[ ## completed ## ]]',
    },
    {"to": "JSON object", "text": json.dumps({"answer": "two shapes"})},
]


@pytest.fixture(scope="module")
def model(server):
    """Return a function that gives a model by its name."""

    def named(name, **options):
        return dspy.LM(f"openai/{name}", api_base=server.v1, api_key="none", cache=False, **options)

    return named


def test_a_model_is_called_directly(model):
    assert model("mock")("hello") == ["hello"]
    assert model("mock")("hello", n=2) == ["hello"] * 2


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()])
def test_a_signature_is_filled(model, adapter):
    with dspy.context(lm=model("mock"), adapter=adapter):
        assert dspy.Predict("question -> answer")(question="How many?").answer == "two shapes"


def test_a_type_is_filled(model):
    with dspy.context(lm=model("mock")):
        found = dspy.Predict("question -> shapes: list[str]")(question="Which?")
    assert found.shapes == ["red", "blue"]


def test_an_image_is_a_field_of_a_signature(model, data_url):
    with dspy.context(lm=model("mock")):
        asked = dspy.Predict("picture: dspy.Image, question -> answer")
        answer = asked(picture=dspy.Image(data_url), question="How many?")
        assert answer.answer == "two shapes"
        with pytest.raises(Exception, match="image"):
            asked(picture=dspy.Image("data:image/png;base64,AAAA"), question="How many?")


def test_an_answer_is_streamed(model):
    async def pieces():
        listener = dspy.streaming.StreamListener(signature_field_name="answer")
        program = dspy.streamify(dspy.Predict("question -> answer"), stream_listeners=[listener])
        with dspy.context(lm=model("mock")):
            return [piece async for piece in program(question="How many?")]

    *streamed, last = asyncio.run(pieces())
    assert last.answer == "two shapes"
    # It looks for its closing mark in the last ten pieces, where one of the mock is one letter.
    assert "".join(piece.chunk for piece in streamed).startswith("two shapes")


def test_a_wrong_request_raises_an_error(model):
    with pytest.raises(Exception, match="not served here"):
        model("other", num_retries=0)("x")


def test_embeddings_are_returned(server):
    embedder = dspy.Embedder("openai/mock", api_base=server.v1, api_key="none", caching=False)
    assert embedder(["one", "two"]).shape == (2, 8)
