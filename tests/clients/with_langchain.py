"""LangChain's clients of OpenAI's API, by the standard tests that LangChain has for them."""

import json
from types import SimpleNamespace

import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import (
    ChatModelIntegrationTests,
    EmbeddingsIntegrationTests,
    chat_models,
)


def calls(name, **arguments):
    return {"calls": [{"name": name, "arguments": arguments}]}


JOKE = {"setup": "What purrs?", "punchline": "A cat."}
REPLIES = [
    {"to": "magic_function(3)"} | calls("magic_function", input=3),
    {"to": "magic_function_no_args()"} | calls("magic_function_no_args"),
    {"to": "Pirate greeting"} | calls("greeting_generator", answer_style="pirate"),
    {"to": "What is 3 + 4"} | calls("my_adder_tool", a=3, b=4),
    {"to": "weather in San Francisco"} | calls("get_weather", location="San Francisco"),
    {"to": "你好啊集团"} | calls("unicode_customer", customer_name="你好啊集团", description="..."),
    {"to": "こんにちは"} | calls("unicode_customer", customer_name="こんにちは", description="..."),
    {"to": "Hello!"} | calls("magic_function", input=1),
    {"to": "joke about cats", "text": json.dumps(JOKE)} | calls("Joke", **JOKE),
]


@pytest.fixture(autouse=True)
def _server(server, png, monkeypatch):
    """Ask this server; show a picture of this project in place of one that would be fetched."""
    monkeypatch.setenv("OPENAI_BASE_URL", server.v1)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr(chat_models.httpx, "get", lambda *_, **__: SimpleNamespace(content=png))


class TestChatModel(ChatModelIntegrationTests):
    chat_model_class = ChatOpenAI
    chat_model_params = {"model": "mock", "stream_usage": True}  # noqa: RUF012 - as it is there
    supports_image_inputs = True
    supports_image_tool_message = True
    supports_anthropic_inputs = True
    supports_json_mode = True
    supports_model_override = True
    model_override_value = "demo"


class TestResponses(TestChatModel):
    chat_model_params = {"model": "mock", "use_responses_api": True}  # noqa: RUF012


class TestEmbeddings(EmbeddingsIntegrationTests):
    embeddings_class = OpenAIEmbeddings
    # The client would send tokens of OpenAI's own models, unless told to send texts.
    embedding_model_params = {  # noqa: RUF012 - as it is there
        "model": "mock",
        "check_embedding_ctx_length": False,
    }


def test_an_image_is_answered_in_a_stream(server, data_url):
    model = ChatOpenAI(model="demo", temperature=0)
    parts = [
        {"type": "text", "text": "What is in this picture?"},
        {"type": "image_url", "image_url": {"url": data_url}},
    ]
    whole = model.invoke([("user", parts)]).text
    assert "circle" in whole
    assert "".join(chunk.text for chunk in model.stream([("user", parts)])) == whole
