"""The functions by which ``vllm bench serve`` asks a server; vLLM itself computes nothing here."""

import asyncio

import aiohttp
import pytest
from vllm.benchmarks.lib.endpoint_request_func import ASYNC_REQUEST_FUNCS, RequestFuncInput

REPLIES = [{"to": "Fail", "fail_at_token": 0}]
TEXTS = {
    "vllm": "completions",
    "openai": "completions",
    "openai-chat": "chat/completions",
    "openai-responses": "responses",
}
VECTORS = {
    "openai-embeddings": "embeddings",
    "openai-embeddings-chat": "embeddings",
    "openai-embeddings-clip": "embeddings",
    "openai-embeddings-vlm2vec": "embeddings",
}


@pytest.fixture
def ask(server):
    """Return a function that asks by one of the functions and returns what it reports."""

    def run(name, path, prompt, *, model="mock", most=64, picture=None):
        asked = RequestFuncInput(
            prompt=prompt,
            api_url=f"{server.v1}/{path}",
            prompt_len=len(prompt),
            output_len=most,
            model=model,
            multi_modal_content=picture,
            extra_body={"temperature": 0} if name in TEXTS else None,
        )

        async def answered():
            async with aiohttp.ClientSession() as session:
                return await ASYNC_REQUEST_FUNCS[name](asked, session)

        return asyncio.run(answered())

    return run


@pytest.mark.parametrize(("name", "path"), TEXTS.items())
def test_a_text_is_answered_and_its_tokens_are_counted(ask, name, path):
    told = ask(name, path, "hello")
    assert (told.success, told.error, told.generated_text) == (True, "", "hello")
    assert told.output_tokens == 6  # a token of the mock is a byte, and one ends the answer


@pytest.mark.parametrize(("name", "path"), TEXTS.items())
def test_an_answer_has_the_requested_length(ask, name, path):
    told = ask(name, path, "hello", most=3)
    assert (told.success, told.generated_text, told.output_tokens) == (True, "hel", 3)


def test_an_image_is_answered(ask, data_url):
    picture = {"type": "image_url", "image_url": {"url": data_url}}
    question = ("openai-chat", "chat/completions", "What is in this picture?")
    told = ask(*question, model="demo", picture=picture)
    assert "circle" in told.generated_text


@pytest.mark.parametrize(("name", "path"), VECTORS.items())
def test_embeddings_of_texts_are_returned(ask, name, path):
    told = ask(name, path, "hello")
    assert (told.success, told.error) == (True, "")
    assert told.prompt_len >= len("hello")


@pytest.mark.parametrize("name", ["openai-embeddings-chat", "openai-embeddings-clip"])
def test_embeddings_of_images_are_returned(ask, name, data_url):
    picture = {"type": "image_url", "image_url": {"url": data_url}}
    told = ask(name, "embeddings", "hello", model="mock", picture=picture)
    assert (told.success, told.error) == (True, "")


@pytest.mark.parametrize(("name", "path"), TEXTS.items())
def test_a_failed_answer_is_reported(ask, name, path):
    told = ask(name, path, "Fail")
    assert not told.success
    assert told.error
