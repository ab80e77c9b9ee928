"""Requests without a model: answered by the only one, refused where there are several."""

import base64
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from litestar.routes import HTTPRoute
from running_server import eventually, mock_pipeline, running

from vlmkit_server.app import create_app
from vlmkit_server.fleet.model_spec import ModelSpec
from vlmkit_server.settings.fleet import FleetSettings

MESSAGES = [{"role": "user", "content": "hello"}]
BODIES = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/chat/completions/input_tokens": {"messages": MESSAGES},
    "/v1/chat/completions/render": {"messages": MESSAGES},
    "/invocations": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hello"},
    "/v1/completions/render": {"prompt": "hello"},
    "/v1/embeddings": {"input": "hello"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/messages/render": {"messages": MESSAGES, "max_tokens": 9},
    "/v1/responses": {"input": "hello"},
    "/v1/responses/input_tokens": {"input": "hello"},
    "/v1/responses/render": {"input": "hello"},
    "/rerank": {"query": "hello", "documents": ["a", "b"]},
    "/v1/rerank": {"query": "hello", "documents": ["a", "b"]},
    "/v2/rerank": {"query": "hello", "documents": ["a", "b"]},
    "/score": {"text_1": "hello", "text_2": "a"},
    "/v1/score": {"text_1": "hello", "text_2": "a"},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [104]},
    "/inference/v1/generate": {"token_ids": [104], "sampling_params": {"max_tokens": 2}},
    "/v1/models/load": {},
}
OTHERS = {"/v1/files", "/v1/batches", "/v1/messages/batches", "/v1/models/unload"}
SETTINGS = {"allow_generate": True, "fleet": FleetSettings(manage=True)}


@pytest.fixture(scope="module")
def one():
    with running({"mock": ModelSpec(load=mock_pipeline)}, **SETTINGS) as server:
        assert eventually(lambda: server.get("/readyz").status_code == 200)
        yield server


@pytest.fixture(scope="module")
def two():
    with running({"one": mock_pipeline(), "two": mock_pipeline()}, **SETTINGS) as server:
        yield server


def test_every_route_with_a_body_is_tested(one):
    posted = {
        each.path
        for each in create_app(one.service).routes
        if isinstance(each, HTTPRoute) and "POST" in each.methods and "{" not in each.path
    }
    assert {path for path in posted if not path.startswith("/models/")} == {*BODIES} | OTHERS


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stated", [{}, {"model": None}], ids=["absent", "null"])
def test_the_only_model_is_the_default(path, stated, one):
    answer = one.post(BODIES[path] | stated, path)
    assert answer.status_code == 200, answer.text
    found = re.findall(r'"model": ?(null|"[^"]*")', answer.text)
    assert set(found) <= {'"mock"'}


@pytest.mark.parametrize("path", BODIES)
def test_a_model_must_be_named_where_several_are_served(path, two):
    answer = two.post(BODIES[path], path)
    assert answer.status_code == 400
    assert "model must be given: several are served" in answer.text


def test_a_batch_line_without_a_model_is_answered(tmp_path):
    from vlmkit_server.settings.server import DataSettings

    with running(data=DataSettings(folder=str(tmp_path / "data"))) as server:
        client = server.client()
        line = {"custom_id": "a", "url": "/v1/chat/completions", "body": {"messages": MESSAGES}}
        file = client.files.create(file=("in.jsonl", json.dumps(line)), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        while batch.status not in ("completed", "failed"):
            batch = client.batches.retrieve(batch.id)
        [answer] = client.files.content(batch.output_file_id).text.splitlines()
        assert json.loads(answer)["response"]["status_code"] == 200


def run_in_shell(command):
    return subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, check=True, env=os.environ
    ).stdout


@pytest.mark.posix
def test_a_missing_content_type_is_refused_with_the_header_to_add(one):
    body = json.dumps({"messages": MESSAGES})
    command = f"curl -s {one.url}/v1/chat/completions -d '{body}'"
    error = json.loads(run_in_shell(command))["error"]
    assert error["code"] == "unsupported_media_type"
    header = re.search(r"-H '.*?'", error["message"])[0]
    assert '"content":"hello"' in run_in_shell(f"{command} {header}")


IMAGE_PATH = Path(__file__).parents[3] / "plugins/vlmkit-demo/src/vlmkit_demo/pictures/shapes.png"
JSON = '-H "Content-Type: application/json"'
COMMON_COMMANDS = (
    f"""curl -s -X POST URL/v1/chat/completions \\
{JSON} \\
-d '{{
"messages": [
{{"role": "user", "content": "What is Rust?"}}
],
"max_tokens": 100
}}'""",
    f"""curl -s -N -X POST URL/v1/completions {JSON} -d '{{
"prompt": "Once upon a time",
"max_tokens": 50,
"stream": true
}}'""",
    f"""curl -s -X POST URL/v1/completions {JSON} \\
-H "Authorization: Bearer your-secret-key" \\
-d '{{"prompt": "Hello", "max_tokens": 10}}'""",
    f"""curl -s -X POST URL/v1/chat/completions {JSON} -d '{{
"messages": [{{
"role": "user",
"content": [
{{"type": "text", "text": "What'\\''s in this image?"}},
{{"type": "image_url", "image_url": {{"url": "PICTURE"}}}}
]
}}],
"max_tokens": 100
}}'""",
)


@pytest.mark.posix
@pytest.mark.parametrize("command", COMMON_COMMANDS)
def test_commands_from_documentation_of_other_servers_are_answered(command, one):
    image_url = "data:image/png;base64," + base64.b64encode(IMAGE_PATH.read_bytes()).decode()
    output = run_in_shell(command.replace("URL", one.url, 1).replace("PICTURE", image_url))
    assert '"error"' not in output
    assert '"choices":[{' in output
