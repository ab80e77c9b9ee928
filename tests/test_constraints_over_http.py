"""Constrained answers over HTTP: a server process, the real compiler, the official client."""

import json
import re
import subprocess
import sys
import time

import openai
import pytest

pytest.importorskip("llguidance")
pytestmark = pytest.mark.posix

SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["colour", "count"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "shapes", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "vlmkit", "serve", "mock", "--port", "0"]
    with log.open("wb") as log_file, subprocess.Popen(command, stderr=log_file) as process:
        try:
            deadline = time.monotonic() + 300
            while "'mock' is ready\n" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            url = re.search(r"listening on (\S+)", log.read_text())[1]
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                yield client.chat.completions
        finally:
            process.kill()


def said(client, *, stream, **fields):
    answer = client.create(
        model="mock",
        messages=[{"role": "user", "content": "What is there?"}],
        temperature=1.0,
        max_tokens=200,
        stream=stream,
        **fields,
    )
    if not stream:
        return answer.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in answer)


@pytest.mark.parametrize("stream", [False, True])
def test_a_json_answer_matches_its_schema(client, stream):
    for fields in ({"response_format": NAMED}, {"extra_body": {"guided_json": SCHEMA}}):
        for seed in range(5):
            shapes = json.loads(said(client, stream=stream, seed=seed, **fields))
            assert list(shapes) == ["colour", "count"]
            assert shapes["colour"] in ("red", "green")
            assert shapes["count"] in range(10)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_grammar": 'start: "a" "b"+ "c"\n'}, "ab+c?"),
        ({"structured_outputs": {"regex": "[0-9]{2}"}}, "[0-9]{2}"),
    ],
)
def test_a_text_answer_matches_its_pattern(client, fields, pattern):
    for stream in (False, True):
        assert re.fullmatch(pattern, said(client, stream=stream, extra_body=fields))


def test_an_unenforceable_schema_is_refused_with_the_name_of_its_field(client):
    broken = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        said(client, stream=False, response_format=broken)
    assert (caught.value.param, caught.value.code) == ("response_format", "invalid_constraint")


def test_an_unenforceable_tool_schema_is_reported_or_refused_if_strict(client):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    messages = [{"role": "user", "content": "hello"}]
    answer = client.with_raw_response.create(model="mock", messages=messages, tools=[tool])
    assert answer.headers["x-vlmkit-unconstrained"] == "f#/properties/a/pattern"
    strict = {"type": "function", "function": tool["function"] | {"strict": True}}
    with pytest.raises(openai.BadRequestError) as refused:
        said(client, stream=False, tools=[strict])
    assert refused.value.param == "tools"


def test_an_answer_with_a_required_tool_call_has_no_text(client):
    call = {"name": "f", "arguments": {"a": "Köln"}}
    script = json.dumps({"mock": {"text": "I call.", "reasoning": "hm", "calls": [call]}})
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    answer = client.create(
        model="mock",
        messages=[{"role": "user", "content": script}],
        tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}],
        tool_choice="required",
    )
    (called,) = answer.choices[0].message.tool_calls
    assert json.loads(called.function.arguments) == {"a": "Köln"}
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (
        None,
        "tool_calls",
    )
