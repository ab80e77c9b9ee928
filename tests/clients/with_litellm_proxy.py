"""LiteLLM's proxy, which has a key of its own, in front of a server that asks for one."""

import json
import sys
import urllib.request
from pathlib import Path

import pytest
from conftest import environment, free_port, listening, serving
from openai import AuthenticationError, BadRequestError, OpenAI

REPLIES = [
    {
        "to": "weather in Köln",
        "text": "I look.",
        "calls": [{"name": "weather", "arguments": {"city": "Köln"}}],
    },
    {"to": "sunny", "text": "It is sunny."},
    {"to": "as JSON", "text": '{"colour": "red", "count": 3}'},
    {"to": "think", "reasoning": "One, two.", "text": "Two."},
]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "How it is.", "parameters": PARAMETERS},
}
SERVER_KEY = "key-of-the-server-0123456789abcdef"
PROXY_KEY = "sk-of-the-proxy"


def entry(name, model, url, key):
    params = {"model": f"hosted_vllm/{model}", "api_base": url, "api_key": key}
    return {"model_name": name, "litellm_params": params}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """The address of a proxy."""
    folder = tmp_path_factory.mktemp("proxy")
    with serving(folder, REPLIES, api_key=SERVER_KEY) as server:
        config = {
            "model_list": [
                entry("eyes", "demo", server.v1, SERVER_KEY),
                entry("mock", "mock", server.v1, SERVER_KEY),
                entry("locked", "mock", server.v1, "another"),
            ],
            "litellm_settings": {"num_retries": 0, "telemetry": False},
            "router_settings": {"num_retries": 0},
            "general_settings": {"master_key": PROXY_KEY},
        }
        (folder / "proxy.yaml").write_text(json.dumps(config))  # which is YAML, too
        port = str(free_port())
        url = f"http://127.0.0.1:{port}"
        command = [
            str(Path(sys.executable).with_name("litellm")),
            *("--config", "proxy.yaml", "--host", "127.0.0.1", "--port", port),
        ]
        env = environment(folder, LITELLM_LOCAL_MODEL_COST_MAP="True")
        with listening(*command, url=f"{url}/health/liveliness", folder=folder, env=env):
            yield url


@pytest.fixture(scope="module")
def client(proxy):
    with OpenAI(base_url=f"{proxy}/v1", api_key=PROXY_KEY, max_retries=0) as client:
        yield client


def asked(text, url=None):
    shown = [{"type": "image_url", "image_url": {"url": url}}] if url else []
    content = [{"type": "text", "text": text}, *shown] if url else text
    return [{"role": "user", "content": content}]


def test_the_models_of_the_proxy_are_listed(client):
    assert sorted(model.id for model in client.models.list()) == ["eyes", "locked", "mock"]


def test_an_image_is_answered_whole_and_streamed(client, data_url):
    question = {"model": "eyes", "temperature": 0}
    question["messages"] = asked("What is in this picture?", data_url)
    whole = client.chat.completions.create(**question)
    assert "circle" in whole.choices[0].message.content
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(**question, stream=True, stream_options=options))
    told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert told == whole.choices[0].message.content
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_tool_is_called_and_its_result_is_read(client):
    question = {"model": "mock", "tools": [TOOL]}
    messages = asked("How is the weather in Köln?")
    called = client.chat.completions.create(messages=messages, **question).choices[0].message
    (call,) = called.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Köln"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages += [called.model_dump(exclude_none=True), result]
    answer = client.chat.completions.create(messages=messages, **question)
    assert answer.choices[0].message.content == "It is sunny."


def test_a_schema_is_enforced_and_reasoning_is_shown(client):
    properties = {"colour": {"type": "string"}, "count": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["colour", "count"]}
    form = {"type": "json_schema", "json_schema": {"name": "shapes", "schema": schema}}
    answer = client.chat.completions.create(
        model="mock", messages=asked("Tell it as JSON."), response_format=form
    )
    assert json.loads(answer.choices[0].message.content) == {"colour": "red", "count": 3}
    message = client.chat.completions.create(model="mock", messages=asked("think"))
    said = message.choices[0].message
    assert (said.reasoning_content, said.content) == ("One, two.", "Two.")


def test_other_apis_of_the_proxy_arrive_as_chats(client, proxy, data_url):
    parts = [
        {"type": "input_text", "text": "What is in this picture?"},
        {"type": "input_image", "image_url": data_url},
    ]
    told = client.responses.create(model="eyes", input=[{"role": "user", "content": parts}])
    assert "circle" in told.output_text
    body = {"model": "mock", "max_tokens": 100, "messages": asked("hello")}
    headers = {"content-type": "application/json", "x-api-key": PROXY_KEY}
    asks = urllib.request.Request(f"{proxy}/v1/messages", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asks) as answer:
        assert json.load(answer)["content"] == [{"type": "text", "text": "hello"}]


def test_embeddings_are_returned(client):
    found = client.embeddings.create(model="mock", input=["one", "two"], encoding_format="float")
    assert [len(each.embedding) for each in found.data] == [8, 8]


def test_proxy_and_server_require_keys(client, proxy):
    stranger = OpenAI(base_url=f"{proxy}/v1", api_key="sk-other", max_retries=0)
    with stranger, pytest.raises((AuthenticationError, BadRequestError)):  # it has no database
        stranger.chat.completions.create(model="mock", messages=asked("x"))
    with pytest.raises(AuthenticationError, match="key"):
        client.chat.completions.create(model="locked", messages=asked("x"))


def test_a_wrong_request_raises_the_error_of_its_type(client):
    with pytest.raises(BadRequestError, match="temperature"):
        client.chat.completions.create(model="mock", messages=asked("x"), temperature=3)
    with pytest.raises(BadRequestError):
        client.chat.completions.create(model="mock", messages=asked("x" * 40_000))
