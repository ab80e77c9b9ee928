"""Bodies of the chat API: each field has an effect, a range or a refusal by name."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from openai.types.chat import completion_create_params as openai_params
from running_server import chat, image_part, image_url

from vlmkit.errors import RequestError
from vlmkit_server.apis.openai_chat.wire import CHAT, REFUSED_FIELDS, ChatRequest

WITHOUT_EFFECT = {
    "user": "u-1",
    "safety_identifier": "s-1",
    "prompt_cache_key": "k-1",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "modalities": ["text"],
    "verbosity": "medium",
    "response_format": {"type": "text"},
}
REFUSED_VALUES = {
    "verbosity": "endless",
    "modalities": ["text", "audio"],
}
SECRET = "s3cret-v4lue"


def refusal(body: Any) -> RequestError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(RequestError) as caught:
        CHAT.read(content)
    return caught.value


def parsed(body: Any) -> ChatRequest:
    return CHAT.read(json.dumps(body).encode())[0]


def test_every_parameter_of_openais_client_is_supported_or_refused_by_name():
    names = set(openai_params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert names <= set(ChatRequest.__struct_fields__)


@pytest.mark.parametrize("name", sorted(REFUSED_FIELDS))
def test_an_unsupported_field_is_refused_by_name_unless_it_is_empty(name):
    assert parsed(chat(**{name: []}))
    requests = {} if name == "web_search_options" else {"a": 1}  # {} requests a search
    if requests:
        assert parsed(chat(**{name: {}}))
    for value in ("x", 1, requests, [{"type": "function"}], True):
        error = refusal(chat(**{name: value}))
        assert error.param == name
        assert error.code == "unsupported_parameter"
        assert name in str(error)


@pytest.mark.parametrize("name", sorted(ChatRequest.__struct_fields__))
def test_null_means_that_an_optional_field_is_not_set(name):
    if name == "messages":
        assert refusal(chat(**{name: None})).param == name
    else:
        held = getattr(parsed(chat(**{name: None})), name)
        assert held is None or bytes(held) == b"null"  # where it is not decoded yet


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_a_label_field_is_accepted_without_effect(server, name):
    plain = server.post(chat()).json()["choices"]
    assert server.post(chat(**{name: WITHOUT_EFFECT[name]})).json()["choices"] == plain


@pytest.mark.parametrize("name", sorted(REFUSED_VALUES))
def test_a_value_that_would_have_an_effect_is_refused(name):
    error = refusal(chat(**{name: REFUSED_VALUES[name]}))
    assert error.param.startswith(name)
    assert error.code == "unsupported_parameter"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": 1}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": SECRET, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
         "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "id": "1"}]}]},
         "messages[0].tool_calls[0].type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": SECRET}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "system", "content": [image_part("data:")]}]},
         "messages[0].content[0].type"),
        ({"temperature": "warm"}, "temperature"),
        ({"n": 1.5}, "n"),
        ({"stop": [1]}, "stop[0]"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation"),
        ({"priority": -1}, "priority"),
        ({"user": "x" * 513}, "user"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_refused_with_its_location(fields, param):
    error = refusal(chat(**fields))
    assert error.param == param
    assert SECRET not in str(error)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"max_tokens": 1, "min_tokens": 2}, "min_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_a_value_out_of_range_is_a_400_that_names_the_field(server, fields, param):
    for stream in (False, True):
        if stream and param == "stream_options":
            continue
        answer = server.post(chat(stream=stream, **fields))
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == param
        assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nul",
        b"\xff",
        b'{"\xff":1}',
        b'{"n":NaN}',
        b'{"a":"\\ud800"}',
        b"[" * 10**5,
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body):
    assert refusal(body).code in ("invalid_json", "invalid_request")


def tool_call(arguments):
    return {"type": "function", "id": "1", "function": {"name": "f", "arguments": arguments}}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
PART = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=20)),
    st.builds(
        image_part, st.text(max_size=20) | st.just(image_url()) | st.just("data:;base64,AAAA")
    ),
    JSON,
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "x"]),
        "content": st.text(max_size=20) | st.lists(PART, max_size=3) | JSON,
    },
    optional={
        "tool_call_id": st.text(max_size=5),
        "name": JSON,
        "reasoning_content": st.text(max_size=5) | JSON,
        "tool_calls": st.lists(st.builds(tool_call, st.text(max_size=5)) | JSON, max_size=2),
    },
)
NUMBER = st.integers(-3, 300) | st.floats() | st.integers()
NUMERIC_FIELDS = (
    "temperature",
    "top_p",
    "n",
    "seed",
    "top_k",
    "min_p",
    "max_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "top_logprobs",
    "min_tokens",
    "priority",
)
BODY = st.fixed_dictionaries(
    {"model": st.just("mock"), "messages": st.lists(MESSAGE, max_size=3)},
    optional={
        **dict.fromkeys(NUMERIC_FIELDS, NUMBER | JSON),
        "logit_bias": st.dictionaries(st.integers().map(str) | st.text(max_size=3), NUMBER),
        "stop": st.text(max_size=4) | st.lists(st.text(max_size=4), max_size=4) | JSON,
        "stream": st.booleans(),
        "logprobs": st.booleans(),
        "ignore_eos": st.booleans(),
        "extra": JSON,
    },
)


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_raises_only_request_errors(body):
    with contextlib.suppress(RequestError):
        CHAT.read(body)


@settings(max_examples=80)
@given(BODY)
def test_any_body_is_answered_or_refused_with_400(server, body):
    answer = server.post({"max_tokens": 3} | body)
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        error = msgspec.json.decode(answer.content)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"


@settings(max_examples=30)
@given(BODY)
def test_every_stream_is_well_formed(server, body):
    answer = server.post({"max_tokens": 3} | body | {"stream": True})
    if answer.status_code == 200:
        *events, last = answer.text.removesuffix("\n\n").split("\n\n")
        assert last == "data: [DONE]", answer.text
        for event in events:
            assert json.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk"
