"""vLLM's own router in front of two servers, with an API that any client speaks."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from conftest import serving
from openai import APIStatusError, NotFoundError, OpenAI

POLICIES = ["consistent_hash", "cache_aware", "round_robin"]


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Two servers, each of which says which one it is."""
    with ExitStack() as stack:
        names = ("one", "two")
        folders = {name: tmp_path_factory.mktemp(name) for name in names}
        replies = {name: [{"to": "Who are you?", "text": name}] for name in names}
        yield [
            stack.enter_context(serving(folders[name], replies[name], models=["mock"])).url
            for name in names
        ]


@pytest.fixture(scope="module", params=POLICIES)
def client(request, workers, tmp_path_factory):
    """OpenAI's client, in front of a router with one of its policies."""
    log = tmp_path_factory.mktemp("router") / "log"
    with routed(workers, request.param, log, os.environ) as client:
        yield client


@contextmanager
def routed(workers, policy, log, env):
    """Run a router, and yield OpenAI's client of it."""
    port, metrics = free_port(), free_port()
    command = [
        str(Path(sys.executable).with_name("vllm-router")),
        *("--port", str(port), "--prometheus-port", str(metrics)),
        *("--worker-urls", *workers, "--policy", policy),
    ]
    with (
        log.open("wb") as file,
        subprocess.Popen(command, stdout=file, stderr=file, env=env) as router,
    ):
        try:
            while not is_healthy(f"http://127.0.0.1:{port}"):
                assert router.poll() is None, log.read_text()
                time.sleep(0.2)
            url = f"http://127.0.0.1:{port}/v1"
            with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
                client.policy = policy
                yield client
        finally:
            router.terminate()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def is_healthy(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=300) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


def said(client, content, **fields):
    messages = [{"role": "user", "content": content}]
    answer = client.chat.completions.create(model="mock", messages=messages, **fields)
    return answer.choices[0].message.content


def streamed(client, content):
    messages = [{"role": "user", "content": content}]
    stream = client.chat.completions.create(model="mock", messages=messages, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def test_texts_and_images_are_answered_whole_and_streamed(client, data_url):
    parts = [
        {"type": "image_url", "image_url": {"url": data_url}},
        {"type": "text", "text": "What?"},
    ]
    for number in range(4):
        for ask in (said, streamed):
            assert ask(client, f"number {number}") == f"number {number}"
            assert ask(client, parts).startswith("image 1: ")


def test_both_servers_answer_and_a_session_stays_with_its_server(client):
    def answered_by(user):
        headers = {"x-session-id": user, "x-user-id": user}
        return said(client, "Who are you?", user=user, extra_headers=headers)

    answered = {f"user {n}": {answered_by(f"user {n}") for _ in range(3)} for n in range(16)}
    if client.policy == "consistent_hash":
        assert all(len(names) == 1 for names in answered.values())
    if client.policy != "cache_aware":  # the same question goes where it is known already
        assert set().union(*answered.values()) == {"one", "two"}


def test_tools_schemas_and_texts_pass(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    script = json.dumps({"mock": {"calls": [{"name": "f", "arguments": {"a": 1}}]}})
    answer = client.chat.completions.create(
        model="mock", messages=[{"role": "user", "content": script}], tools=[tool]
    )
    assert answer.choices[0].message.tool_calls[0].function.arguments == '{"a": 1}'
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert json.loads(said(client, '{"a": 2}', response_format=form)) == {"a": 2}
    assert client.completions.create(model="mock", prompt="abc").choices[0].text == "abc"
    vectors = client.embeddings.create(model="mock", input=["one", "two"]).data
    assert [len(vector.embedding) for vector in vectors] == [8, 8]


def test_models_are_listed(client):
    assert Counter(model.id for model in client.models.list()) == {"mock": 1}


def test_a_wrong_request_keeps_its_status(client):
    with pytest.raises(APIStatusError) as hot:
        said(client, "x", temperature=3)
    assert hot.value.status_code == 400
    with pytest.raises(NotFoundError):
        client.chat.completions.create(model="x", messages=[{"role": "user", "content": "x"}])


# Workers over gRPC: the router renders and tokenizes itself, and speaks vLLM's own services.

DEMO = Path(__file__).parents[2] / "plugins/vlmkit-demo/src/vlmkit_demo/checkpoint"
RED = [{"role": "user", "content": "Say hello, and what is red?"}]


@pytest.fixture(scope="module")
def grpc_workers(tmp_path_factory):
    """Two workers of the demo, by their addresses."""
    log = tmp_path_factory.mktemp("workers")
    command = [os.environ["SERVER_PYTHON"], "-m", "vlmkit", "worker", "demo", "--vllm"]
    with ExitStack() as stack:
        addresses = []
        for number in range(2):
            file = log / str(number)
            output = stack.enter_context(file.open("wb"))
            process = stack.enter_context(
                subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stderr=output)
            )
            stack.callback(process.terminate)
            while not (found := re.search(r"ready: demo at (\S+)\n", file.read_text())):
                assert process.poll() is None, file.read_text()
                time.sleep(0.1)
            addresses.append(found[1])
        yield addresses


@pytest.fixture(scope="module")
def grpc_client(grpc_workers, tmp_path_factory):
    """OpenAI's client, in front of a router that has only the text side of the model."""
    env = os.environ | {"VLLM_ROUTER_TOKENIZER": str(DEMO)}
    log = tmp_path_factory.mktemp("grpc_router") / "log"
    with routed(grpc_workers, "round_robin", log, env) as client:
        yield client


@pytest.fixture(scope="module")
def demo_client(tmp_path_factory):
    """OpenAI's client of a server of the same model, without a router."""
    with (
        serving(tmp_path_factory.mktemp("demo"), models=["demo"]) as served,
        OpenAI(base_url=served.v1, api_key="none", max_retries=0) as client,
    ):
        yield client


def whole_and_streamed(create, **fields):
    """Return the text of an answer, which has to be the same when it is streamed."""
    answer = create(model="demo", **fields)
    choice = answer.choices[0]
    text = choice.message.content if "messages" in fields else choice.text
    stream = create(model="demo", stream=True, **fields)
    pieces = [chunk.choices[0] for chunk in stream if chunk.choices]
    texts = [piece.delta.content if "messages" in fields else piece.text for piece in pieces]
    assert "".join(filter(None, texts)) == text
    assert pieces[-1].finish_reason == choice.finish_reason
    usage = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    return text, choice.finish_reason, usage


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 0.8, "seed": 7, "top_p": 0.9},
        {"temperature": 0, "stop": ["."]},
        {"temperature": 0, "max_tokens": 2},
        {"temperature": 0, "response_format": {"type": "json_object"}},
    ],
    ids=["greedy", "seeded", "stop", "length", "json"],
)
def test_chats_over_grpc_equal_those_of_a_server(grpc_client, demo_client, fields):
    given = {"messages": RED, "max_tokens": 16} | fields
    wanted = whole_and_streamed(demo_client.chat.completions.create, **given)
    for _ in range(2):  # both workers
        assert whole_and_streamed(grpc_client.chat.completions.create, **given) == wanted


def test_completions_of_tokens_over_grpc_equal_those_of_a_server(grpc_client, demo_client):
    given = {"prompt": list(range(40, 60)), "max_tokens": 8, "temperature": 0}
    wanted = whole_and_streamed(demo_client.completions.create, **given)
    assert whole_and_streamed(grpc_client.completions.create, **given) == wanted


def test_models_and_errors_of_workers_over_grpc_pass(grpc_client):
    assert [model.id for model in grpc_client.models.list()] == ["demo"]
    for fields, status in (
        ({"temperature": 3}, 400),
        ({"model": "x"}, 404),
        ({"messages": [{"role": "user", "content": "a " * 2000}]}, 400),
    ):
        with pytest.raises(APIStatusError) as refused:
            grpc_client.chat.completions.create(**({"model": "demo", "messages": RED} | fields))
        assert refused.value.status_code == status
