"""Unknown and unused fields: reported where they change nothing, refused where they would."""

import json

import openai
import pytest
from hypothesis import given, settings, strategies as st
from running_server import chat, image_part, image_url, running

from vlmkit_server.apis.openai_chat.wire import CHAT
from vlmkit_server.wire.table import TABLE

# Bodies of client libraries, recorded from the library that the name says.
LITELLM_SECOND_TURN = {
    "messages": [
        {"role": "user", "content": "one"},
        {"content": "hi", "role": "assistant", "provider_specific_fields": {"refusal": None}},
        {"role": "user", "content": "two"},
    ],
    "model": "mock",
}
AUTOGEN = {
    "messages": [
        {"content": "You are a helpful AI assistant.", "role": "system"},
        {"role": "user", "name": "user", "content": "Say hello"},
        {"role": "assistant", "content": "hi"},
        {
            "role": "user",
            "name": "user",
            "content": [
                {"type": "text", "text": "two"},
                {"type": "image_url", "image_url": {"url": image_url(), "detail": "auto"}},
            ],
        },
    ],
    "model": "mock",
    "stream": False,
}
AN_ECHOED_ANSWER = {
    "messages": [
        {"role": "user", "content": "one"},
        {
            "role": "assistant",
            "content": "hi",
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "tool_calls": [],
            "provider_specific_fields": None,
            "reasoning_content": "so I said hi",
            "reasoning": "so I said hi",
        },
        {"role": "user", "content": [{"type": "text", "text": "two", "cache_control": {"a": 1}}]},
    ],
    "model": "mock",
}

VLLM_ROUTER = {
    "model": "mock",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": False,
    "logprobs": False,
    "no_stop_trim": False,
    "ignore_eos": False,
    "continue_final_message": False,
    "skip_special_tokens": True,
    "separate_reasoning": True,
    "stream_reasoning": True,
    "return_hidden_states": False,
    "include_reasoning": True,
}
STRICT = {"x-vlmkit-strict": "1"}


def ignored(answer):
    assert answer.status_code == 200, answer.text
    return answer.headers.get("x-vlmkit-ignored")


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (LITELLM_SECOND_TURN, "messages.provider_specific_fields"),
        (AUTOGEN, "messages.name"),
        (AN_ECHOED_ANSWER, "messages.content.cache_control"),
        (chat(stream_options={"include_usage": True, "every_token": True}, stream=True),
         "stream_options.every_token"),
        (chat(request_id="x", label="y", extra=None, more={}), "label, request_id"),
        (VLLM_ROUTER, None),
        (chat(stream_reasoning=False), "stream_reasoning"),
        (chat(), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_fields_that_client_libraries_add_are_ignored_and_reported(server, body, names, stream):
    if not stream and "stream_options" in body:
        return
    assert ignored(server.post(body | {"stream": stream})) == names


def test_ignored_fields_do_not_change_the_answer(server):
    with_names = server.post(AUTOGEN).json()["choices"]
    plain = json.loads(json.dumps(AUTOGEN))
    for message in plain["messages"]:
        message.pop("name", None)
    assert server.post(plain).json()["choices"] == with_names


def test_the_official_client_sees_the_header_of_ignored_fields(server):
    part = image_part(image_url())
    part["image_url"]["alt"] = "a picture"
    messages = [{"role": "user", "name": "bob", "content": [part]}]
    answer = server.client().chat.completions.with_raw_response.create(
        model="mock", messages=messages
    )
    assert answer.parse().choices[0].message.content.startswith("image 1: 8x6")
    assert answer.headers["x-vlmkit-ignored"] == "messages.content.image_url.alt, messages.name"


OPTIONAL_FIELDS = {
    "prediction": {"type": "content", "content": "hel"},
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "service_tier": "flex",
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_optional_openai_fields_without_effect_are_reported(server, path):
    is_chat = path == "/v1/chat/completions"
    sent = chat() if is_chat else {"model": "mock", "input": "hello"}
    wishes = OPTIONAL_FIELDS | {"store": True} if is_chat else OPTIONAL_FIELDS
    assert ignored(server.post(sent | wishes, path)) == ", ".join(sorted(wishes))
    neutral = {"store": False, "service_tier": "default", "prediction": None}
    assert ignored(server.post(sent | neutral, path)) is None
    for name in wishes:
        refused = server.post(sent | {name: wishes[name]}, path, headers=STRICT)
        assert refused.json()["error"]["param"] == name


@pytest.mark.parametrize("key", ["refusal", "audio", "function_call"])
def test_a_message_field_that_the_model_would_not_see_is_refused(server, key):
    message = {"role": "assistant", "content": "x", key: [{"id": "1"}]}
    body = chat() | {"messages": [message]}
    error = server.post(body).json()["error"]
    assert (error["param"], error["code"]) == (f"messages[0].{key}", "unsupported_parameter")


@pytest.mark.parametrize(
    "name", ["a\r\nset-cookie: a=b", "a b", "<script>", "é", "a,b", "x" * 65, "\x00"]
)
def test_the_header_never_contains_an_unsafe_name(server, name):
    for body in (
        chat(**{name: 1}),
        chat() | {"messages": [{"role": "user", "content": "x", name: 1}]},
    ):
        answer = server.post(body)
        assert ignored(answer) == "other"
        assert "set-cookie" not in answer.headers


@settings(max_examples=30)
# The prefix of zeros keeps names from being similar to a field, which would be refused.
@given(st.dictionaries(st.text(max_size=80).map("_000{}".format), st.just(1), max_size=60))
def test_the_header_is_bounded_and_sorted(server, keys):
    names = (ignored(server.post(keys | chat())) or "").split(", ")
    assert len(names) <= 17
    assert names == sorted(names)
    assert all(len(name) <= 64 for name in names)


LONG = st.text(alphabet='x"\\\\é\n', max_size=6).map(lambda text: text + "x" * 20_000 + text)


@settings(max_examples=100)
@given(st.lists(LONG, min_size=1, max_size=3), st.booleans())
def test_keys_beside_long_texts_are_found_and_text_content_is_not_a_key(texts, is_ascii):
    parts = [{"type": "text", "text": text, "mark": text} for text in texts]
    parts.append({"type": "image_url", "image_url": {"url": texts[0], "alt": "low"}})
    body = {"x": texts, "messages": [{"role": "user", "content": parts, "name": "n"}], "model": "m"}
    _, names = CHAT.read(json.dumps(body, ensure_ascii=is_ascii).encode())
    inner = {"name", "content.mark", "content.image_url.alt"}
    assert names == {"x", *(f"messages.{name}" for name in inner)}


def test_too_many_unknown_keys_are_refused(server):
    refused = server.post(chat(**{f"key{n}": 1 for n in range(70_000)}))
    assert refused.status_code == 400
    assert "more than 65536 keys" in refused.json()["error"]["message"]


def test_ignored_fields_are_counted_under_known_names_only():
    with running() as server:
        assert server.get("/readyz").json()["num_ignored"] == {}
        server.post(AUTOGEN)
        server.post(AUTOGEN | {"ads.example": 1, "more": 2})
        server.post(chat())
        assert server.get("/readyz").json()["num_ignored"] == {"messages.name": 2, "other": 1}
        for number in range(40):
            server.post(chat(**{f"key{number}": 1}))
        assert set(server.get("/readyz").json()["num_ignored"]) <= {*TABLE} | {"other"}


@pytest.mark.parametrize(
    ("body", "param"),
    [(AUTOGEN, "messages.name"), (chat(**{"a b": 1}), None), (chat(b=1, a=1), "a")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_strict_header_refuses_ignored_fields(server, body, param, stream):
    refused = server.post(body | {"stream": stream}, headers=STRICT)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == (param, "unknown_parameter")
    assert ignored(server.post(VLLM_ROUTER, headers=STRICT)) is None
    assert ignored(server.post(body, headers={"x-vlmkit-strict": "0"}))


def test_an_operator_can_refuse_or_silently_ignore_unknown_fields():
    with running(unknown_fields="refuse") as server:
        refused = server.post(AUTOGEN, headers={"x-vlmkit-strict": "0"})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "unknown_parameter"
        assert ignored(server.post(chat())) is None
    with running(unknown_fields="ignore") as server:
        assert ignored(server.post(AUTOGEN)) is None
        assert server.get("/readyz").json()["num_ignored"] == {"messages.name": 1}
        assert server.post(chat(guided_json={"a": 1})).status_code == 400
        assert server.post(AUTOGEN, headers=STRICT).status_code == 400


def test_the_official_client_can_send_the_strict_header(server):
    client = server.client()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="mock",
            messages=[{"role": "user", "content": "x"}],
            extra_body={"request_id": "x"},
            extra_headers=STRICT,
        )
    assert caught.value.param == "request_id"
