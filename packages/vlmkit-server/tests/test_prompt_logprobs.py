"""Prompt logprobs in vLLM's format: equal to the Python API's, and limited."""

import openai
import pytest
from running_server import chat, image_part, image_url, running

from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit_server.conversation import prompt_scorer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def scores(server, ids, num_top):
    """Return the Python API's logprobs of tokens, each given those before it."""
    request = Request(
        token_ids=ids[:1],
        task="score",
        continuations=[ids[1:]],
        params=SamplingParams(logprobs=True, top_logprobs=num_top),
    )
    return server.runner().submit(request).result().choices[0].samples


def check(logprobs, ids, samples, num_top):
    assert logprobs[0] is None
    for entries, token_id, sample in zip(logprobs[1:], ids[1:], samples, strict=True):
        own = entries[str(token_id)]
        assert own["logprob"] == sample.logprob
        assert own["decoded_token"] == (chr(token_id) if token_id < 128 else "")
        ranked = {e["rank"]: (int(i), e["logprob"]) for i, e in entries.items() if e["rank"]}
        assert [ranked[rank] for rank in range(1, num_top + 1)] == [
            (e.token_id, e.logprob) for e in sample.top
        ]
        assert own["rank"] == sample.rank >= 1
        assert len(entries) == num_top + (token_id not in [e.token_id for e in sample.top])


@pytest.mark.parametrize("num_top", [0, 1, 3])
def test_prompt_logprobs_of_a_chat_equal_those_of_the_python_api(server, num_top):
    client = server.client()
    messages = [{"role": "user", "content": "a tree"}]
    options = {"prompt_logprobs": num_top, "return_token_ids": True}
    answer = client.chat.completions.create(
        model="mock", messages=messages, max_tokens=2, n=2, extra_body=options
    )
    ids = answer.prompt_token_ids
    check(answer.prompt_logprobs, ids, scores(server, ids, num_top), num_top)
    plain = server.post(chat("a tree", max_tokens=2)).json()
    assert answer.choices[0].message.content == plain["choices"][0]["message"]["content"]
    assert answer.usage.prompt_tokens == plain["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in plain


def test_image_tokens_have_no_prompt_logprobs_and_later_tokens_have(server):
    parts = [image_part(image_url()), {"type": "text", "text": "a"}]
    sent = chat(prompt_logprobs=1, return_token_ids=True, max_tokens=1)
    sent["messages"] = [{"role": "user", "content": parts}]
    answer = server.post(sent).json()
    (image,) = server.post({"messages": sent["messages"]}, "/tokenize").json()["image_tokens_each"]
    logprobs = answer["prompt_logprobs"]
    assert len(logprobs) == len(answer["prompt_token_ids"])
    unscored = [index for index, entries in enumerate(logprobs) if entries is None]
    assert unscored == [0, *range(2, 2 + image + 2)]  # with a mark on each side of the image


def test_prompt_logprobs_cover_tools_and_options(server):
    tool = {"type": "function", "function": {"name": "look"}}
    sent = chat(tools=[tool], chat_template_kwargs={"enable_thinking": True}, prompt_logprobs=0)
    answer = server.post(sent | {"return_token_ids": True}).json()
    ids = answer["prompt_token_ids"]
    check(answer["prompt_logprobs"], ids, scores(server, ids, 0), 0)


def test_each_choice_of_each_prompt_has_prompt_logprobs(server):
    client = server.client()
    answer = client.completions.create(
        model="mock",
        prompt=["né", [97]],
        n=2,
        max_tokens=1,
        extra_body={"prompt_logprobs": 2, "return_token_ids": True},
    )
    for choice in answer.choices[:2]:
        ids = choice.prompt_token_ids
        assert [next(iter(each.values()))["decoded_token"] for each in choice.prompt_logprobs[2:]]
        logprobs = [None if each is None else each[str(i)]["logprob"]
                for each, i in zip(choice.prompt_logprobs, ids, strict=True)]  # fmt: skip
        assert logprobs == [None, *(sample.logprob for sample in scores(server, ids, 2))]
    assert [choice.prompt_logprobs for choice in answer.choices[2:]] == [[None], [None]]


def test_prompt_logprobs_equal_the_logprobs_of_an_echo(server):
    sent = {"model": "mock", "prompt": "a tree", "echo": True, "logprobs": 0, "max_tokens": 0}
    answer = server.post(sent | {"prompt_logprobs": 0, "return_token_ids": True}, TEXT).json()
    (choice,) = answer["choices"]
    logprobs = [each and next(iter(each.values()))["logprob"] for each in choice["prompt_logprobs"]]
    assert logprobs == choice["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("fields", [{"prompt_logprobs": -1}, {"prompt_logprobs": 21},
                                    {"prompt_logprobs": 1, "stream": True}])  # fmt: skip
def test_prompt_logprobs_out_of_range_are_refused_by_name(server, path, fields):
    sent = {"model": "mock", "prompt": "x"} if path == TEXT else chat()
    refused = server.post(sent | fields, path)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "prompt_logprobs"


def test_the_number_of_prompt_logprobs_of_a_request_is_limited(monkeypatch):
    monkeypatch.setattr(prompt_scorer, "MAX_LOGPROBS", 40)
    with running() as server:
        client = server.client()
        for field, num_prompts in (("prompt_logprobs", 1), ("logprobs", 3)):
            sent = {"prompt": ["x" * 12] * num_prompts, "max_tokens": 1, "echo": True}
            with pytest.raises(openai.BadRequestError) as refused:
                client.completions.create(model="mock", **sent, extra_body={field: 3})
            assert refused.value.param == field
            assert client.completions.create(model="mock", **sent, extra_body={field: 0})
