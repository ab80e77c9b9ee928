"""The chat API as the official client sees it."""

import asyncio
import json
import re

import openai
import pytest
from running_server import chat, image_part, image_url, mock_pipeline, running, scripted

from vlmkit.settings.pipeline import PipelineSettings


def ask(server, text="hello", **options):
    return server.client().chat.completions.create(
        model="mock", messages=[{"role": "user", "content": text}], **options
    )


def events(server, body):
    """Return the decoded events of a stream, without the last."""
    lines = [line for line in server.post(body | {"stream": True}).text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_an_answer_has_text_reason_and_usage(server):
    answer = ask(server, scripted(text="four"))
    (choice,) = answer.choices
    assert choice.message.content == "four"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.model == "mock"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5


@pytest.mark.parametrize(
    ("path", "extra"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/responses", {"input": "hello", "messages": None}),
        ("/v1/messages", {"max_tokens": 9}),
    ],
)
def test_a_stream_asks_proxies_not_to_buffer_or_store_it(server, path, extra):
    body = chat() | extra | {"stream": True}
    body = {name: value for name, value in body.items() if value is not None}
    answer = server.post(body, path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-cache"


def test_a_stream_holds_the_same_text_as_a_whole_answer(server):
    text = scripted(text="né 🙂 end")
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(server, text, stream=True)]
    assert "".join(pieces) == ask(server, text).choices[0].message.content == "né 🙂 end"


def test_a_stream_opens_with_the_role_and_ends_with_the_reason(server):
    first, *middle, last = events(server, chat(scripted(text="ab")))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [event["choices"][0]["delta"] for event in middle] == [
        {"content": "a"},
        {"content": "b"},
    ]
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert "usage" not in first


def test_usage_is_sent_in_a_last_chunk_without_choices_only_on_request(server):
    body = chat(scripted(text="ab"), stream_options={"include_usage": True})
    *others, last = events(server, body)
    assert all(event["usage"] is None for event in others)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3


def test_all_chunks_of_an_answer_share_id_and_time(server):
    chunks = list(ask(server, stream=True))
    assert len({(chunk.id, chunk.created, chunk.system_fingerprint) for chunk in chunks}) == 1


def test_choices_have_their_own_indices_and_texts_whole_and_streamed(server):
    options = {"n": 3, "temperature": 2.0, "seed": 1, "logit_bias": {"97": 100, "98": 100}}
    answer = ask(server, max_tokens=8, **options)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    streamed = {0: "", 1: "", 2: ""}
    for chunk in ask(server, max_tokens=8, stream=True, **options):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == {choice.index: choice.message.content for choice in answer.choices}
    assert len(set(streamed.values())) > 1


def test_choices_of_consecutive_seeds_all_differ(server):
    options = {"temperature": 2.0, "max_tokens": 24, "extra_body": {"ignore_eos": True}}
    options["logit_bias"] = dict.fromkeys(map(str, range(100, 108)), 100)
    question = scripted(text="abc", tokens=400)
    texts = [
        choice.message.content
        for seed in (7, 8, 9)
        for choice in ask(server, question, n=3, seed=seed, **options).choices
    ]
    assert len(set(texts)) == 9
    assert ask(server, question, seed=8, **options).choices[0].message.content == texts[3]


def test_stop_strings_end_an_answer_and_are_not_in_its_text(server):
    for stop in ("cd", ["zz", "cd"]):
        answer = ask(server, scripted(text="abcdef"), stop=stop)
        assert answer.choices[0].message.content == "ab"
        assert answer.choices[0].finish_reason == "stop"
    pieces = ask(server, scripted(text="abcdef"), stop=["cd"], stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == "ab"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_length_limit_are_supported(server, field):
    answer = ask(server, scripted(text="abcdef"), **{field: 2})
    assert answer.choices[0].message.content == "ab"
    assert answer.choices[0].finish_reason == "length"


def test_logprobs_contain_each_token_and_its_alternatives(server):
    answer = ask(server, scripted(text="é!"), logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert [entry.bytes for entry in content] == [[0xC3], [0xA9], [0x21]]
    assert content[2].token == "!"
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in content)


def test_a_stream_with_logprobs_has_a_chunk_for_each_token(server):
    chunks = [
        chunk.choices[0]
        for chunk in ask(server, scripted(text="é!"), logprobs=True, stream=True)
        if chunk.choices[0].logprobs
    ]
    assert [chunk.logprobs.content[0].bytes for chunk in chunks] == [[0xC3], [0xA9], [0x21]]
    assert [chunk.delta.content for chunk in chunks] == ["", "é", "!"]


def test_images_are_encoded_in_order_and_counted(server):
    parts = [
        {"type": "text", "text": "what?"},
        image_part(image_url(8, 6)),
        image_part(image_url(20, 10)),
    ]
    answer = server.client().chat.completions.create(
        model="mock", messages=[{"role": "user", "content": parts}]
    )
    first, second, said = answer.choices[0].message.content.split("\n")
    assert first.startswith("image 1: 8x6 ")
    assert second.startswith("image 2: 20x10 ")
    assert said == "what?"
    details = answer.usage.prompt_tokens_details
    assert details.image_tokens == 8
    assert details.image_tokens_each == [4, 4]


def test_an_answer_can_be_sent_back_unchanged(server):
    first = ask(server, "one")
    answer = server.client().chat.completions.create(
        model="mock",
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": "one"},
            first.choices[0].message,
            first.choices[0].message.model_dump(),
            {"role": "tool", "tool_call_id": "call_1", "content": "2"},
            {"role": "user", "content": [{"type": "text", "text": "two"}]},
        ],
    )
    assert answer.choices[0].message.content == "two"


def test_a_repeated_prompt_is_reported_as_cached(server):
    text = "x" * 100
    ask(server, text)
    assert ask(server, text).usage.prompt_tokens_details.cached_tokens >= 64


def test_parameters_beyond_the_openai_api_have_an_effect(server):
    extra = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.1, "priority": 3}
    answer = ask(
        server, scripted(text="ab"), extra_body=extra | {"min_tokens": 4, "ignore_eos": True},
        max_tokens=6, temperature=1.0,
    )  # fmt: skip
    assert answer.usage.completion_tokens == 6
    assert answer.choices[0].finish_reason == "length"


def test_answers_that_are_not_streamed_have_a_server_timing_header(server):
    header = server.post(chat()).headers["server-timing"]
    assert [span.split(";")[0] for span in header.split(", ")] == [
        "images", "prompt", "queue", "first_token", "decode",
    ]  # fmt: skip


def test_a_valid_request_id_is_returned_and_an_invalid_one_is_replaced(server):
    assert server.post(chat(), headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for strange in ("a b", "x" * 129, "<script>"):
        given = server.post(chat(), headers={"x-request-id": strange}).headers["x-request-id"]
        assert given != strange
        assert given.startswith("req-")
    assert (
        server.get("/nowhere", headers={"x-request-id": "abc-2"}).headers["x-request-id"] == "abc-2"
    )


def test_models_can_be_listed_and_retrieved(server):
    client = server.client()
    (model,) = client.models.list()
    assert model.id == "mock"
    assert model.created < 10**10
    assert model.modalities == ["text", "image"]
    assert client.models.retrieve("mock") == model
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("org/other")
    assert caught.value.code == "model_not_found"


def test_an_unknown_model_is_not_found(server):
    with pytest.raises(openai.NotFoundError) as caught:
        server.client().chat.completions.create(
            model="other", messages=[{"role": "user", "content": "x"}]
        )
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "other" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "limit", "param", "problem"),
    [
        ("x" * 40_000, {}, "messages", r"your messages resulted in 4\d{4} tokens"),
        ("x" * 2_000_001, {}, "messages", "the text is over 2000000 characters"),
    ],
)
def test_a_prompt_over_the_context_length_is_refused_in_words_of_openai(
    server, text, limit, param, problem
):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(server, text, stream=stream, **limit)
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param == param
        words = f"This model's maximum context length is 32768 tokens. However, .*{problem}"
        assert re.match(words, caught.value.body["message"])


def test_an_answer_may_fill_the_context_unless_the_operator_limits_it():
    text = scripted(text="ab", tokens=900)
    with running({"mock": mock_pipeline(max_sequence_tokens=2048)}) as server:
        for limit in ({}, {"max_tokens": 1900}):
            answer = ask(server, text, **limit)
            assert answer.choices[0].message.content == "ab" * 450
            assert answer.choices[0].finish_reason == "stop"
        endless = ask(server, scripted(text="x", tokens=10**6))
        assert endless.usage.total_tokens == 2048
        assert endless.choices[0].finish_reason == "length"
    bounded = mock_pipeline(settings=PipelineSettings(max_output_tokens=5))
    with running({"mock": bounded}) as other:
        assert ask(other, text).usage.completion_tokens == 5


def test_async_clients_stream_concurrently(server):
    async def answer(client, number):
        stream = await client.chat.completions.create(
            model="mock",
            messages=[{"role": "user", "content": f"number {number}"}],
            stream=True,
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def answers():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(answer(client, number) for number in range(32)))

    assert asyncio.run(answers()) == [f"number {number}" for number in range(32)]


def test_an_engine_error_in_a_stream_reaches_its_client_alone(server):
    neighbour = ask(server, scripted(text="n" * 200, latency_s=0.002), stream=True)
    next(neighbour)
    seen = ""
    with pytest.raises(openai.APIError) as caught:  # noqa: PT012
        for chunk in ask(server, scripted(text="abcdef", fail_at_token=3), stream=True):
            seen += chunk.choices[0].delta.content or ""
    assert seen == "abc"
    assert caught.value.body["type"] == "server_error"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in neighbour) == "n" * 200


def test_an_engine_error_of_a_whole_answer_is_a_500_in_openai_format(server):
    with pytest.raises(openai.InternalServerError) as caught:
        ask(server, scripted(text="abcdef", fail_at_token=3))
    assert caught.value.body["code"] == "engine_error"


def test_the_log_contains_the_id_of_a_failed_request(server, caplog):
    for stream in (True, False):
        body = chat(scripted(text="abcdef", fail_at_token=3), stream=stream)
        server.post(body, headers={"x-request-id": f"failing-{stream}"})
        assert f"request failing-{stream} of api 'openai-chat' failed" in caplog.text


def test_an_idle_stream_has_keepalive_comments():
    with running(keepalive_s=0.05) as server:
        text = server.post(chat(scripted(text="a", prefill_latency_s=0.5), stream=True)).text
        assert ": ping\n\n" in text
        assert text.endswith("data: [DONE]\n\n")
        pieces = ask(server, scripted(text="a", prefill_latency_s=0.5), stream=True)
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "a"


def test_two_models_are_served_together():
    small = mock_pipeline(settings=PipelineSettings(max_output_tokens=2))
    with running({"org/small": small, "mock": mock_pipeline()}) as server:
        assert [model.id for model in server.client().models.list()] == ["org/small", "mock"]
        assert server.client().models.retrieve("org/small").id == "org/small"
        body = chat("hello") | {"model": "org/small"}
        assert server.post(body).json()["choices"][0]["message"]["content"] == "he"
