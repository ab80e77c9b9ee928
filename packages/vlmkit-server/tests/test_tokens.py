"""``/tokenize`` and ``/detokenize``: token counts equal the usage of the answer."""

import pytest
from running_server import chat, image_part, image_url, mock_pipeline, running

from vlmkit_mock.tokenizer import MockTokenizer


def tokenized(server, **body):
    answer = server.post(body, "/tokenize")
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(server, body, path="/tokenize"):
    answer = server.post(body, path)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def image_messages():
    parts = [{"type": "text", "text": "and"}, image_part(image_url()), image_part(image_url(9, 9))]
    return [{"role": "user", "content": parts}]


def test_a_text_has_the_tokens_of_its_completion(server):
    whole = tokenized(server, model="mock", prompt="né")
    assert whole["tokens"] == MockTokenizer().encode("né", adds_special=True)
    assert whole["count"] == len(whole["tokens"]) == 4
    assert whole["max_model_len"] == server.runner().facts.limits.max_sequence_tokens
    assert whole["token_strs"] is None
    bare = tokenized(server, prompt="ab", add_special_tokens=False, return_token_strs=True)
    assert (bare["tokens"], bare["token_strs"]) == ([97, 98], ["a", "b"])


def test_a_chat_has_the_token_counts_of_its_answer_including_images(server):
    counted = tokenized(server, model="mock", messages=image_messages())
    usage = server.post(chat() | {"messages": image_messages()}).json()["usage"]
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
            "messages": [*image_messages(), {"role": "assistant", "content": "It is"}],
        },
        {
            "messages": [
                *image_messages(),
                {"role": "assistant", "content": "It is", "prefix": True},
            ]
        },
    ],
)
def test_a_prompt_with_options_has_the_tokens_of_its_chat(server, fields):
    fields = {"messages": image_messages()} | fields
    answer = server.post(chat(return_token_ids=True, max_tokens=1) | fields).json()
    assert tokenized(server, **fields)["tokens"] == answer["prompt_token_ids"]


def test_a_prompt_longer_than_the_context_is_counted(server):
    most = server.runner().facts.limits.max_sequence_tokens
    assert tokenized(server, prompt="x" * (most + 1))["count"] > most


def test_detokenize_restores_the_text(server):
    tokens = tokenized(server, prompt="Zażółć 🙂")["tokens"]
    answer = server.post({"model": "mock", "tokens": tokens}, "/detokenize")
    assert answer.json() == {"prompt": "Zażółć 🙂", "content": "Zażółć 🙂"}
    assert server.post({"tokens": []}, "/detokenize").json() == {"prompt": "", "content": ""}


def test_content_is_tokenized_like_by_llama_cpp(server):
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


def test_counting_runs_no_engine_step(server):
    before = server.runner().stats().counters
    tokenized(server, messages=image_messages())
    after = server.runner().stats().counters
    changed = {name for name in after if after[name] != before[name]}
    assert changed <= {"num_image_hits", "num_image_misses"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "messages": image_messages()}, "prompt"),
        ({"prompt": ["x"]}, "prompt"),
        ({"messages": []}, "prompt"),
        ({"messages": image_messages(), "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": image_messages(), "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
        ({"messages": image_messages(), "continue_final_message": True}, "continue_final_message"),
        ({"messages": image_messages(), "tools": [{}]}, "tools[0]"),
        ({"prompt": "x", "tools": [TOOL]}, "tools"),
        ({"prompt": "x", "add_generation_prompt": False}, "add_generation_prompt"),
        ({"prompt": "x", "chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs"),
        (
            {"messages": [{"role": "user", "content": [image_part("data:image/png;base64,AAAA")]}]},
            "messages[0].content[0].image_url.url",
        ),
    ],
)
def test_an_invalid_request_is_refused_by_name(server, body, param):
    assert refusal(server, body)["param"] == param


@pytest.mark.parametrize("tokens", [[-1], [99_999], [2**40], ["a"], "a", None])
def test_unknown_token_ids_are_refused(server, tokens):
    assert refusal(server, {"tokens": tokens}, "/detokenize")["param"].startswith("tokens")


def test_ignored_keys_are_reported_and_counting_checks_model_and_content_type(server):
    answer = server.post({"prompt": "x", "flavour": 1}, "/tokenize")
    assert answer.headers["x-vlmkit-ignored"] == "flavour"
    assert server.post({"model": "other", "prompt": "x"}, "/tokenize").status_code == 404
    assert (
        server.post("x", "/detokenize", headers={"content-type": "text/plain"}).status_code == 415
    )


def test_a_text_over_the_limit_is_refused_before_tokenization():
    with running(max_text_chars=4) as server:
        assert refusal(server, {"prompt": "xxxxx"})["code"] == "context_length_exceeded"
        assert refusal(server, {"tokens": [1] * 5}, "/detokenize")["param"] == "tokens"


def test_the_model_must_be_named_only_where_several_are_served():
    both = {"one": mock_pipeline(), "two": mock_pipeline()}
    with running(both) as server:
        assert refusal(server, {"prompt": "x"})["param"] == "model"
        assert tokenized(server, model="two", prompt="x")["count"] == 2
