"""``/tokenize`` and ``/detokenize``: what a prompt comes to, as its answer's usage counts it."""

import pytest
from running_server import chat, image_part, mock_pipeline, picture, running

from vlmkit_mock.tokenizer import MockTokenizer


def tokenized(server, **body):
    answer = server.post(body, "/tokenize")
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(server, body, path="/tokenize"):
    answer = server.post(body, path)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def shown():
    parts = [{"type": "text", "text": "and"}, image_part(picture()), image_part(picture(9, 9))]
    return [{"role": "user", "content": parts}]


def test_a_text_has_the_tokens_that_its_completion_would_have(server):
    whole = tokenized(server, model="mock", prompt="né")
    assert whole["tokens"] == MockTokenizer().encode("né", adds_special=True)
    assert whole["count"] == len(whole["tokens"]) == 4
    assert whole["max_model_len"] == server.runner().facts.limits.max_sequence_tokens
    assert whole["token_strs"] is None
    bare = tokenized(server, prompt="ab", add_special_tokens=False, return_token_strs=True)
    assert (bare["tokens"], bare["token_strs"]) == ([97, 98], ["a", "b"])


def test_a_conversation_is_counted_as_its_answer_counts_it_with_every_image(server):
    counted = tokenized(server, model="mock", messages=shown())
    usage = server.post(chat() | {"messages": shown()}).json()["usage"]
    assert counted["count"] == usage["prompt_tokens"]
    assert counted["image_tokens_each"] == [4, 4]
    assert counted["image_tokens_each"] == usage["prompt_tokens_details"]["image_tokens_each"]


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL]},
        {"tools": []},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"add_generation_prompt": False},
        {"add_generation_prompt": True, "tools": [TOOL]},
        {
            "continue_final_message": True,
            "messages": [*shown(), {"role": "assistant", "content": "It is"}],
        },
        {"messages": [*shown(), {"role": "assistant", "content": "It is", "prefix": True}]},
    ],
)
def test_a_prompt_is_counted_as_it_is_written_for_a_chat(server, fields):
    fields = {"messages": shown()} | fields
    answer = server.post(chat(return_token_ids=True, max_tokens=1) | fields).json()
    assert tokenized(server, **fields)["tokens"] == answer["prompt_token_ids"]


def test_a_prompt_that_is_too_long_to_be_answered_is_counted(server):
    most = server.runner().facts.limits.max_sequence_tokens
    assert tokenized(server, prompt="x" * (most + 1))["count"] > most


def test_tokens_become_their_text_again(server):
    tokens = tokenized(server, prompt="Zażółć 🙂")["tokens"]
    answer = server.post({"model": "mock", "tokens": tokens}, "/detokenize")
    assert answer.json() == {"prompt": "Zażółć 🙂", "content": "Zażółć 🙂"}
    assert server.post({"tokens": []}, "/detokenize").json() == {"prompt": "", "content": ""}


def test_content_is_tokenized_as_llama_cpp_does(server):
    bare = tokenized(server, content="né")
    assert bare["tokens"] == MockTokenizer().encode("né", adds_special=False)
    whole = tokenized(server, content="né", add_special=True)
    assert whole["tokens"] == MockTokenizer().encode("né", adds_special=True)
    pieces = tokenized(server, content="né", with_pieces=True)["tokens"]
    assert pieces == [
        {"id": 110, "piece": "n"},
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
    ]
    assert refusal(server, {"prompt": "a", "with_pieces": True})["param"] == "content"
    assert refusal(server, {"prompt": "a", "content": "a"})["param"] == "prompt"


def test_nothing_runs_for_what_is_only_counted(server):
    before = server.runner().stats().counters
    tokenized(server, messages=shown())
    assert server.runner().stats().counters == before


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": shown()}, "prompt"),
        ({"prompt": ["x"]}, "prompt"),
        ({"messages": []}, "prompt"),
        ({"messages": shown(), "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": shown(), "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ({"messages": shown(), "continue_final_message": True}, "continue_final_message"),
        ({"messages": shown(), "tools": [{}]}, "tools[0]"),
        ({"prompt": "x", "tools": [TOOL]}, "tools"),
        ({"prompt": "x", "add_generation_prompt": False}, "add_generation_prompt"),
        ({"prompt": "x", "chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs"),
        (
            {"messages": [{"role": "user", "content": [image_part("data:image/png;base64,AAAA")]}]},
            "messages[0].content[0].image_url.url",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(server, body, param):
    assert refusal(server, body)["param"] == param


@pytest.mark.parametrize("tokens", [[-1], [99_999], [2**40], ["a"], "a", None])
def test_what_is_no_token_of_the_model_is_refused(server, tokens):
    assert refusal(server, {"tokens": tokens}, "/detokenize")["param"].startswith("tokens")


def test_ignored_keys_are_told_and_counting_counts_as_a_request(server):
    answer = server.post({"prompt": "x", "flavour": 1}, "/tokenize")
    assert answer.headers["x-vlmkit-ignored"] == "flavour"
    assert server.post({"model": "other", "prompt": "x"}, "/tokenize").status_code == 404
    assert (
        server.post("x", "/detokenize", headers={"content-type": "text/plain"}).status_code == 415
    )


def test_a_text_over_the_bound_is_refused_before_it_is_read():
    with running(max_text_chars=4) as server:
        assert refusal(server, {"prompt": "xxxxx"})["code"] == "context_length_exceeded"
        assert refusal(server, {"tokens": [1] * 5}, "/detokenize")["param"] == "tokens"


def test_the_model_need_not_be_named_where_one_is_served():
    both = {"one": mock_pipeline(), "two": mock_pipeline()}
    with running(both) as server:
        assert refusal(server, {"prompt": "x"})["param"] == "model"
        assert tokenized(server, model="two", prompt="x")["count"] == 2
