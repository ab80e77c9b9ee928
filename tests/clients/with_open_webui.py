"""Open WebUI: its own server, by the API that its pages use, with a connection to OpenAI's API."""

import json
import sys
import urllib.request
from pathlib import Path

import pytest
from conftest import environment, free_port, listening, serving

KEY = "key-of-the-server-0123456789abcdef"
REPLIES = [
    {
        "to": "weather in Köln",
        "text": "I look.",
        "calls": [{"name": "weather", "arguments": {"city": "Köln"}}],
    },
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


@pytest.fixture(scope="module")
def webui(tmp_path_factory):
    """Return a function that sends something to Open WebUI as its user and returns the answer."""
    folder = tmp_path_factory.mktemp("webui")
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    token = ""

    def send(path, body=None):
        headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
        content = None if body is None else json.dumps(body).encode()
        asks = urllib.request.Request(url + path, content, headers)
        with urllib.request.urlopen(asks) as answer:
            return answer.read().decode()

    with serving(folder, REPLIES, api_key=KEY) as server:
        env = environment(
            folder,
            WEBUI_AUTH="False",
            WEBUI_SECRET_KEY="of this test",
            DATA_DIR=str(folder),
            OPENAI_API_BASE_URL=server.v1,
            OPENAI_API_KEY=KEY,
            ENABLE_OLLAMA_API="False",
            RAG_EMBEDDING_ENGINE="openai",
            OFFLINE_MODE="True",
            HF_HUB_OFFLINE="1",
            SCARF_NO_ANALYTICS="true",
            DO_NOT_TRACK="true",
            ANONYMIZED_TELEMETRY="false",
        )
        program = str(Path(sys.executable).with_name("open-webui"))
        command = [program, "serve", "--host", "127.0.0.1", "--port", port]
        with listening(*command, url=f"{url}/health", folder=folder, env=env):
            signed = send("/api/v1/auths/signin", {"email": "", "password": ""})
            token = json.loads(signed)["token"]
            yield send


def asked(text, url=None, **fields):
    shown = [{"type": "image_url", "image_url": {"url": url}}] if url else []
    content = [{"type": "text", "text": text}, *shown] if url else text
    return {"model": "mock", "messages": [{"role": "user", "content": content}]} | fields


def message_of(answer):
    return json.loads(answer)["choices"][0]["message"]


def test_the_models_of_the_server_are_listed(webui):
    models = json.loads(webui("/api/models"))["data"]
    assert {"demo", "mock"} <= {model["id"] for model in models}


def test_an_image_is_answered_whole_and_streamed(webui, data_url):
    question = asked("What is in this picture?", data_url, model="demo", temperature=0)
    whole = message_of(webui("/api/chat/completions", question | {"stream": False}))["content"]
    assert "circle" in whole
    streamed = webui("/api/chat/completions", question | {"stream": True})
    lines = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert lines[-1] == "[DONE]"
    choices = [each for line in lines[:-1] for each in json.loads(line).get("choices", ())]
    assert "".join(each["delta"].get("content") or "" for each in choices) == whole


def test_a_tool_is_called(webui):
    question = asked("How is the weather in Köln?", stream=False, tools=[TOOL])
    (call,) = message_of(webui("/api/chat/completions", question))["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Köln"}


def test_reasoning_is_separate_from_the_answer(webui):
    message = message_of(webui("/api/chat/completions", asked("think", stream=False)))
    assert (message["reasoning_content"], message["content"]) == ("One, two.", "Two.")
