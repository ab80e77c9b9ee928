"""promptfoo, which evaluates prompts, as ``promptfoo eval`` with its provider for OpenAI's APIs."""

import json
import os
from pathlib import Path

import pytest
from conftest import environment, of_node, output_of

REPLIES = [
    {
        "to": "weather in Köln",
        "calls": [{"name": "weather", "arguments": {"city": "Köln"}}],
    },
    {"to": "as JSON", "text": '{"colour": "red", "count": 3}'},
    {"to": "Grade", "text": "no"},
]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
TOOL = {"name": "weather", "description": "How it is.", "parameters": PARAMETERS}


@pytest.fixture
def evaluate(server, tmp_path):
    """Return a function that evaluates one prompt and returns its result."""
    env = environment(
        tmp_path,
        PROMPTFOO_DISABLE_TELEMETRY="1",
        PROMPTFOO_DISABLE_UPDATE="1",
        PROMPTFOO_DISABLE_REMOTE_GENERATION="true",
        PROMPTFOO_CONFIG_DIR=str(tmp_path / "promptfoo"),
    )
    # Of the Node that is installed with it: it needs a newer one than some systems have.
    own = Path(os.environ["NODE_FOLDER"], "node_modules/.bin")
    env["PATH"] = f"{own}{os.pathsep}{env['PATH']}"

    def run(prompt, *assertions, provider="openai:chat:mock", code=0, **config):
        base = {"apiBaseUrl": server.v1, "apiKey": "none", "temperature": 0}
        described = {
            "prompts": [prompt if isinstance(prompt, str) else json.dumps(prompt)],
            "providers": [{"id": provider, "config": base | config}],
            "tests": [{"assert": list(assertions)}],
        }
        (tmp_path / "config.json").write_text(json.dumps(described))
        words = ("-c", "config.json", "-o", "told.json", "--no-cache", "--no-table")
        output_of(of_node("promptfoo"), "eval", *words, cwd=tmp_path, env=env, code=code)
        (result,) = json.loads((tmp_path / "told.json").read_text())["results"]["results"]
        return result

    return run


def test_an_image_is_answered(evaluate, data_url):
    parts = [
        {"type": "text", "text": "What is in this picture?"},
        {"type": "image_url", "image_url": {"url": data_url}},
    ]
    prompt = [{"role": "user", "content": parts}]
    check = {"type": "icontains", "value": "circle"}
    result = evaluate(prompt, check, provider="openai:chat:demo", max_tokens=100)
    assert result["success"]
    assert result["response"]["tokenUsage"]["prompt"] > 0


def test_a_tool_is_called(evaluate):
    check = {"type": "is-valid-openai-tools-call"}
    tools = [{"type": "function", "function": TOOL}]
    result = evaluate("How is the weather in Köln?", check, tools=tools)
    assert result["success"]
    (call,) = result["response"]["output"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Köln"}


def test_a_schema_is_enforced(evaluate):
    check = {"type": "is-json", "value": SCHEMA}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "shapes", "schema": SCHEMA, "strict": True},
    }
    result = evaluate("Tell it as JSON.", check, response_format=form)
    assert result["success"]
    assert result["response"]["output"] == {"colour": "red", "count": 3}


def test_responses_are_evaluated(evaluate):
    check = {"type": "equals", "value": "hello"}
    assert evaluate("hello", check, provider="openai:responses:mock")["success"]


def test_embeddings_are_compared(evaluate, server):
    model = {
        "id": "openai:embedding:mock",
        "config": {"apiBaseUrl": server.v1, "apiKey": "none"},
    }
    check = {"type": "similar", "value": "hello", "threshold": 0.99, "provider": model}
    assert evaluate("hello", check)["success"]


def test_a_failed_assertion_is_not_reported_as_a_server_error(evaluate):
    result = evaluate("Grade it.", {"type": "equals", "value": "yes"}, code=100)
    assert (result["success"], result["response"]["output"]) == (False, "no")


def test_an_error_of_a_wrong_request_is_shown_with_the_message_of_the_server(evaluate):
    result = evaluate("x", code=100, temperature=3)
    assert not result["success"]
    assert "temperature" in result["error"]
