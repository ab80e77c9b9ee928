"""Request fields that other servers add to OpenAI's API, sent by the official client."""

import pytest
from running_server import chat, scripted

END = 256  # the mock's end-of-turn token


def ask(server, text, *, stream=False, **fields):
    return server.client().chat.completions.create(
        model="mock",
        messages=[{"role": "user", "content": text}],
        stream=stream,
        logprobs=fields.pop("logprobs", None),
        extra_body=fields,
    )


def text_and_reason(server, text, **fields):
    """Return text and finish reason of an answer; a stream must have the same."""
    choice = ask(server, text, **fields).choices[0]
    content, reason = "", None
    for chunk in ask(server, text, stream=True, **fields):
        content += chunk.choices[0].delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
    assert (content, reason) == (choice.message.content, choice.finish_reason)
    return content, reason


def test_a_stop_token_ends_an_answer_and_is_not_in_its_text(server):
    text = scripted(text="abcdef")
    assert text_and_reason(server, text, stop_token_ids=list(b"xd")) == ("abc", "stop")
    tokens = ask(server, text, stop_token_ids=[100], logprobs=True).choices[0].logprobs.content
    assert [entry.token for entry in tokens] == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["include_stop_str_in_output", "no_stop_trim"])
def test_the_stop_string_is_in_the_text_on_request(server, name):
    text = scripted(text="abcdef")
    for end in ({"stop": "cd"}, {"stop_token_ids": [100]}):
        assert text_and_reason(server, text, **end, **{name: True}) == ("abcd", "stop")
    tokens = ask(server, text, stop_token_ids=[99], logprobs=True, **{name: True})
    assert [t.token for t in tokens.choices[0].logprobs.content] == ["a", "b", "c"]


def test_special_tokens_are_shown_on_request(server):
    text = scripted(text="hi")
    options = {"skip_special_tokens": False, "stop_token_ids": [END]}
    assert text_and_reason(server, text, **options) == ("hi", "stop")
    assert text_and_reason(server, text, include_stop_str_in_output=True) == ("hi", "stop")
    assert text_and_reason(server, text, include_stop_str_in_output=True, **options) == (
        "hi<|end|>",
        "stop",
    )


def test_token_ids_are_returned_on_request(server):
    text = scripted(text="né")
    answer = ask(server, text, return_token_ids=True)
    said_ids = [*"né".encode(), END]
    assert answer.choices[0].token_ids == said_ids
    assert len(answer.prompt_token_ids) == answer.usage.prompt_tokens
    assert bytes(i for i in answer.prompt_token_ids if i < 256).decode() == text
    for logprobs in (None, True):
        events = list(ask(server, text, stream=True, return_token_ids=True, logprobs=logprobs))
        assert events[0].prompt_token_ids == answer.prompt_token_ids
        assert not any(hasattr(event, "prompt_token_ids") for event in events[1:])
        choices = [event.choices[0] for event in events]
        ids = [i for choice in choices for i in getattr(choice, "token_ids", None) or ()]
        assert ids == said_ids
        assert "".join(choice.delta.content or "" for choice in choices) == "né"
    plain = server.post(chat()).json()
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]


def test_choices_of_a_stream_have_their_own_token_ids(server):
    events = list(ask(server, scripted(text="ab"), stream=True, n=2, return_token_ids=True))
    ids = {0: [], 1: []}
    for event in events:
        for choice in event.choices:
            ids[choice.index] += getattr(choice, "token_ids", None) or []
    assert ids == {0: [*b"ab", END], 1: [*b"ab", END]}


def test_a_cache_salt_separates_prefix_caches(server):
    text = scripted(text="hi") + " " * 300

    def cached(**fields):
        return ask(server, text, **fields).usage.prompt_tokens_details.cached_tokens

    assert cached(cache_salt="a") == 0
    assert cached(cache_salt="a") > 0
    assert cached(cache_salt="b") == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_token_ids": [999_999]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1] * 129}, "stop_token_ids"),
        ({"cache_salt": "x" * 513}, "cache_salt"),
        ({"skip_special_tokens": "no"}, "skip_special_tokens"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_name(server, fields, param):
    refused = server.post(chat(**fields))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
